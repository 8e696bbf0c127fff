"""Every writer shows the same rows, in its own syntax, with nothing cut off and nothing unescaped."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from fabricated import write_comparison
from rich.console import Console

from accord.reports.record import load
from accord.reports.statistics import Row, summarise
from accord.reports.tables import caption, to_csv, to_dicts, to_latex, to_markdown, to_rich

SIX = {"fedavg": 0.0, "fedprox": 0.004, "scaffold": 0.08, "fedavg + constrain": 0.1, "fedsol": -0.06, "fedsol + constrain": 0.01}


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return summarise(load(write_comparison(tmp_path_factory.mktemp("six"), SIX)))


def row(name: str) -> Row:
    return Row(name, 2, 0.5, 0.01, -0.012, -0.02, -0.004, "worse", None, 0, 1234.5, 3.25, 1, 2, "a", 0.5, "given")


def printed(rows: list[Row], width: int) -> str:
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(to_rich(rows, width))
    return console.export_text()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_the_terminal_table_fits_and_cuts_nothing(rows: list[Row], width: int) -> None:
    text = printed(rows, width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for word in ("constrain", "distinguishable", "Seconds", "baseline", "better", "worse", "Algorithm", "Difference"):
        assert word in text, word
    for shown in rows:
        assert f"{100 * (shown.mean or 0):.2f}" in text


def test_a_wide_terminal_has_one_line_a_row(rows: list[Row]) -> None:
    lines = printed(rows, 200).splitlines()
    assert any("fedavg + constrain" in line and "better" in line for line in lines)


def test_markup_in_a_name_is_text_in_the_terminal() -> None:
    assert "[red]x[/red]" in printed([row("[red]x[/red]")], 120)


def test_markdown_escapes_and_aligns() -> None:
    head, rule, body = to_markdown([row("b|c_<script>\n*x*"), row("a")]).splitlines()[:3]
    assert head.count("|") == rule.count("|") == 9
    assert body.startswith(r"| b\|c\_\<script\> \*x\* | 2 (+1 unfinished) |")


def test_latex_escapes() -> None:
    text = to_latex([row("a"), row(r"100%_\&{#}~^<[x]")])
    assert r"100\%\_\textbackslash{}\&\{\#\}\textasciitilde{}\textasciicircum{}\textless{}{[}x]" in text
    assert r"50.00 $\pm$ 1.00 & $-$1.20 {[}$-$2.00, $-$0.40] & worse" in text
    assert text.count(r"\\") == 3


def test_csv_reads_back_in_full_precision(rows: list[Row]) -> None:
    read = list(csv.DictReader(io.StringIO(to_csv(rows))))
    assert [float(line["mean"]) for line in read] == [shown.mean for shown in rows]
    assert read[0]["difference"] == ""
    assert [line["algorithm"] for line in read] == list(SIX)


def test_dicts_are_json(rows: list[Row]) -> None:
    assert json.loads(json.dumps(to_dicts(rows)))[2]["verdict"] == "better"


def test_a_single_algorithm_has_no_difference(tmp_path: Path) -> None:
    alone = summarise(load(write_comparison(tmp_path, {"a": 0.0})))
    assert "Difference" not in to_markdown(alone)
    assert "Difference" not in caption(alone)


def test_the_caption_names_baseline_and_target(rows: list[Row]) -> None:
    assert "Difference: to fedavg" in caption(rows)
    assert "the mean final accuracy of fedavg" in caption(rows)
    assert "Target: 50.00 %;" in caption([row("a")])
