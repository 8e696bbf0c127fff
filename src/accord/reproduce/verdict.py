"""Whether a paper's claim held in what was measured: a difference paired by seed, with its interval."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accord.reports.statistics import interval, mean
from accord.reproduce.outcome import Outcome, digits
from accord.reproduce.study import Claim, Study


@dataclass(frozen=True)
class Verdict:
    """A claim, the measured differences by seed, and the unit they are in."""

    claim: Claim
    differences: tuple[float, ...]
    unit: str
    reduced: bool = False
    computed: bool = False  # nothing in it is left to chance

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
        if self.computed:
            return "held" if self.differences[0] > self.claim.by else "did not hold"
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
        alone = ", computed" if self.computed else ", one seed"
        at = 2 if self.unit == "points" else digits(middle)
        between = f" [{_signed(ends[0], at)}, {_signed(ends[1], at)}], {len(self.differences)} seeds" if ends else alone
        value = f"{_signed(middle, at)} {self.unit}".strip()
        return f"{value}{between}{', reduced' if self.reduced else ''}"


def _signed(value: float, decimals: int) -> str:
    return f"{value:+.{decimals}f}".replace("-", "−")


def verdicts(study: Study, found: Sequence[Outcome]) -> Iterator[Verdict]:
    """The verdicts on a study's claims, in its order."""
    by_name = {each.cell.name: each for each in found}
    for claim in study.claims:
        named = [by_name.get(side) for side in (claim.more, claim.less) if isinstance(side, str)]
        about = [each for each in named if each is not None]
        if len(about) < len(named):
            yield Verdict(claim, (), "")
            continue
        seeds = sorted(set.intersection(*(set(each.by_seed) for each in about)))
        more, less = ([by_name[side].by_seed[k] if isinstance(side, str) else side for k in seeds] for side in (claim.more, claim.less))
        differences = tuple(a - b for a, b in zip(more, less, strict=True))
        reduced, computed = any(each.reduced for each in about), not any(each.cell.measure.trained for each in about)
        yield Verdict(claim, differences, about[0].cell.unit.replace("%", "points"), reduced, computed)
