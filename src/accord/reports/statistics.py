"""What a comparison says: means over seeds, and differences paired by seed with their intervals, in the given order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from accord.check import listed, nearest
from accord.reports.record import Comparison, Run

Verdict: TypeAlias = Literal["baseline", "better", "worse", "not distinguishable", "one seed", "no pair"]


@dataclass(frozen=True)
class Row:
    """One algorithm of a comparison. Accuracies are fractions; the means are over its finished runs.

    `low` and `high` are the ends of the 95 % Student-t interval of `difference`, over `pairs` seeds that both finished.
    `target` is the accuracy that `rounds_to_target` counts to; `target_is` says where it comes from.
    """

    algorithm: str
    seeds: int
    mean: float | None
    sd: float | None
    difference: float | None
    low: float | None
    high: float | None
    verdict: Verdict
    rounds_to_target: float | None
    reached: int
    megabytes: float | None
    seconds: float | None
    unfinished: int
    pairs: int
    baseline: str
    target: float | None
    target_is: Literal["given", "baseline's mean"]


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean; None of nothing.

    >>> mean([1.0, 2.0])
    1.5
    """
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float | None:
    """The sample standard deviation (n - 1); None of fewer than two values.

    >>> deviation([1.0, 3.0]) == 2**0.5
    True
    """
    if len(values) < 2:
        return None
    middle = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / (len(values) - 1))


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """The Student-t interval of a mean, mean ± t(level, n - 1) sd / √n; None of fewer than two values.

    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    from scipy.special import stdtrit

    middle, spread = mean(values), deviation(values)
    if middle is None or spread is None:
        return None
    half = float(stdtrit(len(values) - 1, 0.5 + level / 2)) * spread / math.sqrt(len(values))
    return middle - half, middle + half


def pairs(comparison: Comparison, algorithm: str, baseline: str) -> dict[int, float]:
    """The difference in final accuracy to the baseline at every seed that both finished.

    >>> from pathlib import Path
    >>> run = lambda name, accuracy: Run(Path(name), name, 0, {}, result={"accuracy": accuracy})
    >>> pairs(Comparison({"a": (run("a", 0.5),), "b": (run("b", 0.75),)}), "b", "a")
    {0: 0.25}
    """
    base = {run.seed: run.accuracy for run in comparison.runs[baseline]}
    found = ((run.seed, run.accuracy, base.get(run.seed)) for run in comparison.runs[algorithm])
    return {seed: ours - theirs for seed, ours, theirs in found if ours is not None and theirs is not None}


def verdict_of(differences: Sequence[float]) -> Verdict:
    """What the paired differences allow to say: an interval that includes zero distinguishes nothing.

    >>> verdict_of([0.01, 0.02, 0.015]), verdict_of([0.01, -0.01]), verdict_of([0.1])
    ('better', 'not distinguishable', 'one seed')
    """
    ends = interval(differences)
    if ends is None:
        return "one seed" if differences else "no pair"
    noise = 1e-12  # of a difference of equal fractions
    return "better" if ends[0] > noise else "worse" if ends[1] < -noise else "not distinguishable"


def summarise(comparison: Comparison, baseline: str | None = None, target: float | None = None) -> list[Row]:
    """One row per algorithm, in the given order.

    The baseline is the first algorithm unless named. The target is the one given here, else the comparison's, else the
    baseline's mean final accuracy.

    >>> from pathlib import Path
    >>> run = lambda name, seed, accuracy: Run(Path(name), name, seed, {}, result={"accuracy": accuracy})
    >>> a, b = (run("a", 0, 0.5), run("a", 1, 0.6)), (run("b", 0, 0.7), run("b", 1, 0.8))
    >>> [(row.algorithm, row.verdict) for row in summarise(Comparison({"a": a, "b": b}))]
    [('a', 'baseline'), ('b', 'better')]
    """
    names = comparison.algorithms
    chosen = names[0] if baseline is None else baseline
    if chosen not in names:
        raise ValueError(f"the baseline {chosen!r} is not in the comparison{nearest(chosen, names)}; it must be {listed(names)}")
    wanted = comparison.target if target is None else target
    if wanted is not None:
        return [_row(comparison, name, chosen, wanted, "given") for name in names]
    own = mean([run.accuracy for run in comparison.runs[chosen] if run.accuracy is not None])
    return [_row(comparison, name, chosen, own, "baseline's mean") for name in names]


def _row(comparison: Comparison, name: str, baseline: str, target: float | None, target_is: Literal["given", "baseline's mean"]) -> Row:
    runs = [run for run in comparison.runs[name] if run.accuracy is not None]
    accuracies = [run.accuracy for run in runs if run.accuracy is not None]
    differences = [] if name == baseline else list(pairs(comparison, name, baseline).values())
    ends = interval(differences)
    reached = [r for run in runs if (r := rounds_to(run, target, comparison.kind)) is not None]
    return Row(
        algorithm=name,
        seeds=len(runs),
        mean=mean(accuracies),
        sd=deviation(accuracies),
        difference=mean(differences),
        low=ends[0] if ends else None,
        high=ends[1] if ends else None,
        verdict="baseline" if name == baseline else verdict_of(differences),
        rounds_to_target=mean(reached),
        reached=len(reached),
        megabytes=mean([(run.result.get("bytes_up", 0) + run.result.get("bytes_down", 0)) / 1e6 for run in runs]),
        seconds=mean([run.result.get("seconds", 0.0) for run in runs]),
        unfinished=len(comparison.runs[name]) - len(runs) + sum(n == name for n, _ in comparison.absent),
        pairs=len(differences),
        baseline=baseline,
        target=target,
        target_is=target_is,
    )


def rounds_to(run: Run, target: float | None, kind: str = "global") -> int | None:
    """The first evaluated round at which a run is at least as accurate as the target.

    >>> from pathlib import Path
    >>> row = {"round": 5, "evaluation": {"global": {"accuracy": 0.5}}}
    >>> rounds_to(Run(Path("a"), "a", 0, {}, (row,)), 0.5)
    5
    """
    return None if target is None else run.curve(kind).first(target)
