"""What a cell of a paper's table holds: pieces that read one number off a finished run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from accord.check import Count, Fraction
from accord.recipe import named
from accord.reports.record import Run, number
from accord.reports.statistics import mean

if TYPE_CHECKING:
    from accord.experiment import Experiment


class Measure:
    """A number of a finished run, in the unit in which papers print it."""

    kind: ClassVar[str] = "measure"
    name: str
    unit: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()  # analyses that must have been made of the run
    trained: ClassVar[bool] = True  # whether it is read off a run; else it is known from the experiment alone

    def known(self, experiment: Experiment) -> float:
        """The number of an experiment that need not be run."""
        raise TypeError(f"{type(self).__name__} is read off a run")

    def of(self, run: Run) -> float | None:
        """The number; None where the run has none."""
        raise TypeError(f"{type(self).__name__} does not say what it reads")

    @property
    def analyses(self) -> Sequence[str]:
        """The analyses to make of the run before it is read."""
        return self.needs


@named
class Accuracy(Measure):
    """The final accuracy in per cent: `of` the global test set, of the clients' own data, after personalisation, or of new clients.

    With `last` it is the mean over the evaluations of the last so many rounds, as in FedOptz's tables.
    """

    unit: ClassVar[str] = "%"

    on: Literal["global", "local", "personal", "new"] = "global"
    last: Count = 1

    def of(self, run: Run) -> float | None:
        curve = run.curve(self.on)
        if not curve.rounds:
            return None
        end = curve.rounds[-1]
        kept = [a for r, a in zip(curve.rounds, curve.accuracy, strict=True) if r > end - self.last]
        found = mean(kept)
        return None if found is None else 100 * found


@named
class Spread(Measure):
    """The standard deviation of the final accuracy over clients, in percentage points."""

    unit: ClassVar[str] = "points"

    on: Literal["local", "personal", "new"] = "personal"

    def of(self, run: Run) -> float | None:
        found = run.evaluations(self.on)
        spread = number(found[-1][1].get("spread")) if found else None
        return None if spread is None else 100 * spread


@named
class RoundsTo(Measure):
    """The first evaluated round that reaches an accuracy on the global test set; none if no round does."""

    unit: ClassVar[str] = "rounds"

    accuracy: Fraction

    def of(self, run: Run) -> float | None:
        found = run.curve().first(self.accuracy)
        return None if found is None else float(found)


@named
class GigabitsTo(Measure):
    """Gigabits that all clients send up until an accuracy is reached (FedAlign, Table 8)."""

    unit: ClassVar[str] = "Gb"

    accuracy: Fraction

    def of(self, run: Run) -> float | None:
        rounds = run.curve().first(self.accuracy)
        if rounds is None:
            return None
        up = sum(row.get("bytes_up") or 0 for row in run.rounds if row["round"] <= rounds)
        return 8 * up / 1e9


@named
class Flops(Measure):
    """Millions of multiply-adds in the forward passes of training on one sample (FedAlign, Table 5).

    With `to` times the rounds until that accuracy, which is what its Table 8 prints. An operation is half a multiply-add.
    """

    unit: ClassVar[str] = "MFLOPs"
    needs: ClassVar[tuple[str, ...]] = ("cost",)

    to: Fraction | None = None

    def of(self, run: Run) -> float | None:
        found = Analysis("cost", "forward_multiply_adds").of(run)
        rounds = 1 if self.to is None else run.curve().first(self.to)
        return None if found is None or rounds is None else found * rounds / 2e6


@named
class Stored(Measure):
    """Parameters that a client stores in training, in millions: its model, and what its method holds beside it.

    Scales and shifts of normalisation are left out, as in FedAlign's tables.
    """

    unit: ClassVar[str] = "M"
    needs: ClassVar[tuple[str, ...]] = ("cost",)

    def of(self, run: Run) -> float | None:
        found = Analysis("cost", "stored_without_norm").of(run)
        return None if found is None else found / 1e6


@named
class Seconds(Measure):
    """Seconds a round on this machine."""

    unit: ClassVar[str] = "s"

    def of(self, run: Run) -> float | None:
        return mean([row["seconds"] for row in run.rounds if number(row.get("seconds")) is not None])


@named
class Heterogeneity(Measure):
    """How far the clients' shares of the classes lie from those of all: 0 for alike, towards 1 for clients of one class each."""

    def of(self, run: Run) -> float | None:
        return number(run.federation.get("heterogeneity"))


@named
class Held(Measure):
    """How many classes a client has samples of, on average."""

    unit: ClassVar[str] = "classes"

    def of(self, run: Run) -> float | None:
        return mean([sum(count > 0 for count in counts) for counts in run.federation.get("counts", [])])


@named
class Tracked(Measure):
    """A number that `track` recorded in the last round: `tracked('drift.consistency')`, `tracked('knowledge.mean', percent=True)`.

    With `last` it is the mean over the last so many rounds.
    """

    entry: str
    last: Count = 1
    percent: bool = False

    @property
    def unit(self) -> str:  # type: ignore[override]
        """Per cent, if it is asked for."""
        return "%" if self.percent else ""

    def of(self, run: Run) -> float | None:
        held = mean([value for row in run.rounds[-self.last :] if (value := inside(row, self.entry)) is not None])
        return None if held is None else 100 * held if self.percent else held


@named
class Analysis(Measure):
    """A number of an analysis of the final model: `analysis(curvature, convexity)` is `values.convexity` of `analysis/curvature.json`."""

    file: str
    entry: str

    @property
    def analyses(self) -> Sequence[str]:
        return (self.file,)

    def of(self, run: Run) -> float | None:
        return inside(run.analysis.get(self.file, {}).get("values"), self.entry)


def inside(held: object, entry: str) -> float | None:
    """The number at a place in nested tables and lists; in a list, -1 is the last.

    >>> inside({"drift": {"cosine": [0.9, 0.8]}}, "drift.cosine.-1"), inside({}, "drift.cosine.0")
    (0.8, None)
    """
    for key in entry.split("."):
        if isinstance(held, list) and re.fullmatch(r"-?\d+", key):
            place = int(key)
            held = held[place] if -len(held) <= place < len(held) else None
        else:
            held = held.get(key) if isinstance(held, Mapping) else None
    return number(held)
