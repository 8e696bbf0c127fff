"""The page in a real browser: drawn, quiet, readable at both widths, in both themes, and deaf to hostile names."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fabricated import write_comparison, write_run

from accord.reports.page import write_page
from accord.reports.record import Comparison, load

HOSTILE = ["<script>window.hacked = 1</script>", "</script><img src=x onerror='window.hacked = 1'>", "%{x} <b>bold</b> & \"quotes\" '${1}'"]
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
MORE_FLAGS = ("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--force-color-profile=srgb")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("needs chromium and chromedriver on the PATH")
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, *MORE_FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    found = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield found
    found.quit()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    lifts = {"fedavg": 0.0, "fedsol + constrain": 0.1, "scaffold": 0.003, "fedprox": -0.08}
    write_page(load(write_comparison(folder / "c", lifts, track=True)), folder / "comparison.html")
    write_page(load(write_comparison(folder / "a", {"fedavg": 0.0, "fedsol": 0.1}, (0, 1), analyse=True)), folder / "analysed.html")
    write_page(load(write_run(folder / "r", "fedavg", 0)), folder / "run.html")
    hostile = load(write_comparison(folder / "h", dict.fromkeys(HOSTILE, 0.0), seeds=(0, 1)))
    write_page(hostile, folder / "hostile.html", title="<script>window.hacked = 1</script>")
    write_page(Comparison({"nothing": ()}), folder / "empty.html")
    return folder


def show(browser: Any, page: Path, width: int = 1600, theme: str = "light") -> None:
    """Open a page at that width with the system's preference for that theme, and wait until it is drawn."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": theme}]})
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(page.as_uri())
    wait(browser, "[...document.querySelectorAll('.plot')].every(p => p._fullLayout && p.querySelector('.main-svg'))")


def wait(browser: Any, condition: str, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not browser.execute_script(f"return {condition}"):
        assert time.monotonic() < end, f"never true: {condition}"
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["comparison", "analysed", "run", "hostile", "empty"])
def test_every_figure_is_drawn_in_silence_and_without_the_network(browser: Any, folder: Path, name: str) -> None:
    show(browser, folder / f"{name}.html")
    places = browser.execute_script("return document.querySelectorAll('.plot').length")
    marks = "return [...document.querySelectorAll('.plot')].map(p => p.querySelectorAll('.trace, .scatterlayer path, .hm image').length)"
    assert (places >= 7) == (name != "empty")
    assert all(browser.execute_script(marks))
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []


def test_hostile_names_are_shown_and_do_nothing(browser: Any, folder: Path) -> None:
    show(browser, folder / "hostile.html")
    assert browser.execute_script("return window.hacked") is None
    heads = browser.execute_script("return [...document.querySelectorAll('.results tbody th')].map(e => e.textContent)")
    assert heads == HOSTILE
    assert browser.title == "<script>window.hacked = 1</script>"
    assert browser.execute_script("return document.querySelector('h1').textContent") == browser.title
    assert browser.execute_script("return document.querySelectorAll('main b, main img, .plot a').length") == 0
    shown = browser.execute_script("return document.querySelector('#plot-curves .legend').textContent")
    assert "<script>" in shown
    assert "<b>bold</b>" in shown


@pytest.mark.parametrize(
    ("name", "width", "theme"),
    [
        *(("comparison", width, theme) for width in (400, 1600) for theme in ("light", "dark")),
        *(("analysed", 400, "dark"), ("analysed", 1600, "light")),
    ],
)
def test_the_page_is_readable(browser: Any, folder: Path, name: str, width: int, theme: str) -> None:
    show(browser, folder / f"{name}.html", width, theme)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    over = "return [...document.querySelectorAll('.plot')].filter(p => p.scrollWidth > p.clientWidth + 1).map(p => p.id)"
    assert browser.execute_script(over) == []
    small = """return [...document.querySelectorAll('h1, h2, h3, h4, p, li, th, td, summary, code, button, .plot text')]
        .filter(e => e.textContent.trim() && e.getClientRects().length && parseFloat(getComputedStyle(e).fontSize) < 12)
        .map(e => e.textContent)"""
    assert browser.execute_script(small) == []
    page, ink = browser.execute_script("const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]")
    assert contrast(page, ink) > 7
    tick = browser.execute_script("return getComputedStyle(document.querySelector('.plot .xtick text')).fill")
    assert contrast(page, tick) > 7
    cut = """return [...document.querySelectorAll('.plot')].flatMap(p => { const b = p.getBoundingClientRect();
        return [...p.querySelectorAll('.legendtext, .xtitle, .ytitle, .xtick text, .ytick text')]
          .map(t => [t, t.getBoundingClientRect()])
          .filter(([t, r]) => r.left < b.left - 1 || r.right > b.right + 1 || r.bottom > b.bottom + 1)
          .map(([t]) => p.id + ': ' + t.textContent); })"""
    assert browser.execute_script(cut) == []


def contrast(one: str, other: str) -> float:
    """The contrast of two CSS colours by WCAG."""

    def luminance(code: str) -> float:
        parts = [int(p) / 255 for p in re.findall(r"\d+", code)[:3]]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_the_button_changes_the_theme_of_page_and_figures(browser: Any, folder: Path) -> None:
    show(browser, folder / "comparison.html")
    look = """return [getComputedStyle(document.body).backgroundColor, document.querySelector('#plot-curves')._fullLayout.font.color,
        document.getElementById('theme').getAttribute('aria-pressed')]"""
    light = browser.execute_script(look)
    browser.find_element("id", "theme").click()
    dark = browser.execute_script(look)
    assert all(a != b for a, b in zip(light, dark, strict=True))
    browser.find_element("id", "theme").click()
    assert browser.execute_script(look) == light


def test_a_click_in_the_legend_hides_the_series_with_its_band(browser: Any, folder: Path) -> None:
    show(browser, folder / "comparison.html")
    traces = "document.querySelector('#plot-curves')._fullData.filter(t => t.visible === true).length"
    before = browser.execute_script(f"return {traces}")
    toggle = browser.find_element("css selector", "#plot-curves .legendtoggle")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", toggle)
    toggle.click()
    wait(browser, f"{traces} === {before - 2}")
    time.sleep(0.5)  # a second click sooner would be a double click
    toggle = browser.find_element("css selector", "#plot-curves .legendtoggle")
    toggle.click()
    wait(browser, f"{traces} === {before}")


def test_a_switch_hides_an_algorithm_in_every_figure(browser: Any, folder: Path) -> None:
    show(browser, folder / "comparison.html")
    of = "p.data.map((t, n) => [t.meta === 'fedprox', p._fullData[n].visible])"
    hidden = f"[...document.querySelectorAll('.plot')].flatMap(p => {of}).every(([own, shown]) => own === (shown !== true))"
    switch = browser.find_element("css selector", "button.switch[value='fedprox']")
    switch.click()
    wait(browser, hidden)
    assert browser.execute_script("return [...document.querySelectorAll('figure[hidden]')].map(f => f.dataset.of)") == ["fedprox"]
    assert switch.get_attribute("aria-pressed") == "false"
    switch.click()
    wait(browser, "[...document.querySelectorAll('.plot')].every(p => p._fullData.every(t => t.visible === true))")
    assert browser.execute_script("return document.querySelectorAll('figure[hidden]').length") == 0


def test_every_table_can_be_taken_away(browser: Any, folder: Path) -> None:
    show(browser, folder / "comparison.html")
    lacking = """return [...document.querySelectorAll('table:not(.results)')].filter(t => {
        const names = [...t.closest('.scroll').nextElementSibling.querySelectorAll('a[download]')].map(a => a.download.split('.').pop());
        return names.join() !== 'md,tex,csv'; }).length"""
    assert browser.execute_script("return document.querySelectorAll('table:not(.results)').length") >= 4
    assert browser.execute_script(lacking) == 0
    text = browser.execute_script(
        "return decodeURIComponent(document.querySelector('a[download=\"runs.csv\"]').href.split(',').slice(1).join(','))"
    )
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["Seed"] for line in lines] == ["0", "1", "2"] * 4
    runs = load(folder / "c").all_runs
    assert [float(line["Accuracy, %"]) / 100 for line in lines] == pytest.approx([run.accuracy for run in runs])
    assert [line["Digest of the weights"] for line in lines] == [run.result["digest"] for run in runs]


def test_hovering_reads_values(browser: Any, folder: Path) -> None:
    from selenium.webdriver import ActionChains

    show(browser, folder / "comparison.html")
    area = browser.find_element("css selector", "#plot-curves .nsewdrag")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", area)
    ActionChains(browser).move_to_element(area).perform()
    wait(browser, "document.querySelectorAll('#plot-curves .hoverlayer .legendtext').length >= 4")
    shown = browser.execute_script("return document.querySelector('#plot-curves .hoverlayer').textContent")
    assert re.search(r"fedavg : \d+\.\d\d% \(\d+\.\d\d% to \d+\.\d\d%\)", shown)


def test_print_is_light_and_as_wide_as_paper(browser: Any, folder: Path) -> None:
    show(browser, folder / "comparison.html", theme="dark")
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    look = """const size = document.querySelector('#plot-curves')._fullLayout;
        return [document.documentElement.dataset.theme || '', size.width, size.height]"""
    assert browser.execute_script(look) == ["light", 680, 330]
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    theme, width, height = browser.execute_script(look)
    assert theme == ""
    assert width > 680
    assert height > 400


def test_the_table_can_be_taken_away(browser: Any, folder: Path) -> None:
    show(browser, folder / "comparison.html")
    for key, start in (("markdown", "| Algorithm |"), ("latex", "\\begin{tabular}"), ("csv", "algorithm,seeds,mean")):
        link = f"document.querySelector('#{key}').closest('details').querySelector('a[download]')"
        text = browser.execute_script(f"return decodeURIComponent({link}.href.split(',').slice(1).join(','))")
        assert text.startswith(start)
        assert text == browser.execute_script(f"return document.getElementById('{key}').textContent")


def test_structure_can_be_heard(browser: Any, folder: Path) -> None:
    show(browser, folder / "comparison.html")
    assert browser.execute_script("return document.documentElement.lang") == "en"
    assert browser.execute_script("return document.querySelectorAll('h1').length") == 1
    unnamed = """return [...document.querySelectorAll('[aria-labelledby]')]
        .filter(e => !document.getElementById(e.getAttribute('aria-labelledby'))).length"""
    assert browser.execute_script(unnamed) == 0
    assert browser.execute_script("return document.querySelectorAll('table:not(:has(caption))').length") == 0
    assert browser.execute_script("return [...document.querySelectorAll('.plot')].filter(p => !p.ariaLabel).length") == 0
    lost = "return [...document.querySelectorAll('nav a')].filter(a => !document.getElementById(a.hash.slice(1))).length"
    assert browser.execute_script(lost) == 0
    doubled = """const ids = [...document.querySelectorAll('h2[id], h3[id], h4[id], pre[id], p[id], div[id], script[id]')].map(e => e.id);
        return ids.filter((id, n) => ids.indexOf(id) !== n)"""
    assert browser.execute_script(doubled) == []


def test_the_page_names_no_other_place(folder: Path) -> None:
    text = (folder / "comparison.html").read_text(encoding="utf-8")
    own = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert re.findall(r"""(?:src|href)=["'](?!data:|#)[^"']*""", own) == []
    assert "http" not in own.replace("http-equiv", "")


def test_everything_recorded_is_in_the_page(folder: Path) -> None:
    text = (folder / "comparison.html").read_text(encoding="utf-8")
    for shown in (
        "00" * 32,
        "f00d2",
        "per_round = 5",
        "2.13.0",
        "3.11.7",
        "seed = 2",
        "Fingerprint f00d0",
        "not distinguishable from fedavg",
    ):
        assert shown in text, shown
