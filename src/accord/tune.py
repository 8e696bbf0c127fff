"""Tuning: as many trials for each method, scored on clients that set their data aside, and then one comparison on the test set."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accord.checkpoint import write_atomically
from accord.compare import Cell, Watch, cells, compare, side_by_side, unique, verify
from accord.experiment import Experiment
from accord.presets import Preset, pieces
from accord.recipe import brief
from accord.rules import SGD
from accord.run import finished, make

TUNING = 1_000_000  # added to the seed of trials, so that no trial shares its seed with the comparison


@dataclass(frozen=True)
class Trial:
    """One candidate of a method: a recipe with its arguments and learning rate, and the run."""

    method: str
    text: str
    cell: Cell

    @property
    def score(self) -> float | None:
        """The mean accuracy of the validation clients at the end; None while it runs, or when it diverged."""
        if not (self.cell.folder / "result.json").is_file():
            return None
        new: Mapping[str, float] = finished(self.cell.folder)["evaluation"].get("new", {})
        return new.get("mean")


def trials(base: Experiment, methods: Sequence[str], preset: Preset, count: int, out: Path) -> list[Trial]:
    """`count` candidates for each method, trained without the validation clients and evaluated on these alone.

    >>> from accord.presets import preset
    >>> base = Experiment(held_out=4, lr=0.01)
    >>> [t.text for t in trials(base, ["fedavg", "fedsol"], preset("fedsol"), 2, Path("out"))][:3]
    ['fedavg + sgd(lr=0.01)', 'fedavg + sgd(lr=0.003)', 'fedsol(rho=2.0) + sgd(lr=0.01)']
    """
    if not base.held_out:
        raise ValueError("held_out is 0; tuning scores candidates on held-out clients: write at least 1")
    twice = [text for k, text in enumerate(methods) if text in methods[:k]]
    if twice:
        raise ValueError(f"{twice[0]!r} is given twice: name each method once")
    planned = []
    for method, slug in zip(methods, unique([cell.folder.parent.name for cell in cells(base, methods, 1, out)]), strict=True):
        grid = preset.grid(method, dataclasses.replace(base, algorithm=method).recipe().rule.lr)
        if count > len(grid):
            raise ValueError(
                f"{method!r} has {len(grid)} settings to try: write --trials {len(grid)} or fewer, so that each method has as many"
            )
        for k, (recipe, lr) in enumerate(grid[:count]):
            text = with_lr(recipe, dataclasses.replace(base, algorithm=recipe).recipe().rule, lr)
            experiment = dataclasses.replace(
                base, algorithm=text, name=text, lr=None, seed=base.seed + TUNING, evaluate=("new",), evaluate_every=base.rounds
            )
            planned.append(Trial(method, text, Cell(experiment, out / "trials" / slug / f"{k}")))
    return planned


def with_lr(recipe: str, rule: SGD, lr: float) -> str:
    """The recipe with this local optimiser at another learning rate.

    >>> with_lr("fedavg + sgd(epochs=2)", SGD(epochs=2), 0.1)
    'fedavg + sgd(lr=0.1, epochs=2)'
    """
    others = [piece for piece in pieces(recipe) if not piece.startswith(f"{rule.name}(") and piece != rule.name]
    return " + ".join([*others, brief(dataclasses.replace(rule, lr=lr))])


def tune(
    planned: Sequence[Trial], base: Experiment, seeds: int, out: Path, *, workers: int, target: float | None, watch: Watch
) -> list[Cell]:
    """Run the trials, choose the best of each method, and compare the chosen ones on the test set with seeds of their own."""
    verify([trial.cell for trial in planned])
    make(out)
    side_by_side([trial.cell for trial in planned], max(1, min(workers, len(planned))), watch)
    chosen = best(planned)
    record = {
        "trials": [{"method": t.method, "algorithm": t.text, "score": t.score, "run": str(t.cell.folder)} for t in planned],
        "chosen": {method: {"algorithm": t.text, "score": t.score} for method, t in chosen.items()},
    }
    write_atomically(out / "tune.json", json.dumps(record, indent=1))
    final = cells(dataclasses.replace(base, lr=None), [trial.text for trial in chosen.values()], seeds, out)
    compare(final, out, workers=workers, target=target, watch=watch)
    return final


def best(planned: Sequence[Trial]) -> dict[str, Trial]:
    """The candidate of each method with the highest score; of equal ones the first."""
    found: dict[str, Trial] = {}
    for trial in planned:
        score, held = trial.score, found.get(trial.method)
        if score is not None and (held is None or score > (held.score or 0.0)):
            found[trial.method] = trial
    lost = [trial.method for trial in planned if trial.method not in found]
    if lost:
        raise ValueError(f"no trial of {lost[0]!r} ended with a score: see {planned[0].cell.folder.parent.parent}")
    return found
