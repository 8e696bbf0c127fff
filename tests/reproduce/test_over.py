"""Cells that stand over another row: the paper's numbers and the measured ones are divided alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accord.reproduce.outcome import outcomes
from accord.reproduce.play import plan
from accord.reproduce.study import Study, expand
from accord.reproduce.verdict import verdicts

SAID: dict[str, Any] = {
    "title": "T",
    "kind": "table",
    "shows": "that.",
    "set_up": {"data": "digits", "rounds": 2},
    "columns": {"Time": {"measure": "seconds", "over": "slow"}, "Accuracy": {}},
    "rows": {
        "slow": {"algorithm": "fedavg", "numbers": [20.0, 50.0], "spreads": [4.0, 1.0]},
        "quick": {"algorithm": "fedprox", "numbers": [15.0, 60.0]},
        "apart": {"algorithm": "scaffold", "numbers": ["-", 70.0]},
    },
    "claims": [{"says": "quick is quicker", "more": "slow | Time", "less": "quick | Time"}],
}


def finish(folder: Path, seed: int, seconds: float) -> None:
    """A kept run whose two rounds took so long on average."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    rounds = [{"round": k, "loss": 1.0, "seconds": seconds + 0.5 * (-1) ** k} for k in (1, 2)]
    held = {"name": "", "seed": seed, "experiment": {}, "result": {"accuracy": 0.5}, "environment": {}, "federation": {}, "analysis": {}}
    folder.with_suffix(".json").write_text(json.dumps({**held, "rounds": rounds}))


def study() -> Study:
    return replace(expand("x/y", SAID, "here"), seeds=2)


def test_the_papers_numbers_are_divided() -> None:
    cells = {cell.name: cell for cell in study().cells}
    assert [(cell.number, cell.spread) for cell in (cells["slow | Time"], cells["quick | Time"])] == [(1.0, 0.2), (0.75, None)]
    assert (cells["quick | Accuracy"].number, cells["quick | Time"].unit, cells["quick | Accuracy"].unit) == (60.0, "x slow", "%")


def test_measured_numbers_are_divided_seed_by_seed_and_the_other_row_comes_along(tmp_path: Path) -> None:
    planned = plan(study(), tmp_path, cells="quick | Time")
    assert [cell.name for cell in planned.cells] == ["slow | Time", "quick | Time"]
    for name, times in (("slow | Time", (4.0, 2.0)), ("quick | Time", (1.0, 3.0))):
        for job, seconds in zip(planned.runs[name], times, strict=True):
            finish(job.folder, job.experiment.seed, seconds)
    found = outcomes(planned)
    assert [dict(each.by_seed) for each in found] == [{0: 1.0, 1: 1.0}, {0: 0.25, 1: 1.5}]
    assert found[1].record()["unit"] == "x slow"
    assert [(v.differences, v.unit) for v in verdicts(planned.study, found)] == [((0.75, -0.5), "x slow")]


def test_without_the_other_row_there_is_no_number(tmp_path: Path) -> None:
    planned = plan(study(), tmp_path)
    for job in planned.runs["quick | Time"]:
        finish(job.folder, job.experiment.seed, 1.0)
    assert {each.cell.name: dict(each.by_seed) for each in outcomes(planned)}["quick | Time"] == {}


def test_a_row_that_the_column_has_not_is_refused() -> None:
    columns = {"Time": {"measure": "seconds", "over": "apart"}, "Accuracy": {}}
    with pytest.raises(ValueError, match=r"over of cell 'slow \| Time' in here is 'apart'"):
        expand("x/y", {**SAID, "columns": columns}, "here")
