"""What a source of data is: a recipe piece that loads tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from accord.data.augment import Augment
from accord.data.pool import Pool


@dataclass(frozen=True, eq=False)
class Loaded:
    """A data set in memory, before it is split over clients."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    classes: int
    columns: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)  # further columns of the training samples, such as writers
    mean: Tensor | None = None
    std: Tensor | None = None
    augment: tuple[Augment, ...] = ()

    def train(self) -> Pool:
        """The training samples, with their augmentation."""
        return Pool(self.x, self.y, self.mean, self.std, self.augment)

    def test(self) -> Pool:
        """The test samples."""
        return Pool(self.test_x, self.test_y, self.mean, self.std)


class Facts(NamedTuple):
    """What is known of a data set before it is read: the shape of a sample as a model sees it, and how many there are of what."""

    shape: tuple[int, ...]
    classes: int
    train: int
    clients: int = 0  # that it comes with


class Source:
    """Where data come from; `load` reads them, from `data_dir` first where that applies."""

    kind: ClassVar[str] = "data"
    facts: ClassVar[Facts | None] = None
    name: str

    def load(self, data_dir: Path | None = None) -> Loaded:
        """The data set as tensors."""
        raise TypeError(f"{type(self).__name__} does not say where its samples are")
