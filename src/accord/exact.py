"""Weighted sums of tensors without rounding error, so that neither order nor grouping can change a bit of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

_STEP = 32  # bits between the grids
_TOP = 4  # the largest slices of one of the grids are of size 2^4: most changes of weights then end two grids down
_CHUNK = 1 << 16  # numbers at a time, so that they stay in the cache
_ROOM = 1 << 20  # so many units can be added on one grid before double precision runs out of bits
_WHOLE = 1 << 20  # weights up to this multiply single precision without rounding
_HUGE = 2.0**900


class Exact:
    """The sum of weight times tensor over all that was added, as the exact sum rounded once to double precision.

    Each tensor is cut into slices: multiples of `2^g` of at most `2^(g+32)`, for grids `g` that are 32 bits apart. Slices of one grid add
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
        self.units = 0  # how many times 2^(g+32) a grid's sum may have come to
        self.wild: Tensor | None = None  # the plain sum of numbers that are not finite, or huge
        self._rows: list[tuple[float, Tensor]] = []  # what waits to be cut, so that small tensors are cut together
        self._units = 0  # of what waits

    def __getstate__(self) -> dict[str, Any]:
        self._settle()
        return self.__dict__

    def add(self, tensor: Tensor, weight: float = 1.0) -> None:
        """Add weight times tensor, which must stay as it is until the sum is read."""
        self.weights += Fraction(weight) if math.isfinite(weight) else 0
        self._start(tensor)
        row, units = tensor.detach().reshape(-1), 1
        if row.dtype is torch.float32 and float(weight).is_integer() and abs(weight) <= _WHOLE:
            units = int(max(abs(weight), 1))
        else:
            row, weight = row.double() * weight, 1.0
        if self._units + units > _ROOM:
            self._settle()
        self._rows.append((float(weight), row))
        self._units += units
        if (len(self._rows) + 1) * row.numel() > _CHUNK:
            self._settle()

    def merge(self, other: Exact) -> None:
        """Add what another sum holds."""
        if other.shape is None:
            return
        other._settle()
        for g, total in other.grids.items():
            self._grid(g, total).add_(total)
        if other.wild is not None:
            self.wild = other.wild.clone() if self.wild is None else self.wild.add_(other.wild)
        self.shape, self.weights = other.shape, self.weights + other.weights
        self._use(other.units)

    def value(self) -> Tensor:
        """The sum, in double precision."""
        assert self.shape is not None, "nothing was added"
        self._settle()
        grids = [self.grids[g] for g in sorted(self.grids, reverse=True)]
        total = grids[0] + grids[1] if len(grids) > 1 else grids[0].clone()
        if len(grids) > 2:  # few numbers reach that far down
            where = torch.stack([grid != 0 for grid in grids[2:]]).any(0).nonzero().flatten()
            total[where] = _rounded([grid[where] for grid in grids])
        if self.wild is not None:
            total = total + self.wild
        return total.view(self.shape)

    def _start(self, tensor: Tensor) -> None:
        if self.shape is None:
            self.shape = tensor.shape
            self.grids[_grid_for(1.0)] = torch.zeros(tensor.numel(), dtype=torch.float64, device=tensor.device)

    def _grid(self, g: int, like: Tensor) -> Tensor:
        if g not in self.grids:
            known = next(iter(self.grids.values()), like)
            self.grids[g] = torch.zeros_like(known)
        return self.grids[g]

    def _settle(self) -> None:
        """Cut what waits."""
        if not self._rows:
            return
        weights, rows = zip(*self._rows, strict=True)
        scale, units = torch.tensor(weights, dtype=torch.float64, device=rows[0].device), self._units
        self._rows, self._units = [], 0
        for start in range(0, rows[0].numel(), _CHUNK):
            part = torch.stack([row[start : start + _CHUNK] for row in rows])
            self._cut(part.double(), start, scale, _size(part))
        self._use(units)

    def _cut(self, left: Tensor, start: int, scale: Tensor, most: float) -> None:
        """Cut rows of numbers of this size, which it uses up, into slices, from the coarsest grid down to where nothing is left."""
        if not most < _HUGE:
            left, most = self._tame(left, start, scale)
        g, slices = _grid_for(most), torch.empty_like(left)
        for _ in range(2):  # after which hardly a number has anything left
            _slices(left, g, slices)
            self._grid(g, left)[start : start + left.shape[1]].addmv_(slices.T, scale)
            left, g = left.sub_(slices), g - _STEP
        if not _size(left):
            return
        row, column = left.nonzero(as_tuple=True)
        left, scale, column = left[row, column], scale[row], column + start
        while len(left):
            slices = _slices(left, g, torch.empty_like(left))
            self._grid(g, left).index_add_(0, column, slices * scale)
            left, g = left - slices, g - _STEP
            more = left != 0
            left, scale, column = left[more], scale[more], column[more]

    def _tame(self, numbers: Tensor, start: int, scale: Tensor) -> tuple[Tensor, float]:
        """Put what is not finite, or huge, where it is added without care; the rest, and its size."""
        wild = ~(numbers.abs() < _HUGE)
        if self.wild is None:
            self.wild = torch.zeros_like(next(iter(self.grids.values())))
        self.wild[start : start + numbers.shape[1]].add_((numbers.where(wild, 0.0) * scale[:, None]).sum(0))
        numbers = numbers.where(~wild, 0.0)
        return numbers, _size(numbers)

    def _use(self, units: int) -> None:
        """Note that so many units were added; before the grids run out of bits their sums are cut anew."""
        self.units += units
        if self.units > _ROOM:
            full, self.grids, self.units = self.grids, {}, 1
            for total in full.values():
                self._grid(_grid_for(1.0), total)
                for start in range(0, len(total), _CHUNK):
                    part = total[None, start : start + _CHUNK].clone()
                    self._cut(part, start, part.new_ones(1), _size(part))
                self.units += 1


def _size(numbers: Tensor) -> float:
    """The largest absolute value; NaN if there is a NaN."""
    low, high = torch.aminmax(numbers)
    return max(-float(low), float(high))


def _grid_for(most: float) -> int:
    """The finest grid whose slices hold numbers of this size."""
    return math.ceil((math.frexp(most)[1] - _TOP) / _STEP) * _STEP + _TOP - _STEP


def _slices(numbers: Tensor, g: int, out: Tensor) -> Tensor:
    """The numbers rounded to multiples of 2^g."""
    shift = 1.5 * 2.0 ** (52 + g)
    return torch.add(numbers, shift, out=out).sub_(shift)


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
