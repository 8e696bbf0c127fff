"""Comparisons: cells and their folders, side by side or one after another, and cells that fail."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord import compare as comparing
from accord.compare import Cell, cells, compare, unique, verify
from accord.engines.crew import Lost
from accord.experiment import Experiment
from shell import result, rounds

BASE = Experiment(clients=5, per_round=2, rounds=3, engine="process", epochs=1)


def watched(planned: list[Cell], out: Path, workers: int) -> list[tuple[str, Mapping[str, Any]]]:
    said: list[tuple[str, Mapping[str, Any]]] = []
    compare(planned, out, workers=workers, target=None, watch=lambda cell, line: said.append((cell.label, line)))
    return said


# --- what is planned -------------------------------------------------------------------------------------------------------------------


def test_every_algorithm_with_every_seed_one_seed_after_the_other(tmp_path: Path) -> None:
    planned = cells(BASE.with_({"seed": 3}), ["fedavg", "fedprox(mu=1)"], 2, tmp_path)
    assert [(c.experiment.algorithm, c.experiment.seed) for c in planned] == [
        ("fedavg", 3),
        ("fedprox(mu=1)", 3),
        ("fedavg", 4),
        ("fedprox(mu=1)", 4),
    ]
    assert [c.folder.relative_to(tmp_path).as_posix() for c in planned] == [
        "fedavg/seed-3",
        "fedprox-mu-1/seed-3",
        "fedavg/seed-4",
        "fedprox-mu-1/seed-4",
    ]
    assert planned[1].label == "fedprox(mu=1), seed 3"
    assert all(c.experiment.split_seed == 0 for c in planned), "the data are the same for all seeds"


@given(st.lists(st.text(max_size=80), min_size=1, max_size=8, unique=True))
def test_no_two_cells_share_a_folder_and_none_leaves_the_comparisons(texts: list[str]) -> None:
    planned = cells(BASE, texts, 2, Path("out"))
    folders = [c.folder for c in planned]
    assert len(set(folders)) == len(folders)
    for folder in folders:
        assert len(folder.parts) == 3
        assert ".." not in folder.parts
        assert folder.parts[1] not in ("", ".")
        assert len(folder.parts[1]) <= 70


@given(st.lists(st.sampled_from(["a", "a-1", "a-2", "b", "a-1-1"]), max_size=8))
def test_numbers_keep_slugs_apart(slugs: list[str]) -> None:
    found = unique(slugs)
    assert len(set(found)) == len(slugs)
    assert len(found) == len(slugs)


def test_an_algorithm_given_twice() -> None:
    with pytest.raises(ValueError, match=r"'fedavg' is given twice"):
        cells(BASE, ["fedavg", "scaffold", "fedavg"], 1, Path("out"))


def test_mistakes_are_found_before_anything_starts(tmp_path: Path) -> None:
    for keys, text in (
        ({}, "fedpox"),
        ({"split": "shards(1000)"}, "shards"),
        ({"model": "lenet5"}, "lenet5 reads images"),
        ({"per_round": 50}, "per_round is 50"),
        ({"device": "nowhere"}, "device 'nowhere' is not there"),
    ):
        algorithms = ["fedavg", "fedpox"] if text == "fedpox" else ["fedavg"]
        with pytest.raises(ValueError, match=text):
            verify(cells(BASE.with_(keys), algorithms, 1, tmp_path))
    assert list(tmp_path.iterdir()) == []


# --- what is run -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison of two algorithms and two seeds, one after another."""
    out = tmp_path_factory.mktemp("whole")
    said = watched(cells(BASE, ["fedavg", "scaffold"], 2, out), out, 1)
    assert [label for label, line in said if "done" in line] == ["fedavg, seed 0", "scaffold, seed 0", "fedavg, seed 1", "scaffold, seed 1"]
    assert [line["round"] for label, line in said if label == "fedavg, seed 0" and "round" in line] == [1, 2, 3]
    return out


def test_the_record_of_a_comparison(whole: Path) -> None:
    record = json.loads((whole / "comparison.json").read_text())
    assert set(record) == {"algorithms", "seeds", "runs", "target", "set_up"}
    assert record["runs"] == {"fedavg": ["fedavg/seed-0", "fedavg/seed-1"], "scaffold": ["scaffold/seed-0", "scaffold/seed-1"]}
    assert Experiment.of(record["set_up"]) == BASE
    first, second = (json.loads((whole / place / "federation.json").read_text()) for place in ("fedavg/seed-0", "scaffold/seed-1"))
    assert first == second, "all cells have the same split"
    assert result(whole / "fedavg/seed-0")["digest"] != result(whole / "fedavg/seed-1")["digest"]


def test_side_by_side_gives_the_same_and_a_worker_that_dies_is_replaced(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, hands = comparing.hire, []

    def hiring(*arguments: Any) -> Any:
        hands.append(real(*arguments))
        return hands[-1]

    killed = []

    def sending(hand: Any, message: Any) -> bool:
        said = real_send(hand, message)
        if not killed:
            killed.append(message.label)
            os.kill(hand.process.pid, signal.SIGKILL)
        return said

    real_send = comparing.send
    monkeypatch.setattr(comparing, "hire", hiring)
    monkeypatch.setattr(comparing, "send", sending)
    planned = cells(BASE, ["fedavg", "scaffold"], 2, tmp_path)
    said = watched(planned, tmp_path, 2)
    assert sorted(label for label, line in said if "done" in line) == sorted(c.label for c in planned)
    assert len(hands) == 3
    assert not any(hand.process.is_alive() for hand in hands)
    for place in ("fedavg/seed-0", "scaffold/seed-0", "fedavg/seed-1", "scaffold/seed-1"):
        assert result(tmp_path / place)["digest"] == result(whole / place)["digest"]
        assert rounds(tmp_path / place) == rounds(whole / place)


def test_what_is_finished_is_not_run_again(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {p: p.stat().st_mtime_ns for p in whole.rglob("*") if p.is_file() and p.name != "comparison.json"}
    monkeypatch.setattr("accord.run.open_engine", lambda *a, **k: pytest.fail("an engine was opened"))
    said = watched(cells(BASE, ["fedavg", "scaffold"], 2, whole), whole, 1)
    assert [line for _, line in said] == [{"done": True}] * 4
    assert {p: p.stat().st_mtime_ns for p in before} == before


class _Hand:
    """A worker that never was: it answers every cell with what it was told to."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers, self.fate, self.cells = answers, "exit code -9", []

    @property
    def process(self) -> Any:
        raise AssertionError("nobody looks at the process")


def stage(monkeypatch: pytest.MonkeyPatch, answer: Any) -> list[_Hand]:
    hands: list[_Hand] = []

    def hire(serve: Any) -> _Hand:
        hands.append(_Hand([]))
        return hands[-1]

    monkeypatch.setattr(comparing, "hire", hire)
    monkeypatch.setattr(comparing, "send", lambda hand, cell: hand.cells.append(cell) or True)
    monkeypatch.setattr(comparing, "ready", lambda busy: list(busy))
    monkeypatch.setattr(comparing, "receive", lambda hand: answer(hand.cells[-1]))
    monkeypatch.setattr(comparing, "dismiss", lambda gone: None)
    return hands


def test_a_cell_that_takes_every_worker_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hands = stage(monkeypatch, lambda cell: None if cell.experiment.algorithm == "scaffold" else {"done": True})
    with pytest.raises(Lost, match=r"scaffold, seed 0: 3 workers died \(the last with exit code -9\)"):
        watched(cells(BASE, ["fedavg", "scaffold"], 1, tmp_path), tmp_path, 2)
    assert len(hands) == 4


def test_a_mistake_in_a_cell_is_told_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage(monkeypatch, lambda cell: ValueError("round 1: no client gave a usable answer"))
    with pytest.raises(ValueError, match=r"^fedavg, seed 0: round 1: no client"):
        watched(cells(BASE, ["fedavg"], 2, tmp_path), tmp_path, 1 + 1)
    stage(monkeypatch, lambda cell: RuntimeError("a defect"))
    with pytest.raises(RuntimeError, match=r"^a defect$"):
        watched(cells(BASE, ["fedavg"], 2, tmp_path), tmp_path, 2)


def test_no_more_workers_than_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hands = stage(monkeypatch, lambda cell: {"done": True})
    watched(cells(BASE, ["fedavg", "scaffold"], 1, tmp_path), tmp_path, 50)
    assert len(hands) == 2
