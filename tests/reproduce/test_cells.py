"""What a cell of a study takes from the study, its row and its column."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from accord.reproduce.outcome import outcomes
from accord.reproduce.play import plan
from accord.reproduce.study import Study, expand
from accord.run import run

SAID: dict[str, Any] = {
    "title": "T",
    "kind": "table",
    "shows": "that.",
    "set_up": {"data": "folder('no/such/place')", "clients": 9, "rounds": 2},
    "stand_in": {"data": "digits", "note": "digits stand in"},
    "columns": {"natural": {}, "iid": {"split": "iid", "stand_in": {"clients": 4}}},
    "rows": {"a": {"algorithm": "fedavg", "numbers": [50.0, float("nan")], "spreads": [float("nan"), 2.0]}},
}


def study(**changes: Any) -> Study:
    return expand("x/y", {**SAID, **changes}, "here")


def test_a_column_adds_to_what_stands_in(tmp_path: Path) -> None:
    planned = plan(study(), tmp_path)
    runs = {name: jobs[0].experiment for name, jobs in planned.runs.items()}
    assert {name: (run.data, run.clients) for name, run in runs.items()} == {"a | natural": ("digits", 9), "a | iid": ("digits", 4)}
    assert planned.stood_in == {"a | natural", "a | iid"}
    assert not planned.missing


def test_without_a_stand_in_the_cell_is_missing(tmp_path: Path) -> None:
    planned = plan(study(stand_in={}, columns={"natural": {}, "iid": {"stand_in": {"data": "digits"}}}), tmp_path)
    assert list(planned.missing) == ["a | natural"]
    assert list(planned.runs) == ["a | iid"]


def test_what_stands_in_is_checked_when_the_study_is_read() -> None:
    with pytest.raises(ValueError, match=r"'client' in stand_in of cell 'a \| iid'"):
        study(columns={"natural": {}, "iid": {"stand_in": {"client": 4}}})


def test_the_paper_may_have_no_number_or_no_spread() -> None:
    assert [(cell.number, cell.spread) for cell in study().cells] == [(50.0, None), (None, 2.0)]


def test_a_share_of_the_epochs_is_told_as_a_reduction(tmp_path: Path) -> None:
    columns = {"few": {"epochs": 2, "data": "digits"}, "many": {"epochs": 20, "data": "digits"}, "steps": {"steps": 7, "data": "digits"}}
    said = study(columns=columns, rows={"a": {"algorithm": "fedavg"}}, set_up={"rounds": 2, "clients": 9})
    planned = plan(said, tmp_path, epoch_fraction=0.1)
    runs = {name: jobs[0].experiment for name, jobs in planned.runs.items()}
    assert [(run.epochs, run.steps) for run in runs.values()] == [(1, None), (2, None), (None, 7)]
    assert [each.reduced for each in outcomes(planned)] == [("1 of 2 local epochs",), ("2 of 20 local epochs",), ()]


def test_the_example_of_the_documentation_can_be_read() -> None:
    text = (Path(__file__).parents[2] / "docs" / "studies.md").read_text(encoding="utf-8")
    found = expand("docs/example", tomllib.loads(text.partition("```toml\n")[2].partition("```")[0]), "the documentation")
    assert [cell.number for cell in found.cells] == [46.4, 53.1, 34.8, 1.0, 54.8, 59.7, None]
    assert [cell.name for cell in found.cells if cell.over] == ["FedAvg | Time"]


def test_a_run_that_tracks_more_serves_as_well(tmp_path: Path) -> None:
    columns = {"plain": {}, "drift": {"track": ["drift"]}, "both": {"track": ["drift", "knowledge"]}}
    three = study(stand_in={}, columns=columns, set_up={"data": "digits", "clients": 3, "rounds": 1}, rows={"a": {"algorithm": "fedavg"}})
    apart = plan(three, tmp_path).runs
    assert len({jobs[0].folder for jobs in apart.values()}) == 3
    tracked = apart["a | both"][0]
    result = run(dataclasses.replace(tracked.experiment, engine="process"), tracked.folder)
    shared = plan(three, tmp_path)
    assert {jobs[0].folder for jobs in shared.runs.values()} == {tracked.folder}
    assert len(shared.jobs) == 1
    assert run(dataclasses.replace(shared.jobs[0].experiment, engine="process"), tracked.folder, keep=True) == result
    apart["a | plain"][0].folder.mkdir(parents=True)
    assert plan(three, tmp_path).runs["a | plain"][0].folder == apart["a | plain"][0].folder
