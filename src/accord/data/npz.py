"""Arrays in a `.npz` file."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accord.check import listed
from accord.data.augment import Augment
from accord.data.hub import assemble
from accord.data.source import Loaded, Source
from accord.data.table import finite, whole_labels, with_test
from accord.recipe import named

NAMES: dict[str, tuple[str, ...]] = {
    "train/x": ("x_train", "train_images", "train_x", "x"),
    "train/y": ("y_train", "train_labels", "train_y", "y"),
}
NAMES |= {"test/x": ("x_test", "test_images", "test_x"), "test/y": ("y_test", "test_labels", "test_y")}


@named
class Npz(Source):
    """A `.npz` file with `x_train`, `y_train`, `x_test` and `y_test`, or the names of MedMNIST; without test arrays a tenth is set aside.

    uint8 arrays of three or four dimensions, `(N, H, W)` or `(N, H, W, C)`, are images; all others are vectors of numbers.
    Further arrays as long as the training set, for example `writer`, are columns for `natural`.

    >>> import tempfile
    >>> place = tempfile.mkdtemp() + "/small.npz"
    >>> np.savez(place, x=np.zeros((20, 8, 8), np.uint8), y=np.arange(20) % 2)
    >>> data = Npz(place).load()
    >>> tuple(data.x.shape), tuple(data.test_x.shape), data.classes
    ((18, 8, 8, 1), (2, 8, 8, 1), 2)
    """

    path: str
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    augment: tuple[Augment, ...] = ()

    def load(self, data_dir: Path | None = None) -> Loaded:
        arrays = read_npz(Path(self.path).expanduser())
        used = {role: next((name for name in names if name in arrays), None) for role, names in NAMES.items()}
        for role in ("train/x", "train/y"):
            if used[role] is None:
                raise ValueError(f"{self.path} has no array {NAMES[role][0]!r} (or {listed(NAMES[role][1:])}); it has {listed(arrays)}")
        found: dict[str, Tensor] = {}
        for role, name in used.items():
            if name is not None:
                values = arrays[name]
                if not values.size or not values.ndim:
                    raise ValueError(
                        f"{self.path}: the array {name!r} has the shape {values.shape}; it must hold one entry for each sample"
                    )
                labels = role.endswith("y")
                found[role] = whole_labels(values.reshape(len(values), -1)[:, 0], name, self.path) if labels else samples(values, self.path)
        for split in ("train", "test"):
            same_length(found, split, self.path)
        rest = {name: a for name, a in arrays.items() if name not in used.values() and a.shape[:1] == (len(found["train/y"]),)}
        found |= {f"column/{name}": torch.from_numpy(np.unique(a, return_inverse=True)[1]) for name, a in rest.items() if a.ndim == 1}
        found = found if "test/x" in found and "test/y" in found else with_test(found)
        return assemble(found, (self.mean, self.std) if self.mean and self.std else None, self.augment, self.path)


def read_npz(path: Path) -> Mapping[str, NDArray[Any]]:
    """The arrays of a file, or why it cannot be read."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with path.open("rb") as whole:
            zipped = zipfile.is_zipfile(whole)
        if not zipped:
            raise ValueError("it is cut short, or of another kind")
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError) as error:
        raise ValueError(f"{path} is no whole .npz file ({error}): write it again with numpy.savez") from None


def samples(values: NDArray[Any], where: str) -> Tensor:
    """Images as uint8 with channels last, numbers as float32."""
    if values.dtype == np.uint8 and values.ndim in (3, 4):
        return torch.from_numpy(values if values.ndim == 4 else values[..., None])
    if values.dtype.kind not in "fiub":
        raise ValueError(f"{where}: the inputs are of type {values.dtype}; they must be numbers")
    return finite(torch.from_numpy(values.astype(np.float32)), where)


def same_length(found: Mapping[str, Tensor], split: str, where: str) -> None:
    """Refuse inputs and labels of different lengths."""
    x, y = found.get(f"{split}/x"), found.get(f"{split}/y")
    if x is not None and y is not None and len(x) != len(y):
        raise ValueError(f"{where}: there are {len(x)} {split} inputs and {len(y)} labels; each input needs one label")
