"""Running a study: which runs its cells need, which are finished, and the rest of them side by side."""

from __future__ import annotations

import dataclasses
import fnmatch
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from accord.compare import Cell as Job
from accord.compare import Watch, side_by_side
from accord.data.download import offline
from accord.data.read import read_data
from accord.experiment import Experiment, Tracked, cores
from accord.reproduce.study import Cell, Study

_WITHOUT = (
    "name",
    "seed",
    "engine",
    "workers",
    "address",
    "state_memory",
    "data_dir",
    "device",
)  # settings that do not tell experiments apart
_TRACKS: tuple[tuple[Tracked, ...], ...] = (("drift",), ("knowledge",), ("drift", "knowledge"))  # what studies have runs record


@dataclass(frozen=True)
class Plan:
    """The cells to run, the runs of each (one a seed; cells may share them), and why a cell cannot be run here."""

    study: Study
    cells: tuple[Cell, ...]
    runs: Mapping[str, tuple[Job, ...]]
    missing: Mapping[str, str]
    stood_in: frozenset[str]

    @property
    def jobs(self) -> list[Job]:
        """Every run once, seed by seed, so that a study cut short has whole seeds."""
        every = {job.folder: job for jobs in self.runs.values() for job in jobs}
        return sorted(every.values(), key=lambda job: job.experiment.seed)


def plan(
    study: Study,
    out: Path,
    *,
    cells: str = "*",
    seeds: int | None = None,
    rounds: int | None = None,
    data_fraction: float | None = None,
    epoch_fraction: float | None = None,
    data_dir: str = "",
    lacks: Callable[[Experiment, Path], str] | None = None,
) -> Plan:
    """What running these cells takes: by default everything as in the paper.

    `epoch_fraction` is the share of each cell's local epochs, at least one. The runs lie in `out`, where all studies may put theirs: a
    run that another one made is used again. `cells` is a pattern such as `'FedAvg*'` that matches a row, a column, or `row | column`.
    `lacks` says why the runs of an experiment cannot be had, with their folder; by default that its data set is absent.
    """
    wanted = {name for cell in study.cells if matches(cell, cells) for name in (cell.name, cell.base)}
    chosen = tuple(cell for cell in study.cells if cell.name in wanted)
    if not chosen:
        raise ValueError(f"no cell of {study.id} matches {cells!r}; its rows are {', '.join(map(repr, study.rows))}")
    runs: dict[str, tuple[Job, ...]] = {}
    missing: dict[str, str] = {}
    stood_in: set[str] = set()
    change = {"rounds": rounds, "data_fraction": data_fraction, "data_dir": data_dir or None}
    lacks = lacks or (lambda experiment, folder: absent(experiment.data, data_dir))
    for cell in (each for each in chosen if each.measure.trained):
        experiment = cell.experiment.with_({key: value for key, value in change.items() if value is not None})
        if epoch_fraction is not None and experiment.epochs is not None:
            experiment = experiment.with_({"epochs": max(1, round(epoch_fraction * experiment.epochs))})
        experiment, folder = place(out, experiment)
        reason = lacks(experiment, folder)
        if reason and cell.stand_in:
            instead, there = place(out, experiment.with_({key: value for key, value in cell.stand_in.items() if key != "note"}))
            if not lacks(instead, there):
                experiment, folder, reason = instead, there, ""
                stood_in.add(cell.name)
        if reason:
            missing[cell.name] = reason
            continue
        count = study.seeds if seeds is None else seeds
        runs[cell.name] = tuple(
            Job(dataclasses.replace(experiment, name=experiment.algorithm, seed=seed), folder / f"seed-{seed}")
            for seed in range(experiment.seed, experiment.seed + count)
        )
    return Plan(study, chosen, runs, missing, frozenset(stood_in))


def matches(cell: Cell, pattern: str) -> bool:
    """Whether a pattern names a cell, its row or its column."""
    return any(fnmatch.fnmatchcase(text.lower(), pattern.lower()) for text in (cell.name, cell.row, cell.column))


def place(out: Path, experiment: Experiment) -> tuple[Experiment, Path]:
    """The folder of an experiment's runs, one a seed: a run is found again by what it is, not by the cell it stands in.

    Where there are none of it, but of the same experiment that tracks more, these serve: the experiment is then that one.
    """
    for track in (experiment.track, *_TRACKS):
        each = dataclasses.replace(experiment, track=track)
        made = sorted(out.glob(f"*-{code(each)}")) if {*experiment.track} <= {*track} else []
        if made:
            return each, made[0]
    return experiment, out / label(experiment.algorithm, experiment)


def label(name: str, experiment: Experiment) -> str:
    """A folder's name that no other experiment has.

    >>> label("fedavg + constrain", Experiment(algorithm="fedavg + constrain"))[:-8]
    'fedavg-constrain-'
    """
    return f"{re.sub(r'[^a-z0-9.]+', '-', name.lower()).strip('-.')[:40] or 'cell'}-{code(experiment)}"


def code(experiment: Experiment) -> str:
    """Eight digits that stand for the settings that a result depends on and that are not the usual ones, but for the seed."""
    plain = Experiment().settings()
    settings = {key: value for key, value in experiment.settings().items() if key not in _WITHOUT and value != plain.get(key)}
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]


@cache
def absent(data: str, data_dir: str, fetch: bool = True) -> str:
    """Why a data set cannot be read here; empty if it can. Without `fetch` only this machine is looked at, not the hub."""
    try:
        with nullcontext() if fetch else offline():
            read_data(data).load(Path(data_dir) if data_dir else None)
    except ValueError as error:
        return str(error)
    return ""


def play(planned: Plan, *, workers: int = 0, watch: Watch, analysed: Callable[[Path, str], None]) -> None:
    """Run what is not finished yet, then make the analyses that the cells read and the figures show."""
    jobs = planned.jobs
    if jobs:
        side_by_side(jobs, min(workers or cores(), len(jobs)), watch)
    shown = planned.study.figure.needs if planned.study.figure else ()
    for cell in planned.cells:
        for job in planned.runs.get(cell.name, ()):
            for name in (*cell.measure.analyses, *shown):
                if not (job.folder / "analysis" / f"{name}.json").is_file():
                    analysed(job.folder, name)
