"""Weighted sums of tensors without rounding error, so that neither order nor grouping can change a bit of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

_STEP = 23  # bits between the grids: a single-precision number minus its multiple of one grid is still a number
_CHUNK = 1 << 17  # numbers at a time, so that they stay in the cache
_ROOM = 1 << 29  # so many units can be added on one grid before double precision runs out of bits
_WHOLE = 1 << 20  # weights up to this multiply single precision without rounding
_HUGE = 2.0**900


class Exact:
    """The sum of weight times tensor over all that was added, as the exact sum rounded once to double precision.

    Each tensor is cut into slices: multiples of `2^g` of at most `2^(g+22)`, for grids `g` that are 23 bits apart. Slices of one grid add
    up in double precision without rounding (the pre-rounding of Demmel and Nguyen, 2013, with as many grids as the numbers need). What
    multiplies single precision is a whole number, or the product is first rounded to double precision, for each tensor by itself.

    >>> one, other = Exact(), Exact()
    >>> one.add(torch.tensor([1e20, 1.0]))
    >>> one.add(torch.tensor([1.0, 2.0]), weight=0.1)
    >>> other.add(torch.tensor([-1e20, 0.0]))
    >>> one.merge(other)
    >>> one.value()
    tensor([0.1000, 1.2000], dtype=torch.float64)
    """

    def __init__(self) -> None:
        self.shape: torch.Size | None = None
        self.weights = Fraction(0)
        self.grids: dict[int, Tensor] = {}  # by g: sums of multiples of 2^g
        self.units = 0  # how many times 2^(g+22) a grid's sum may have come to
        self.wild: Tensor | None = None  # the plain sum of numbers that are not finite, or huge

    def add(self, tensor: Tensor, weight: float = 1.0) -> None:
        """Add weight times tensor."""
        self.weights += Fraction(weight) if math.isfinite(weight) else 0
        self._start(tensor)
        flat = tensor.detach().reshape(-1)
        whole = float(weight).is_integer() and abs(weight) <= _WHOLE
        for start in range(0, flat.numel(), _CHUNK):
            part = flat[start : start + _CHUNK]
            low, high = torch.aminmax(part)
            most = max(-float(low), float(high))
            if part.dtype is torch.float32 and whole and most < 2.0**100:
                self._deposit(part, start, most, weight)
            else:
                self._add_double(part.double() * weight, start)
        self._use(int(max(abs(weight), 1)) if whole else 1)

    def merge(self, other: Exact) -> None:
        """Add what another sum holds."""
        if other.shape is None:
            return
        for g, total in other.grids.items():
            self._grid(g, total).add_(total)
        if other.wild is not None:
            self.wild = other.wild.clone() if self.wild is None else self.wild.add_(other.wild)
        self.shape, self.weights = other.shape, self.weights + other.weights
        self._use(other.units)

    def value(self) -> Tensor:
        """The sum, in double precision."""
        assert self.shape is not None, "nothing was added"
        high, *others = (self.grids[g] for g in sorted(self.grids, reverse=True))
        if len(others) < 2:
            total = high + others[0] if others else high.clone()
        else:
            total = _rounded([high, *others])
        if self.wild is not None:
            total = total + self.wild
        return total.view(self.shape)

    def _start(self, tensor: Tensor) -> None:
        if self.shape is None:
            self.shape = tensor.shape
            self.grids[-22] = torch.zeros(tensor.numel(), dtype=torch.float64, device=tensor.device)

    def _grid(self, g: int, like: Tensor) -> Tensor:
        if g not in self.grids:
            known = next(iter(self.grids.values()), like)
            self.grids[g] = torch.zeros_like(known)
        return self.grids[g]

    def _deposit(self, left: Tensor, start: int, most: float, weight: float) -> None:
        """Cut numbers of at most this size into slices, from the coarsest grid down to where nothing is left."""
        digits = 23 if left.dtype is torch.float32 else 52
        g, cuts = _top(most), 0
        while most:
            shift = 1.5 * 2.0 ** (digits + g)
            slice_ = (left + shift).sub_(shift)
            self._grid(g, left)[start : start + len(left)].add_(slice_.double(), alpha=weight)
            left, g, cuts = torch.sub(left, slice_, out=slice_), g - _STEP, cuts + 1
            most = float(left.abs().sum()) if cuts > 1 else most  # one cut is hardly ever enough

    def _add_double(self, numbers: Tensor, start: int) -> None:
        wild = ~(numbers.abs() < _HUGE)
        if wild.any():
            if self.wild is None:
                self.wild = torch.zeros_like(next(iter(self.grids.values())))
            self.wild[start : start + len(numbers)].add_(numbers.where(wild, 0.0))
            numbers = numbers.where(~wild, 0.0)
        self._deposit(numbers, start, float(numbers.abs().max()), 1.0)

    def _use(self, units: int) -> None:
        """Note that so many units were added; before the grids run out of bits their sums are cut anew."""
        self.units += units
        if self.units > _ROOM:
            full, self.grids, self.units = self.grids, {}, 1
            for total in full.values():
                self._grid(-22, total)
                for start in range(0, len(total), _CHUNK):
                    part = total[start : start + _CHUNK]
                    self._deposit(part, start, float(part.abs().max()), 1.0)
                self.units += 1


def _top(most: float) -> int:
    """The finest grid, of those that are `_STEP` apart, whose slices hold numbers of this size."""
    return math.ceil(math.frexp(most)[1] / _STEP) * _STEP - 22


def _rounded(terms: Sequence[Tensor]) -> Tensor:
    """The sum of a few vectors, rounded once."""
    high, low, rest = terms[0], torch.zeros_like(terms[0]), torch.zeros_like(terms[0], dtype=torch.bool)
    for term in terms[1:]:
        high, error = _two_sum(high, term)
        low, error = _two_sum(low, error)
        rest |= error != 0
    total = high + low
    where = rest.nonzero().flatten()
    numbers = torch.stack([term[where] for term in terms], 1).tolist()
    total[where] = torch.tensor([math.fsum(row) for row in numbers], dtype=total.dtype, device=total.device)
    return total


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum and its rounding error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)
