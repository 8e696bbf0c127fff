"""Data sets of the Hugging Face hub: from a local folder first, then from the hub's cache, then from the hub."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from accord.check import Count, nearest
from accord.data.augment import Augment
from accord.data.cache import Tensors, cached, content_key
from accord.data.download import download
from accord.data.folder import read_folder, root_of
from accord.data.source import Loaded, Source
from accord.data.table import Columns, tensors
from accord.recipe import named

Constants = tuple[tuple[float, ...], tuple[float, ...]]


@named
class Hub(Source):
    """A data set by its name on the hub, `owner/name`; columns that are not named are found by their types.

    It is looked for under `data_dir`, or the folder in ACCORD_DATA, as `owner/name` or `name`, and then on the hub.
    Pixels are normalised by `mean` and `std`, or by those of the training images.

    >>> from accord.data import read_data
    >>> read_data("hub('uoft-cs/cifar100', label=coarse_label)").label
    'coarse_label'
    """

    repo: str
    image: str | None = None
    label: str | None = None
    config: str | None = None
    size: Count | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: tuple[Augment, ...] = ()

    def load(self, data_dir: Path | None = None) -> Loaded:
        found = find(self.repo, Columns(self.image, self.label, self.size), self.config, data_dir)
        return assemble(found, (self.mean, self.std) if self.mean and self.std else None, self.augment, self.repo)


@named
class Folder(Source):
    """A local folder of parquet files (`train-*.parquet`, `test-*.parquet`), or of images in `train/<class>/` and `test/<class>/`.

    >>> from accord.data import read_data
    >>> read_data("folder('no/such/place')").load()
    Traceback (most recent call last):
    ValueError: there is no folder no/such/place
    """

    path: str
    image: str | None = None
    label: str | None = None
    size: Count | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: tuple[Augment, ...] = ()

    def load(self, data_dir: Path | None = None) -> Loaded:
        place = Path(self.path).expanduser()
        if not place.is_dir():
            near = nearest(place.name, [p.name for p in place.parent.iterdir() if p.is_dir()]) if place.parent.is_dir() else ""
            raise ValueError(f"there is no folder {self.path}{near}")
        found = read_folder(place, Columns(self.image, self.label, self.size))
        return assemble(found, (self.mean, self.std) if self.mean and self.std else None, self.augment, self.path)


def find(repo: str, columns: Columns, config: str | None, data_dir: Path | None) -> Tensors:
    """The samples of a data set, from wherever it is at hand."""
    root = root_of(data_dir)
    if root is not None:
        for place in (root / repo, root / repo.split("/")[-1]):
            if place.is_dir():
                return read_folder(place, columns, config)
    tables, key = download(repo, config, root)
    return cached(content_key([], key, columns), lambda: tensors(tables, columns, repo))


def assemble(found: Tensors, constants: Constants | None, augment: tuple[Augment, ...], where: str, classes: int = 0) -> Loaded:
    """Decoded tensors as a data set."""
    x, y, test_x, test_y = (found[name] for name in ("train/x", "train/y", "test/x", "test/y"))
    if not len(y):
        raise ValueError(f"{where} has no training samples")
    if x.shape[1:] != test_x.shape[1:]:
        raise ValueError(f"{where}: training samples have the shape {tuple(x.shape[1:])} and test samples {tuple(test_x.shape[1:])}")
    columns = {name.removeprefix("column/"): tensor.numpy() for name, tensor in found.items() if name.startswith("column/")}
    highest = 1 + max(int(labels.max()) for labels in (y, test_y) if len(labels))
    if classes and highest > classes:
        raise ValueError(f"{where}: there is a label {highest - 1}, and the data have {classes} classes")
    mean, std = normalisation(x, constants, where) if x.ndim == 4 else (None, None)
    return Loaded(x, y, test_x, test_y, classes or highest, columns, mean, std, augment)


def normalisation(x: Tensor, constants: Constants | None, where: str) -> tuple[Tensor, Tensor]:
    """The given constants, one for all channels or one each, or the mean and deviation of every channel of the images."""
    channels = x.shape[3]
    if constants is None:
        return moments(x)
    for values in constants:
        if len(values) not in (1, channels):
            raise ValueError(f"{where} has images of {channels} channels, and mean or std has {len(values)} numbers: give {channels}")
    mean, std = (torch.tensor(values).expand(channels).clone() for values in constants)
    return mean, std


def moments(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every channel, of pixels between 0 and 1; a constant channel has deviation 1.

    >>> moments(torch.full((2, 4, 4, 1), 51, dtype=torch.uint8))
    (tensor([0.2000]), tensor([1.]))
    """
    scale = 255 if images.dtype == torch.uint8 else 1
    total, squares = (torch.zeros(images.shape[3], dtype=torch.float64) for _ in range(2))
    for part in torch.split(images, 1024):
        pixels = part.flatten(0, 2).double() / scale
        total += pixels.sum(0)
        squares += (pixels * pixels).sum(0)
    count = images[..., 0].numel()
    mean = total / count
    std = (squares / count - mean * mean).clamp(min=0).sqrt()
    return mean.float(), torch.where(std < 1e-6, torch.ones_like(std), std).float()
