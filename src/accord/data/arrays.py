"""A user's own arrays as a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accord.data.augment import Augment
from accord.data.partition import Natural, Split
from accord.data.read import read_split
from accord.data.source import Loaded
from accord.data.table import finite, whole_labels, with_test

Array: TypeAlias = "NDArray[Any] | Tensor"
Pair: TypeAlias = "tuple[Array, Array]"
Channels: TypeAlias = Literal["first", "last"] | None


def from_arrays(
    x: Array | Sequence[Pair],
    y: Array | None,
    split: Split | str,
    test: Pair | None,
    channels: Channels,
    constants: tuple[Sequence[float] | None, Sequence[float] | None],
    augment: tuple[Augment, ...],
    columns: Mapping[str, NDArray[np.generic]],
) -> tuple[Loaded, Split]:
    """The data set, and the split: the one asked for, or the clients that the pairs are.

    >>> pairs = [(np.zeros((3, 2)), np.array([0, 1, 0])), (np.ones((2, 2)), np.array([1, 1]))]
    >>> loaded, split = from_arrays(pairs, None, "iid", pairs[0], None, (None, None), (), {})
    >>> loaded.columns["client"].tolist(), split
    ([0, 0, 0, 1, 1], natural(column='client', min_size=1))
    """
    chosen = read_split(split) if isinstance(split, str) else split
    if y is None:
        read = [samples(*pair, channels, f"client {at}") for at, pair in enumerate(pairs(x))]
        inputs, labels = torch.cat([each for each, _ in read]), torch.cat([each for _, each in read])
        columns = {"client": np.repeat(np.arange(len(read)), [len(each) for _, each in read])}
        chosen = Natural("client")
    else:
        inputs, labels = samples(x, y, channels, "the arrays")
    found = {"train/x": inputs, "train/y": labels} | {f"column/{name}": as_codes(name, c, labels) for name, c in columns.items()}
    if test is None:
        found = with_test(found)
    else:
        found["test/x"], found["test/y"] = samples(*test, channels, "test")
    return loaded(found, constants, augment), chosen


def loaded(
    found: Mapping[str, Tensor], constants: tuple[Sequence[float] | None, Sequence[float] | None], augment: tuple[Augment, ...]
) -> Loaded:
    """Tensors by name as a data set."""
    labels, tests = found["train/y"], found["test/y"]
    if found["train/x"].shape[1:] != found["test/x"].shape[1:]:
        shapes = [tuple(found[f"{name}/x"].shape[1:]) for name in ("train", "test")]
        raise ValueError(f"training samples have the shape {shapes[0]} and test samples {shapes[1]}; they must be the same")
    mean, std = (None if values is None else torch.tensor(values) for values in constants)
    columns = {name.removeprefix("column/"): tensor.numpy() for name, tensor in found.items() if name.startswith("column/")}
    classes = 1 + int(torch.cat([labels, tests]).max())
    return Loaded(found["train/x"], labels, found["test/x"], tests, classes, columns, mean, std, augment)


def pairs(x: Array | Sequence[Pair]) -> Sequence[Pair]:
    """The clients' pairs, or an error that says how arrays are given."""
    if isinstance(x, np.ndarray | Tensor) or not len(x) or not all(isinstance(each, tuple) and len(each) == 2 for each in x):
        raise ValueError("give the labels as y, or a list of (x, y) pairs, one per client")
    return x


def samples(x: Any, y: Array, channels: Channels, where: str) -> tuple[Tensor, Tensor]:
    """Inputs, images with their channels last, and labels as int64."""
    inputs, labels = torch.as_tensor(x), whole_labels(np.asarray(y), "y", where)
    if len(inputs) != len(labels):
        raise ValueError(f"{where}: there are {len(inputs)} inputs and {len(labels)} labels; each input needs one label")
    inputs = inputs.to(torch.float32) if inputs.is_floating_point() else inputs
    if inputs.ndim == 4:
        if channels not in ("first", "last"):
            raise ValueError(
                f"{where}: x has the shape {tuple(inputs.shape)}; say where the channels of images are, channels='first' or 'last'"
            )
        inputs = inputs.permute(0, 2, 3, 1).contiguous() if channels == "first" else inputs
    elif inputs.dtype == torch.uint8:
        inputs = inputs.to(torch.float32)
    return finite(inputs, where), labels


def as_codes(name: str, column: NDArray[np.generic], labels: Tensor) -> Tensor:
    """A column as whole numbers in sorted order."""
    if len(column) != len(labels):
        raise ValueError(f"the column {name!r} has {len(column)} entries for {len(labels)} samples; each sample needs one")
    return torch.from_numpy(np.unique(column, return_inverse=True)[1].astype(np.int64))
