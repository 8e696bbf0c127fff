"""Everything that the README and the pages of the documentation tell a person to type, typed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from documents import ROOT, blocks

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def started(words: list[str], folder: Path) -> str:
    """What a program says, when it ends well."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    ended = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@each_page
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    if any(block.language in ("python", "sh") for block in blocks(page)):
        started([sys.executable, str(ROOT / "tests" / "documents.py"), str(page)], tmp_path)


@each_page
def test_every_block_has_a_language(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {"python", "sh", "text", "toml", "json"}


@each_page
def test_every_local_link_and_picture_of_a_page_exists(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith(("http://", "https://", "parts/")):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_the_installed_command_answers(tmp_path: Path) -> None:
    assert "dirichlet" in started([str(Path(sys.executable).with_name("accord")), "list", "splits"], tmp_path)


def test_an_algorithm_of_ones_own_takes_at_most_fifteen_lines() -> None:
    part = next(block for block in blocks(ROOT / "README.md") if block.attributes.get("title") == "mine.py")
    assert len([line for line in part.text.splitlines() if line.strip()]) <= 15
