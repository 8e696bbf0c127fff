"""The statistics against hand-computed values and scipy's paired t-test."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from fabricated import write_comparison

from accord.reports.record import Comparison, Run, load
from accord.reports.statistics import Row, interval, summarise, verdict_of


def made(accuracies: Mapping[str, Mapping[int, float | None]], **more: object) -> Comparison:
    """A comparison with these final accuracies by name and seed; None is an unfinished run."""
    return Comparison({name: tuple(run(name, s, a) for s, a in by_seed.items()) for name, by_seed in accuracies.items()}, **more)  # type: ignore[arg-type]


def run(name: str, seed: int, accuracy: float | None) -> Run:
    rounds = tuple({"round": r, "evaluation": {"global": {"accuracy": 0.1 * r}}} for r in range(1, 10))
    result = {} if accuracy is None else {"accuracy": accuracy, "bytes_up": 1_500_000, "bytes_down": 500_000, "seconds": 3.0 + seed}
    return Run(Path(name), name, seed, {}, rounds, result)


def verdicts(rows: Sequence[Row]) -> list[str]:
    return [row.verdict for row in rows]


def test_hand_computed_values() -> None:
    """Differences 1, 2, 3 points: mean 2, sd 1, t(0.975, 2) = 4.302653, so 2 ± 2.484138."""
    base, other = summarise(made({"a": {0: 0.50, 1: 0.60, 2: 0.70}, "b": {0: 0.51, 1: 0.62, 2: 0.73}}))
    assert (base.seeds, base.verdict, base.difference, base.low) == (3, "baseline", None, None)
    assert base.mean == pytest.approx(0.6)
    assert base.sd == pytest.approx(0.1)
    assert other.difference == pytest.approx(0.02)
    assert other.low == pytest.approx(0.02 - 0.02484138, abs=1e-7)
    assert other.high == pytest.approx(0.02 + 0.02484138, abs=1e-7)
    assert other.verdict == "not distinguishable"
    assert (other.megabytes, other.seconds, other.pairs) == (2.0, 4.0, 3)


@pytest.mark.parametrize("seeds", [2, 3, 5, 20])
def test_intervals_are_those_of_scipys_paired_t(seeds: int) -> None:
    from scipy.stats import ttest_rel

    draw = random.Random(seeds)
    a, b = ({s: draw.uniform(0.4, 0.9) for s in range(seeds)} for _ in range(2))
    row = summarise(made({"a": a, "b": b}))[1]
    known = ttest_rel(list(b.values()), list(a.values()))
    low, high = known.confidence_interval(0.95)
    assert (row.low, row.high) == (pytest.approx(low), pytest.approx(high))
    assert (row.verdict == "not distinguishable") == (known.pvalue > 0.05)


def test_pairs_are_by_seed_and_not_by_place() -> None:
    row = summarise(made({"a": {0: 0.5, 1: 0.9}, "b": {1: 0.92, 0: 0.52, 2: 0.1}}))[1]
    assert row.difference == pytest.approx(0.02)
    assert (row.seeds, row.pairs, row.verdict) == (3, 2, "better")


def test_no_variance_gives_an_interval_of_no_width() -> None:
    base = {0: 0.25, 1: 0.5, 2: 0.75}
    rows = summarise(
        made({"a": base, "same": base, "up": {s: a + 0.125 for s, a in base.items()}, "down": {s: a - 0.125 for s, a in base.items()}})
    )
    assert verdicts(rows) == ["baseline", "not distinguishable", "better", "worse"]
    assert (rows[1].low, rows[1].high) == (0.0, 0.0)
    assert (rows[2].low, rows[2].high) == (0.125, 0.125)


def test_one_seed_and_no_pair_distinguish_nothing() -> None:
    rows = summarise(made({"a": {0: 0.5}, "b": {0: 0.9}, "c": {1: 0.9}, "d": {0: None}}))
    assert verdicts(rows) == ["baseline", "one seed", "no pair", "no pair"]
    assert rows[1].difference == pytest.approx(0.4)
    assert (rows[1].low, rows[1].sd) == (None, None)
    assert (rows[3].mean, rows[3].unfinished, rows[3].seeds, rows[3].megabytes) == (None, 1, 0, None)


def test_unfinished_runs_count_as_such_and_in_nothing_else() -> None:
    rows = summarise(made({"a": {0: 0.5, 1: None}, "b": {0: 0.6, 1: 0.6}}, absent=(("b", 2),)))
    assert [(row.seeds, row.unfinished, row.pairs) for row in rows] == [(1, 1, 0), (2, 1, 1)]


def test_an_accuracy_that_is_not_a_number_is_no_result() -> None:
    assert summarise(made({"a": {0: math.nan, 1: 0.5}}))[0].mean == 0.5


def test_the_order_is_the_given_one_and_the_baseline_may_be_any() -> None:
    comparison = made({"c": {0: 0.1, 1: 0.2}, "a": {0: 0.9, 1: 0.9}, "b": {0: 0.5, 1: 0.4}})
    assert [row.algorithm for row in summarise(comparison)] == ["c", "a", "b"]
    assert verdicts(summarise(comparison, baseline="b"))[2] == "baseline"
    with pytest.raises(ValueError, match="'bb' is not in the comparison"):
        summarise(comparison, baseline="bb")


def test_rounds_to_the_target() -> None:
    comparison = made({"a": {0: 0.45, 1: 0.55}, "b": {0: 0.9, 1: None}})
    base, other = summarise(comparison)
    assert (base.target, base.target_is) == (0.5, "baseline's mean")
    assert (base.rounds_to_target, base.reached) == (5.0, 2)
    assert (other.rounds_to_target, other.reached) == (5.0, 1)
    never = summarise(comparison, target=0.95)[0]
    assert (never.rounds_to_target, never.reached, never.target_is) == (None, 0, "given")


def test_the_comparisons_own_target_counts_unless_another_is_given(tmp_path: Path) -> None:
    comparison = load(write_comparison(tmp_path, {"a": 0.0, "b": 0.1}, target=0.5))
    assert summarise(comparison)[0].target == 0.5
    assert summarise(comparison, target=0.6)[0].target == 0.6


def test_an_interval_needs_two_values() -> None:
    assert interval([]) is None
    assert interval([0.5]) is None
    assert verdict_of([]) == "no pair"
