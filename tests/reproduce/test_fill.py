"""Values that rows and columns put into an algorithm, and figures whose columns fall into groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_over import finish

from accord.reports.record import Run
from accord.reproduce.counted import passes
from accord.reproduce.figures import drawings
from accord.reproduce.measures import Tracked
from accord.reproduce.outcome import outcomes
from accord.reproduce.play import plan
from accord.reproduce.study import expand, load

SAID: dict[str, Any] = {
    "title": "T",
    "kind": "figure",
    "shows": "that.",
    "set_up": {"data": "digits", "rounds": 2},
    "columns": {"Epochs: 1": {"epochs": 1}, "Epochs: 3": {"epochs": 3}, "rho: 0.5": {"fill": {"rho": 0.5}}, "Time": {"measure": "seconds"}},
    "rows": {"a": {"algorithm": "fedsol(rho={rho})", "fill": {"rho": "2.0"}}, "b": {"algorithm": "fedavg", "numbers": [1, 2, "-", 3]}},
    "figure": {"draw": ["measures"]},
}


def test_a_column_fills_before_a_row() -> None:
    texts = {cell.name: cell.experiment.algorithm for cell in expand("x/y", SAID, "here").cells}
    assert texts["a | Epochs: 1"] == texts["a | Time"] == "fedsol(rho=2.0)"
    assert texts["a | rho: 0.5"] == "fedsol(rho=0.5)"
    assert texts["b | Epochs: 3"] == "fedavg"


def test_groups_of_columns_and_units_have_pictures_of_their_own(tmp_path: Path) -> None:
    planned = plan(expand("x/y", SAID, "here"), tmp_path)
    for job in planned.runs["a | Time"]:
        finish(job.folder, job.experiment.seed, 2.0)
    found = drawings(planned.study, outcomes(planned))
    assert [(each.key, each.figure.layout.xaxis.title.text or "") for each in found] == [("measures-0", "Epochs"), ("measures-2", "")]
    assert [(trace.name, list(trace.x), list(trace.y)) for trace in found[0].figure.data] == [("b, paper", ["1", "3"], [1.0, 2.0])]
    assert [(trace.name, list(trace.x), list(trace.y)) for trace in found[1].figure.data] == [
        ("a", ["Time"], [2.0]),
        ("b, paper", ["Time"], [3.0]),
    ]


def test_columns_of_the_same_runs_have_one_panel(tmp_path: Path) -> None:
    said = {**SAID, "columns": {"One": {}, "Two": {"measure": "seconds"}}, "rows": {"a": {"algorithm": "fedavg"}}}
    planned = plan(expand("x/y", {**said, "figure": {"draw": ["loss"]}}, "here"), tmp_path)
    for job in planned.jobs:
        finish(job.folder, job.experiment.seed, 1.0)
    assert [each.key for each in drawings(planned.study, outcomes(planned))] == ["panel-0-loss"]


def test_what_is_tracked_may_be_read_in_per_cent(tmp_path: Path) -> None:
    rounds = ({"round": 1, "knowledge": {"mean": 0.25}}, {"round": 2, "knowledge": {"mean": 0.5}})
    run = Run(tmp_path, "a", 0, {}, rounds)
    measures = Tracked("knowledge.mean"), Tracked("knowledge.mean", last=2, percent=True), Tracked("drift.norm.-1")
    assert [each.of(run) for each in measures] == [0.5, 37.5, None]
    assert [each.unit for each in measures] == ["", "%", ""]


def test_the_computation_of_table_5_is_counted() -> None:
    """Perturbing everything: two passes and the global model's forward one; the head: a pass, that one, and next to nothing."""
    cells = {cell.name: cell for cell in load("fedsol/table5").cells}
    counted = {row: passes(cells[f"{row} | Computation over FedAvg"].experiment) for row in ("All", "Body", "Head")}
    assert abs(counted["All"] - (2 + 1 / 3)) < 0.01
    assert 2.2 < counted["Body"] <= counted["All"]
    assert 1.3 < counted["Head"] < 1.7
