"""Samples in memory, and the step from stored samples to what a model reads."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from accord.data.augment import Augment

CHUNK = 2 << 20  # bytes of float32 made at a time: small enough to stay in a core's cache until the model reads it


class Batch(NamedTuple):
    """Inputs and labels, ready for a model."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, eq=False)
class Pool:
    """Samples in memory: images as `(N, H, W, C)`, in uint8 or float, anything else as it is; labels as int64.

    >>> pool = Pool(torch.zeros(4, 8, 8, 3, dtype=torch.uint8), torch.arange(4), mean=torch.full((3,), 0.5), std=torch.full((3,), 0.5))
    >>> len(pool), pool.shape
    (4, (3, 8, 8))
    >>> x, y = pool.gather(torch.tensor([2, 0]))
    >>> x.shape, float(x.max()), y.tolist()
    (torch.Size([2, 3, 8, 8]), -1.0, [2, 0])
    """

    x: Tensor
    y: Tensor
    mean: Tensor | None = None
    std: Tensor | None = None
    augment: tuple[Augment, ...] = ()

    def __post_init__(self) -> None:
        if self.augment and not self.images:
            raise ValueError(f"{self.augment[0].name} changes images, and these samples have the shape {self.shape}; write augment=()")

    def __len__(self) -> int:
        return len(self.y)

    @property
    def images(self) -> bool:
        """Whether the samples are images."""
        return self.x.ndim == 4

    @property
    def tokens(self) -> bool:
        """Whether the samples are lines of symbols, such as characters, each a whole number."""
        return self.x.ndim == 2 and self.x.dtype == torch.int64

    @property
    def shape(self) -> tuple[int, ...]:
        """What a model sees for one sample: `(channels, height, width)` for images."""
        shape = tuple(self.x.shape[1:])
        return (shape[2], *shape[:2]) if self.images else shape

    def gather(self, index: Tensor, rng: torch.Generator | None = None) -> Batch:
        """The samples at `index`, normalised, images as channels-last `(N, C, H, W)`; augmented when `rng` is given."""
        x = self.x.index_select(0, index)
        y = self.y.index_select(0, index)
        if not self.images:
            return Batch(x, y)
        if rng is not None:
            for change in self.augment:
                x = x if change.normalised else change(x, rng)
        x = self.normalise(x)
        if rng is not None:
            for change in self.augment:
                x = change(x, rng) if change.normalised else x
        return Batch(x.permute(0, 3, 1, 2), y)

    def normalise(self, x: Tensor) -> Tensor:
        """Stored pixels as `(pixel / 255 - mean) / std` in float32; float pixels are not divided by 255."""
        out = x.to(torch.float32)
        if self._affine is not None:
            scale, shift = self._affine
            flat = out.view(len(out), -1)
            torch.addcmul(shift, flat, scale, out=flat)
        return out

    @cached_property
    def _numbers(self) -> int:
        return max(1, math.prod(self.x.shape[1:]))

    @cached_property
    def _affine(self) -> tuple[Tensor, Tensor] | None:
        """`scale` and `shift` for every pixel of a sample, so that normalising is one pass over long rows."""
        scale = 1 / 255 if self.x.dtype == torch.uint8 else 1.0
        if scale == 1.0 and self.mean is None and self.std is None:
            return None
        channels = self.x.shape[3]
        mean = torch.zeros(channels) if self.mean is None else self.mean.to(torch.float64)
        std = torch.ones(channels) if self.std is None else self.std.to(torch.float64)
        pixels = self.x.shape[1] * self.x.shape[2]
        return tuple(v.to(self.x.device, torch.float32).repeat(pixels) for v in (scale / std, -mean / std))  # type: ignore[return-value]

    def batches(self, index: Tensor, size: int, rng: torch.Generator | None = None) -> Iterator[Batch]:
        """The samples at `index`, in that order, as batches of `size`; the last may be smaller.

        >>> pool = Pool(torch.arange(10.0).reshape(5, 2), torch.arange(5))
        >>> [len(y) for x, y in pool.batches(torch.arange(5), 2)]
        [2, 2, 1]
        """
        chunk = size * max(1, CHUNK // (4 * size * self._numbers))
        for part in torch.split(index, chunk) if len(index) > chunk else (index,):
            x, y = self.gather(part, rng)
            for at in range(0, len(part), size):
                yield Batch(x[at : at + size], y[at : at + size])
