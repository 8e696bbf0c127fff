"""What was measured in each cell, beside the paper's number: means over seeds, intervals, and what was reduced."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accord.reports.record import KEPT, Run, read_run
from accord.reports.sheet import NOTHING
from accord.reports.statistics import deviation, interval, mean
from accord.reproduce.play import Plan
from accord.reproduce.study import Cell

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Outcome:
    """One cell, and what its finished runs say. `reduced` tells in which way the runs are less than the paper's; empty if they are not."""

    cell: Cell
    folders: tuple[Path, ...]  # of the finished runs, or the files they are kept in
    by_seed: Mapping[int, float]
    rounds: int
    data: str
    reduced: tuple[str, ...]
    missing: str = ""  # why nothing was run

    @property
    def values(self) -> tuple[float, ...]:
        """What was measured, one number a seed."""
        return tuple(self.by_seed.values())

    @property
    def mean(self) -> float | None:
        """The mean over seeds."""
        return mean(self.values)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds; None of one seed."""
        return deviation(self.values)

    @property
    def difference(self) -> float | None:
        """Measured minus the paper's."""
        return None if self.mean is None or self.cell.number is None else self.mean - self.cell.number

    @property
    def inside(self) -> bool | None:
        """Whether the paper's number lies in the measured 95 % Student-t interval; None where one of them is absent."""
        ends = interval(self.values)
        return None if ends is None or self.cell.number is None else ends[0] <= self.cell.number <= ends[1]

    def record(self) -> dict[str, Any]:
        """The outcome as JSON has it."""
        ends = interval(self.values)
        return {
            "row": self.cell.row,
            "column": self.cell.column,
            "measure": repr(self.cell.measure),
            "unit": self.cell.unit,
            "paper": self.cell.number,
            "paper_deviation": self.cell.spread,
            "measured": self.mean,
            "deviation": self.deviation,
            "interval": list(ends) if ends else None,
            "difference": self.difference,
            "inside": self.inside,
            "seeds": len(self.values),
            "values": dict(self.by_seed),
            "rounds": self.rounds,
            "data": self.data,
            "reduced": list(self.reduced),
            "missing": self.missing,
            "runs": [str(folder) for folder in self.folders],
        }


def outcomes(plan: Plan) -> list[Outcome]:
    """What the runs of a plan have said so far, cell by cell."""
    return [_outcome(plan, cell) for cell in plan.cells]


def _outcome(plan: Plan, cell: Cell) -> Outcome:
    if not cell.measure.trained:
        return Outcome(cell, (), {cell.experiment.seed: cell.measure.known(cell.experiment)}, 0, "", ())
    planned = plan.runs.get(cell.name, ())
    runs = [run for each in planned if (run := finished(each.folder)) is not None]
    found = _by_seed(cell, runs)
    if cell.over:
        below = _by_seed(cell, [run for each in plan.runs.get(cell.base, ()) if (run := finished(each.folder)) is not None])
        found = {seed: value / below[seed] for seed, value in found.items() if below.get(seed)}
    experiment = planned[0].experiment if planned else cell.experiment
    reduced = []
    if experiment.rounds < cell.experiment.rounds:
        reduced.append(f"{experiment.rounds} of {cell.experiment.rounds} rounds")
    if experiment.data_fraction < cell.experiment.data_fraction:
        reduced.append(f"{100 * experiment.data_fraction / cell.experiment.data_fraction:.3g} % of the data")
    if (experiment.epochs or 0) < (cell.experiment.epochs or 0):
        reduced.append(f"{experiment.epochs} of {cell.experiment.epochs} local epochs")
    reduced += [f"seed {run.seed} diverged after round {run.result['rounds']}" for run in runs if run.stopped]
    seeds = len(runs) or len(planned)
    if seeds < plan.study.seeds:
        reduced.append(f"{seeds} of {plan.study.seeds} seeds")
    if cell.name in plan.stood_in:
        reduced.append(str(cell.stand_in.get("note", f"{experiment.data} stands in")))
    return Outcome(
        cell,
        tuple(run.path for run in runs),
        found,
        experiment.rounds,
        experiment.data,
        tuple(reduced),
        plan.missing.get(cell.name, ""),
    )


def _by_seed(cell: Cell, runs: Sequence[Run]) -> dict[int, float]:
    """What a cell reads off some runs."""
    return {run.seed: value for run in runs if (value := cell.measure.of(run)) is not None and math.isfinite(value)}


def finished(folder: Path) -> Run | None:
    """The run in a folder, or in the file beside it in which it is kept, if it is finished."""
    kept = folder.with_suffix(KEPT)
    if not kept.is_file() and not (folder / "result.json").is_file():
        return None
    run = read_run(kept if kept.is_file() else folder)
    return run if run.finished else None


def reasons(found: Sequence[Outcome]) -> list[str]:
    """What `reduced` stands for in the table, by number, and why cells were not run."""
    numbered = [f"reduced ({k}): {', '.join(why)}" for k, why in enumerate(_kinds(found), 1)]
    return numbered + [f"not run: {why}" for why in dict.fromkeys(each.missing for each in found if each.missing)]


def _kinds(found: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """The different ways in which cells are reduced."""
    return list(dict.fromkeys(each.reduced for each in found if each.reduced and not each.missing))


def table(found: Sequence[Outcome]) -> Table:
    """The cells for a terminal: the paper's number beside the measured one."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown, kinds = Table(box=box.SIMPLE_HEAD, pad_edge=False), _kinds(found)
    for heading in HEADINGS:
        words = heading in ("Row", "Column", "Reduced")
        shown.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for each in found:
        style = "dim" if each.missing else "yellow" if each.reduced else ""
        shown.add_row(*(Text(text, style=style) for text in cells_of(each, kinds)))
    return shown


HEADINGS = ("Row", "Column", "Paper", "Measured", "Seeds", "Rounds", "Difference", "In interval", "Reduced")


def cells_of(each: Outcome, kinds: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """The texts of one line of the table; `kinds` are the ways in which cells are reduced, which the reasons below it number."""
    at = digits(each.cell.number if each.mean is None else each.mean)
    deviations = [f" ± {value:.{at}f}" if value is not None else "" for value in (each.cell.spread, each.deviation)]
    paper = NOTHING if each.cell.number is None else f"{each.cell.number:.5g}{deviations[0]}"
    measured = NOTHING if each.mean is None else f"{each.mean:.{at}f}{deviations[1]}"
    inside = {None: NOTHING, True: "yes", False: "no"}[each.inside]
    difference = NOTHING if each.difference is None else f"{each.difference:+.{at}f}".replace("-", "−")
    said = "not run" if each.missing else f"reduced ({kinds.index(each.reduced) + 1})" if each.reduced else ""
    return each.cell.row, each.cell.column, paper, measured, str(len(each.values)), str(each.rounds), difference, inside, said


def digits(value: float | None) -> int:
    """How many decimals tables print of a number: two, more where it is small and none where it is large.

    >>> digits(59.66), digits(0.97), digits(23110.0)
    (2, 4, 0)
    """
    return 2 if value is None or 1 <= abs(value) < 1000 else 0 if abs(value) >= 1000 else 4


def markdown(found: Sequence[Outcome]) -> str:
    """The same table in Markdown.

    >>> markdown([]).splitlines()[0]
    '| Row | Column | Paper | Measured | Seeds | Rounds | Difference | In interval | Reduced |'
    """
    body = [tuple(text.replace("|", "\\|") for text in cells_of(each, _kinds(found))) for each in found]
    lines = [f"| {' | '.join(texts)} |" for texts in (HEADINGS, ("---",) * len(HEADINGS), *body)]
    return "\n".join([*lines, *(f"\n{why}" for why in reasons(found))]) + "\n"
