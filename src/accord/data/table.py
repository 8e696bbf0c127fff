"""Tables of images or numbers with labels: which columns are read, and how they become tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accord.check import listed, nearest
from accord.data.cache import Tensors
from accord.data.digits import stratified
from accord.data.images import decode

Column = NDArray[np.generic]
MOST_CLASSES = 1_000_000  # a larger label is no class, but a number of something else


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read; what is None is found by its type."""

    image: str | None = None
    label: str | None = None
    size: int | None = None

    def inputs(self, table: Any, where: str) -> str:
        """The column of the inputs: the one named, or the only one of images."""
        if self.image is not None:
            return present(self.image, table, where, "image")
        features = hub_features(table)
        images = [name for name in table.column_names if features.get(name) == "Image" or holds_images(table.schema.field(name).type)]
        return only(images, table, where, "image")

    def labels(self, table: Any, where: str) -> str:
        """The column of the labels: the one named, one called `label`, or the only one of class labels."""
        if self.label is not None:
            return present(self.label, table, where, "label")
        features = hub_features(table)
        classes = [name for name in table.column_names if features.get(name) == "ClassLabel"]
        return "label" if "label" in table.column_names else only(classes, table, where, "label")


def present(name: str, table: Any, where: str, role: str) -> str:
    """The name, once it is seen to be a column."""
    known = table.column_names
    if name not in known:
        raise ValueError(f"{where} has no column {name!r}{nearest(name, known)}; write {role}= one of {listed(known)}")
    return name


def only(found: list[str], table: Any, where: str, role: str) -> str:
    """The single candidate for a role."""
    if len(found) != 1:
        known = listed(table.column_names)
        raise ValueError(f"{where} has {len(found) or 'no'} columns that could be the {role}; write {role}= one of {known}")
    return found[0]


def hub_features(table: Any) -> dict[str, str]:
    """The hub's name for the type of every column that it describes."""
    described = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    features = described.get("info", {}).get("features", {})
    return {name: feature.get("_type", "") for name, feature in features.items() if isinstance(feature, dict)}


def holds_images(kind: Any) -> bool:
    """Whether an arrow type is that of encoded images: bytes, or bytes with their path."""
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or (pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0))


def tensors(tables: Mapping[str, Any], columns: Columns, where: str, folder: Path | None = None) -> Tensors:
    """Training and test samples of arrow tables by split name; without a test split, a seeded tenth of every class becomes it."""
    found: dict[str, Tensor] = {}
    for split, table in tables.items():
        inputs, labels = columns.inputs(table, where), columns.labels(table, where)
        y = whole_labels(table.column(labels).to_numpy(), labels, where)
        found |= {f"{split}/x": read_inputs(table.column(inputs), columns.size, where, folder), f"{split}/y": y}
        for name in table.column_names:
            if name not in (inputs, labels) and split == "train":
                found |= {f"column/{name}": each for each in codes(table.column(name))}
    return with_test(found) if "test" not in tables else found


def with_test(found: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors with a tenth of every class as the test set, or a tenth of all where a sample has several labels."""
    labels = found["train/y"] if found["train/y"].dim() == 1 else found["train/y"].new_zeros(len(found["train/y"]))
    train, test = stratified(labels, 0.1, seed=0)
    apart = {name.replace("train", "test"): tensor[test] for name, tensor in found.items() if name.startswith("train/")}
    return {name: tensor[train] for name, tensor in found.items()} | apart


def whole_labels(values: Column, name: str, where: str) -> Tensor:
    """Labels as int64, or an error that shows the first one that is no class."""
    if values.dtype.kind not in "iub":
        whole = values.dtype.kind == "f" and bool(np.all(np.isfinite(values)) and np.all(values == np.floor(values)))
        if not whole:
            wrong = next((v for v in values.tolist() if not isinstance(v, int) and not (isinstance(v, float) and v.is_integer())), None)
            raise ValueError(f"{where}: the labels in {name!r} must be whole numbers from 0, and there is {wrong!r}; choose another column")
    labels = torch.from_numpy(values.astype(np.int64))
    odd = [int(end) for end in (labels.min(), labels.max()) if not 0 <= end < MOST_CLASSES] if len(labels) else []
    if odd:
        raise ValueError(f"{where}: the labels in {name!r} must be whole numbers from 0, and there is {odd[0]}; choose another column")
    return labels


def read_inputs(column: Any, size: int | None, where: str, folder: Path | None) -> Tensor:
    """Images as uint8, or lists of numbers as float32."""
    if holds_images(column.type):
        return torch.from_numpy(decode(encoded(column, folder), size, where))
    try:
        values = np.array(column.to_pylist(), dtype=np.float32)
    except (ValueError, TypeError):
        raise ValueError(f"{where}: the inputs are {column.type}; they must be images, numbers, or lists of equally many numbers") from None
    return finite(torch.from_numpy(values.reshape(len(values), -1) if values.ndim == 1 else values), where)


def encoded(column: Any, folder: Path | None) -> list[Callable[[], bytes]]:
    """For every image a function that returns its bytes, from the table or from the file that the table names."""

    def of(value: Any) -> bytes:
        held = value.as_py()
        if isinstance(held, dict):
            held = held["bytes"] if held["bytes"] is not None else ((folder or Path()) / held["path"]).read_bytes()
        return held if held is not None else b""

    return [partial(of, value) for chunk in column.chunks for value in chunk]


def codes(column: Any) -> list[Tensor]:
    """A column of numbers or texts as whole numbers in sorted order; nothing for columns of other types."""
    import pyarrow as pa

    if not (pa.types.is_integer(column.type) or pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return []
    if pa.types.is_integer(column.type) and not column.null_count:
        return [torch.from_numpy(column.to_numpy().astype(np.int64))]
    values = np.array([str(v) for v in column.to_pylist()])
    return [torch.from_numpy(np.unique(values, return_inverse=True)[1].astype(np.int64))]


def finite(x: Tensor, where: str) -> Tensor:
    """The inputs, once they are seen to hold no NaN and no infinity."""
    if x.is_floating_point():
        bad = ~torch.isfinite(x).flatten(1).all(1)
        if bad.any():
            raise ValueError(
                f"{where}: {int(bad.sum())} samples hold NaN or infinity, the first is number {int(bad.nonzero()[0])}; clean the data first"
            )
    return x
