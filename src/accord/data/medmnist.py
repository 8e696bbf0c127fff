"""The medical data sets of MedMNIST, from the files that its authors publish."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from accord.data.augment import Augment, Flip
from accord.data.hub import assemble
from accord.data.npz import read_npz
from accord.data.source import Facts, Loaded, Source
from accord.recipe import named

HALF = ((0.5,), (0.5,))


def medical(file: str, classes: int, augment: tuple[Augment, ...], data_dir: Path | None) -> Loaded:
    """A file of MedMNIST under the data folder; its validation images are training images too, as in FedSOL."""
    root = data_dir or (Path(os.environ["ACCORD_DATA"]) if os.environ.get("ACCORD_DATA") else None)
    if root is None or not (root.expanduser() / file).is_file():
        place = f"{file} is not under {root}" if root else f"{file} is not at hand (ACCORD_DATA and data_dir name no folder)"
        raise ValueError(f"{place}: put the file of that name of MedMNIST (28x28 pixels) there")
    arrays = read_npz(root.expanduser() / file)
    lacking = [f"{split}_{what}" for split in ("train", "val", "test") for what in ("images", "labels") if f"{split}_{what}" not in arrays]
    if lacking:
        raise ValueError(f"{file} has no array {lacking[0]!r}: it is not MedMNIST's file of that name")
    train = [np.concatenate([arrays[f"{split}_{what}"] for split in ("train", "val")]) for what in ("images", "labels")]
    found = {}
    for split, (images, labels) in (("train", train), ("test", [arrays["test_images"], arrays["test_labels"]])):
        found[f"{split}/x"], found[f"{split}/y"] = torch.from_numpy(pixels(images)), torch.from_numpy(labels.reshape(-1).astype(np.int64))
    return assemble(found, HALF, augment, file, classes)


def pixels(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images with their channels last, grey ones with one."""
    return images if images.ndim == 4 else images[..., None]


@named
class Pathmnist(Source):
    """PathMNIST (Yang et al. 2023): 100,000 and 7,180 colour images of tissue in 9 classes, 28x28; needs `pathmnist.npz`."""

    augment: tuple[Augment, ...] = (Flip(),)
    facts: ClassVar[Facts | None] = Facts((3, 28, 28), 9, 100_000)

    def load(self, data_dir: Path | None = None) -> Loaded:
        return medical("pathmnist.npz", 9, self.augment, data_dir)


@named
class Tissuemnist(Source):
    """TissueMNIST (Yang et al. 2023): 189,106 and 47,280 grey images of kidney cells in 8 classes, 28x28; needs `tissuemnist.npz`."""

    augment: tuple[Augment, ...] = (Flip(),)
    facts: ClassVar[Facts | None] = Facts((1, 28, 28), 8, 189_106)

    def load(self, data_dir: Path | None = None) -> Loaded:
        return medical("tissuemnist.npz", 8, self.augment, data_dir)
