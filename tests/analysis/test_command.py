"""`accord analyze` on a small run: files, mistakes, and that the run itself is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accord.analysis import ORDER, Subject, analyze, command, scratch
from accord.experiment import Experiment
from accord.listing import rows
from accord.reports.record import read_run
from accord.reproduce.measures import Analysis, Stored
from accord.run import run
from shell import accord, good


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds."""
    out = tmp_path_factory.mktemp("run")
    settings = {"algorithm": "scaffold", "clients": 5, "per_round": 3, "epochs": 1, "rounds": 3, "model": "mlp(hidden=(6,))"}
    run(Experiment.of({**settings, "engine": "process"}), out)
    return out


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file() and "analysis" not in p.parts}


def test_each_name_makes_a_file_and_nothing_else_changes(folder: Path) -> None:
    before = contents(folder)
    answer = good("analyze", folder, "--only", "cost", "--only", "curvature(samples=40, probes=6, top=2)", "--json")
    found = answer.json[str(folder)]
    assert set(found) == {"cost", "curvature"}
    for name, made in found.items():
        assert json.loads((folder / "analysis" / f"{name}.json").read_text()) == made
        assert set(made) == {"name", "values", "settings"}
    assert found["curvature"]["settings"]["samples"] == found["curvature"]["values"]["samples"] == 40
    assert found["curvature"]["values"]["probes"] == 6
    assert len(found["curvature"]["values"]["eigenvalues"]) == 2
    assert not (folder / "analysis" / "partial" / "curvature").exists()
    assert contents(folder) == before


def test_what_tables_of_papers_read(folder: Path) -> None:
    analyze(folder, only=["cost"])
    record = read_run(folder)
    size = sum(p.numel() for p in Subject(folder).first.parameters())
    assert Stored().of(record) == 4 * size / 1e6  # the model, the global one, c and c_i
    assert Analysis("cost", "parameters").of(record) == size
    flops = 2 * (64 * 6 + 6 * 10)
    assert record.analysis["cost"]["values"]["model_flops"] == record.analysis["cost"]["values"]["forward_flops"] == flops
    assert record.analysis["cost"]["values"]["bytes_up"] == record.result["bytes_up"]
    last = record.analysis["cost"]["values"]["reached"][-1]
    assert last["accuracy"] == int(100 * max(record.curve().accuracy)) / 100
    assert last["bytes_up"] * 8 / 1e9 == last["gigabits_up"]


def test_a_readable_answer(folder: Path) -> None:
    answer = good("analyze", folder, "--only", "federation")
    assert "heterogeneity" in answer.out
    assert str(folder / "analysis") in answer.out.replace("\n", "")


@pytest.mark.parametrize(
    ("only", "said"),
    [
        ("curvatur", "there is no analysis 'curvatur' (did you mean 'curvature'?)"),
        ("curvature(probe=3)", "probe"),
        ("curvature(probes=0)", "must be a whole number at least 1"),
        ("fedavg", "there is no analysis 'fedavg'"),
    ],
)
def test_an_unknown_name(folder: Path, only: str, said: str) -> None:
    answer = accord("analyze", folder, "--only", only)
    assert answer.code == 2
    assert said in answer.err
    assert answer.err.count("\n") == 1


def test_a_folder_without_a_checkpoint(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text((folder / "experiment.toml").read_text())
    answer = accord("analyze", tmp_path, "--only", "curvature")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "has no checkpoint" in answer.err
    answer = accord("analyze", tmp_path / "nowhere")
    assert (answer.code, answer.err.count("\n")) == (2, 1)


def test_the_list(folder: Path) -> None:
    assert {row["name"] for row in rows("analyses")} >= set(ORDER[:3])


class Killed(Exception):
    """What stands for the end of a process."""


@pytest.mark.parametrize(
    "name", ["curvature(samples=60, probes=12, top=2)", "landscape(samples=30, points=3, line=3)", "spectrum(samples=40, steps=20)"]
)
def test_an_interrupted_analysis_goes_on(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_PAUSE", 0.0)
    told: list[tuple[str, int]] = []

    def until(what: str, done: int, total: int) -> None:
        told.append((what, done))
        if len(told) == 14:
            raise Killed

    with pytest.raises(Killed):
        analyze(folder, only=[name], progress=until)
    assert list((folder / "analysis" / "partial" / name.partition("(")[0]).rglob("state.json"))
    again: list[tuple[str, int]] = []
    found = analyze(folder, only=[name], progress=lambda what, done, total: again.append((what, done)))
    assert told[0] == (told[0][0], 0)
    assert dict(reversed(again))[told[-1][0]] >= told[-1][1]  # the first that is told of it
    assert found == analyze(folder, only=[name])


def test_an_interruption_says_how_to_go_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "analyze", interrupted)
    answer = accord("analyze", folder)
    assert (answer.code, answer.err) == (130, "accord: interrupted; the same command goes on where it was\n")
