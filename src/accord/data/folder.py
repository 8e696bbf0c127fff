"""Local folders: parquet files in the hub's layout, or `train/<class>/` and `test/<class>/` full of images."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from accord.data.cache import Tensors, cached, content_key
from accord.data.idx import idx_files, read_idx
from accord.data.images import decode
from accord.data.table import Columns, tensors, with_test

SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLITS |= {"validation": "validation", "valid": "validation", "val": "validation", "dev": "validation"}
IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"}


def root_of(data_dir: Path | None) -> Path | None:
    """The folder of data sets: this one, or that in ACCORD_DATA, if either is named."""
    root = data_dir or (Path(os.environ["ACCORD_DATA"]) if os.environ.get("ACCORD_DATA") else None)
    if root is not None and not root.expanduser().is_dir():
        raise ValueError(f"there is no folder {root}; give one that holds data sets as <owner>/<name>/*.parquet, or none to use the hub")
    return root.expanduser() if root is not None else None


def read_folder(folder: Path, columns: Columns, config: str | None = None) -> Tensors:
    """The samples of a folder, decoded once and then taken from the cache."""
    inside = folder / config if config and (folder / config).is_dir() else folder
    parquet = by_split(sorted(inside.rglob("*.parquet")), inside)
    if parquet:
        files = [file for name in parquet for file in parquet[name]]
        key = content_key(files, "parquet", list(parquet), columns)
        return cached(key, lambda: tensors({name: read_parquet(files) for name, files in parquet.items()}, columns, str(folder), inside))
    packed = idx_files(inside)
    if packed:
        return cached(content_key(packed.values(), "idx"), lambda: read_idx(packed))
    images = by_split(sorted(f for f in inside.rglob("*") if f.suffix.lower() in IMAGES), inside)
    if not images:
        raise ValueError(f"{folder} holds no parquet files, no idx files and no images in train/<class>/; give the folder that does")
    files = [file for name in images for file in images[name]]
    names = [file.relative_to(inside).as_posix() for file in files]
    return cached(content_key(files, "images", names, columns), lambda: read_images(images, columns, folder))


def by_split(files: list[Path], folder: Path) -> dict[str, list[Path]]:
    """Files by the split that their name or a folder above them starts with; validation stands in for a missing test split.

    Files that name none are training data, unless others say that they are: SVHN's `extra` is then left out, as on the hub.
    """
    found: dict[str, list[Path]] = {}
    for file in files:
        words = [re.split(r"[-_.]", part.lower())[0] for part in reversed(file.relative_to(folder).parts)]
        found.setdefault(next((SPLITS[word] for word in words if word in SPLITS), "other"), []).append(file)
    other = found.pop("other", None)
    return chosen({"train": other, **found} if other else found)


def chosen(found: dict[str, Any]) -> dict[str, Any]:
    """The training and the test split of those that there are."""
    train = found.get("train")
    test = found.get("test", found.get("validation"))
    if train is None and test is not None:
        raise ValueError(f"there is no training data, only {', '.join(sorted(found))}; name its files train-*")
    return {name: split for name, split in (("train", train), ("test", test)) if split}


def read_parquet(files: list[Path]) -> Any:
    """The files of one split as one table."""
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError:
        raise ValueError(f"{files[0]} is a parquet file, and pyarrow reads it: pip install 'accord[hub]'") from None

    def read() -> Iterator[Any]:
        for file in files:
            try:
                yield parquet.read_table(file, partitioning=None)
            except (pa.ArrowException, OSError) as error:
                reason = str(error).strip().split("\n")[0]
                raise ValueError(f"{file} cannot be read ({reason}): fetch it again") from None

    return pa.concat_tables(list(read()))


def read_images(splits: dict[str, list[Path]], columns: Columns, folder: Path) -> Tensors:
    """Images whose folder is their class; classes are numbered in the order of their names."""
    classes = sorted({file.parent.name for files in splits.values() for file in files})
    number = {name: at for at, name in enumerate(classes)}
    found = {}
    for split, files in splits.items():
        found[f"{split}/x"] = torch.from_numpy(decode([file.read_bytes for file in files], columns.size, str(folder)))
        found[f"{split}/y"] = torch.tensor([number[file.parent.name] for file in files])
    return found if "test" in splits else with_test(found)
