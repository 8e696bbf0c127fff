"""Everything that the README and the pages of the documentation tell a person to type, typed."""

import re
from pathlib import Path

import pytest
from documents import ROOT, blocks, play

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    play(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_block_has_a_language(page: Path) -> None:
    assert {block.language for block in blocks(page)} <= {"python", "sh", "text", "toml", "json"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_local_link_and_picture_of_a_page_exists(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not target.startswith(("http://", "https://", "parts/")):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"


def test_an_algorithm_of_ones_own_takes_at_most_fifteen_lines() -> None:
    part = next(block for block in blocks(ROOT / "README.md") if block.attributes.get("title") == "mine.py")
    lines = [line for line in part.text.splitlines() if line.strip()]
    assert len(lines) <= 15
