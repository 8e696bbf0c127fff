"""Handwritten digits that ship with scikit-learn: real data without a download."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from accord.check import Whole
from accord.data.augment import Augment
from accord.data.source import Loaded, Source
from accord.recipe import named


@named
class Digits(Source):
    """1,797 handwritten digits of 8x8 pixels (UCI), 80 % of each class for training; flat vectors of 64, or images.

    >>> from accord.data.digits import Digits
    >>> data = Digits().load()
    >>> tuple(data.x.shape), tuple(data.test_x.shape), data.classes
    ((1437, 64), (360, 64), 10)
    >>> Digits(image=True).load().train().shape
    (1, 8, 8)
    """

    image: bool = False
    augment: tuple[Augment, ...] = ()
    seed: Whole = 0

    def load(self, data_dir: Path | None = None) -> Loaded:
        from sklearn.datasets import load_digits

        found = load_digits()
        pixels = torch.from_numpy(found.images.astype(np.float32)) / 16
        labels = torch.from_numpy(found.target.astype(np.int64))
        train, test = stratified(labels, 0.2, self.seed)
        x = pixels.unsqueeze(3) if self.image else (pixels.flatten(1) - 0.3053) / 0.3763
        mean, std = (torch.tensor([0.3053]), torch.tensor([0.3763])) if self.image else (None, None)
        return Loaded(x[train], labels[train], x[test], labels[test], 10, {}, mean, std, self.augment)


def stratified(labels: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Training and test indices, in ascending order, with nearly `fraction` of every class in the test set.

    >>> train, test = stratified(torch.arange(100) % 10, 0.2, seed=0)
    >>> len(train), len(test), torch.bincount(test % 10).tolist()
    (80, 20, [2, 2, 2, 2, 2, 2, 2, 2, 2, 2])
    """
    rng = np.random.RandomState(seed)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels.numpy()[order], kind="stable")]  # classes one after another, shuffled inside
    chosen = np.zeros(len(labels), dtype=bool)
    wanted = math.ceil(fraction * len(labels))
    chosen[order[((np.arange(wanted) + 0.5) * len(labels) / max(wanted, 1)).astype(np.int64)]] = True
    return torch.from_numpy(np.flatnonzero(~chosen)), torch.from_numpy(np.flatnonzero(chosen))
