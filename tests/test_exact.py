"""Sums that are exact: against fractions, in any order and grouping, over the whole range of numbers."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from accord import exact
from accord.exact import Exact

Term = tuple[Tensor, float]


def wanted(terms: list[Term]) -> list[float]:
    """The same by fractions: each product rounded to double precision, their sum exact, then rounded."""
    rows = [(tensor.double() * weight).tolist() for tensor, weight in terms]
    return [float(sum(map(Fraction, column))) for column in zip(*rows, strict=True)]


def summed(terms: list[Term], groups: int = 1) -> Exact:
    parts = [Exact() for _ in range(groups)]
    for k, (tensor, weight) in enumerate(terms):
        parts[k % groups].add(tensor, weight)
    whole = Exact()
    for part in reversed(parts):
        whole.merge(part)
    return whole


def draw(count: int, size: int, dtype: torch.dtype, spread: float, seed: int = 0) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    scale = lambda: torch.exp2((torch.rand(size, generator=rng, dtype=torch.float64) - 0.5) * spread)  # noqa: E731
    return [(torch.randn(size, generator=rng, dtype=torch.float64) * scale()).to(dtype) for _ in range(count)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("spread", [0, 20, 80, 240])
@pytest.mark.parametrize("weights", [(1.0,), (500.0, 3.0), (0.1, 1e-7, 2.0**25 + 1)])
def test_it_is_the_exact_sum_rounded_once(dtype: torch.dtype, spread: float, weights: tuple[float, ...]) -> None:
    terms = [(t, weights[k % len(weights)]) for k, t in enumerate(draw(9, 50, dtype, spread))]
    for groups in (1, 2, 5):
        whole = summed(terms, groups)
        assert whole.value().tolist() == wanted(terms)
        assert whole.weights == sum(Fraction(weight) for _, weight in terms)


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    columns=st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=8),
    weights=st.lists(st.sampled_from([1.0, 7.0, 2.0**20, 0.3, -2.0]), min_size=8, max_size=8),
    groups=st.integers(1, 4),
    order=st.permutations(range(8)),
)
def test_no_order_and_no_grouping_changes_a_bit(columns: list[list[float]], weights: list[float], groups: int, order: list[int]) -> None:
    terms = [(torch.tensor(column), weight) for column, weight in zip(columns, weights, strict=False)]
    shuffled = [terms[k] for k in order if k < len(terms)]
    assert summed(shuffled, groups).value().tolist() == wanted(terms)


def test_the_ends_of_the_range() -> None:
    tiny, huge = 2.0**-149, 3.0e38
    assert summed(
        [(torch.tensor([tiny, huge]), 1.0), (torch.tensor([1.0, -huge]), 1.0), (torch.tensor([-1.0, tiny]), 1.0)]
    ).value().tolist() == [
        tiny,
        tiny,
    ]
    least = torch.tensor([5e-324], dtype=torch.float64)
    assert summed(
        [(least, 1.0), (least, 1.0), (torch.tensor([1e200], dtype=torch.float64), 1.0), (torch.tensor([-1e200], dtype=torch.float64), 1.0)]
    ).value().tolist() == [1e-323]


def test_what_is_not_finite_stays_where_it_is() -> None:
    found = summed(
        [(torch.tensor([math.inf, math.nan, math.inf, 1.0]), 2.0), (torch.tensor([1.0, 1.0, -math.inf, 2.0**-60]), 1.0)], 2
    ).value()
    assert found[0] == math.inf
    assert found[1:3].isnan().all()
    assert found[3] == 2.0
    assert summed([(torch.tensor([1.0]), math.nan)]).value().isnan()
    assert summed([(torch.tensor([1e308], dtype=torch.float64), 1.0)] * 2).value().tolist() == [math.inf]


@pytest.mark.parametrize("groups", [1, 3])
def test_long_sums_are_cut_anew_before_bits_run_out(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "_ROOM", 20)
    terms = [(t, 7.0) for t in draw(40, 30, torch.float32, 30)] + [(t, 0.1) for t in draw(40, 30, torch.float64, 30)]
    assert summed(terms, groups).value().tolist() == wanted(terms)


def test_the_largest_sums_that_a_grid_may_hold() -> None:
    """Weights of a million samples, all numbers at the top of their grid: as many as fit, and then more."""
    most = torch.full((3,), 1 - 2.0**-24)
    whole = Exact()
    whole.add(most, 2.0**20)
    for _ in range(12):
        twice = Exact()
        twice.merge(whole)
        twice.merge(whole)
        whole = twice
    assert whole.value().tolist() == [2.0**32 * (1 - 2.0**-24)] * 3


def test_chunks_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = [(t, 3.0) for t in draw(4, 100, torch.float32, 60)]
    before = summed(terms).value()
    monkeypatch.setattr(exact, "_CHUNK", 7)
    assert summed(terms, 2).value().equal(before)
    assert before.tolist() == wanted(terms)


def test_shapes_are_kept_and_nothing_given_is_changed() -> None:
    for shape in ((), (0,), (2, 3)):
        tensor = torch.full(shape, 0.1)
        given_ = tensor.clone()
        one = Exact()
        one.add(tensor, 3)
        assert one.value().shape == shape
        assert tensor.equal(given_)
        other = Exact()
        other.merge(one)
        other.merge(one)
        assert torch.allclose(one.value(), torch.full(shape, 0.3, dtype=torch.float64))
        assert torch.allclose(other.value(), torch.full(shape, 0.6, dtype=torch.float64))
