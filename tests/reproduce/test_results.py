"""The results that the repository keeps: whole records, and a page and pictures that are what the project draws from them now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accord.reproduce.figures import drawings
from accord.reproduce.publish import CELLS, PAGE, fingerprint, kept, page
from accord.reproduce.study import load

ROOT = Path(__file__).parents[2] / "docs" / "results"
RECORDS = sorted((ROOT / CELLS).glob("*/*.json"))


def test_there_are_results() -> None:
    assert RECORDS


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: f"{record.parent.name}/{record.stem}")
def test_a_record_says_how_it_came_about(record: Path) -> None:
    held = json.loads(record.read_text(encoding="utf-8"))
    assert len(held["result"]["digest"]) == 64
    assert held["experiment"]["algorithm"]
    assert {"python", "torch", "cpu"} <= set(held["environment"])
    assert held["rounds"][-1]["round"] == held["result"]["rounds"]
    assert held["result"]["rounds"] == held["experiment"]["rounds"] or "no client gave a usable answer" in held["result"]["stopped"]
    assert "/tmp" not in record.read_text(encoding="utf-8"), "a record names a folder of the machine that made it"


def test_the_page_is_what_the_records_say() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(ROOT), "draw it again: accord reproduce --publish docs/results"


def test_the_pictures_are_what_the_records_say() -> None:
    for name, found in kept(ROOT).items():
        for each in drawings(load(name), found):
            place = ROOT / name / f"{each.key}.svg"
            assert f"<!-- {fingerprint(each)} -->" in place.read_text(encoding="utf-8"), f"{place} is of other records"
