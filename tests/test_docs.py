"""The documentation's site builds, strictly, with a page for every part and nothing fetched from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from accord.recipe import entries
from documents import ROOT

LOADED = re.compile(r'<(?:script|img|link rel="(?:stylesheet|preconnect|icon)")[^>]*(?:src|href)="(https?:[^"]*)')
pytestmark = pytest.mark.xdist_group("site")  # built once


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="needs mkdocs-material")
    pytest.importorskip("mkdocstrings", reason="needs mkdocstrings")
    place = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(place)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return place


def test_every_part_has_a_page_with_its_arguments(site: Path) -> None:
    own = [entry.name for entry in entries("part") if entry.make.__module__.startswith("accord.parts.")]  # tests and doctests register more
    assert len(own) > 20
    for name in own:
        assert "What it does to a round" in (site / "parts" / f"{name}.html").read_text(encoding="utf-8")


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        found = LOADED.findall(page.read_text(encoding="utf-8"))
        assert not found, f"{page.name} loads {found}"


def test_examples_of_docstrings_are_code(site: Path) -> None:
    text = (site / "reference.html").read_text(encoding="utf-8")
    assert '<span class="gp">&gt;&gt;&gt; </span>' in text
    assert "<blockquote>" not in text
