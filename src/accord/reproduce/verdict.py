"""Whether a paper's claim held in what was measured: a difference paired by seed, with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accord.reports.statistics import interval, mean
from accord.reproduce.outcome import Outcome
from accord.reproduce.study import Claim, Study


@dataclass(frozen=True)
class Verdict:
    """A claim, the measured differences by seed, and the unit they are in."""

    claim: Claim
    differences: tuple[float, ...]
    unit: str
    reduced: bool = False

    @property
    def word(self) -> str:
        """What may be said.

        >>> claim = Claim("A is above B", "A", "B")
        >>> [Verdict(claim, d, "%").word for d in ((), (2.0,), (-2.0,), (1.0, 1.1), (-1.0, 1.5), (-1.0, -1.1))]
        ['not tested', 'one seed, the same way', 'one seed, the other way', 'held', 'not settled', 'did not hold']
        """
        if not self.differences:
            return "not tested"
        ends = interval(self.differences)
        if ends is None:
            return "one seed, the same way" if self.differences[0] > self.claim.by else "one seed, the other way"
        return "held" if ends[0] > self.claim.by else "did not hold" if ends[1] < self.claim.by else "not settled"

    @property
    def measured(self) -> str:
        """The difference in words.

        >>> Verdict(Claim("", "A", "B"), (1.0, 2.0), "points").measured
        '+1.50 points [−4.85, +7.85], 2 seeds'
        """
        middle, ends = mean(self.differences), interval(self.differences)
        if middle is None:
            return "–"
        between = f" [{_signed(ends[0])}, {_signed(ends[1])}], {len(self.differences)} seeds" if ends else ", one seed"
        return f"{_signed(middle)} {self.unit}{between}{', reduced' if self.reduced else ''}"


def _signed(value: float) -> str:
    text = f"{value:+.2f}" if abs(value) < 1000 else f"{value:+.3g}"
    return text.replace("-", "−")


def verdicts(study: Study, found: Sequence[Outcome]) -> Iterator[Verdict]:
    """The verdicts on a study's claims, in its order."""
    by_name = {each.cell.name: each for each in found}
    for claim in study.claims:
        more, less = by_name.get(claim.more), by_name.get(claim.less)
        if more is None or less is None:
            yield Verdict(claim, (), "")
            continue
        both = sorted(set(more.by_seed) & set(less.by_seed))
        unit = more.cell.unit.replace("%", "points")
        differences = tuple(more.by_seed[seed] - less.by_seed[seed] for seed in both)
        yield Verdict(claim, differences, unit, bool(more.reduced or less.reduced))
