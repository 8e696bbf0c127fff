"""The idx files in which MNIST and Fashion-MNIST were first given out."""

from __future__ import annotations

import gzip
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from accord.data.cache import Tensors

PARTS = {"train-images": "train/x", "train-labels": "train/y", "t10k-images": "test/x", "t10k-labels": "test/y"}


def idx_files(folder: Path) -> dict[str, Path]:
    """The four files by what they hold, or nothing when they are not all there."""
    files = sorted(f for f in folder.rglob("*ubyte*") if f.name.endswith(("ubyte", "ubyte.gz")))
    found = {role: file for file in files for start, role in PARTS.items() if file.name.startswith(start)}
    return found if len(found) == len(PARTS) else {}


def read_idx(files: Mapping[str, Path]) -> Tensors:
    """Images as `(N, H, W, 1)` in uint8 and labels as int64."""
    arrays = {role: torch.from_numpy(read_one(file)) for role, file in files.items()}
    return {role: values.unsqueeze(3) if role.endswith("x") else values.long() for role, values in arrays.items()}


def read_one(path: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """One file: two zeros, the type (8: bytes), the number of dimensions, each as four bytes, then the values."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, OSError) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}): fetch it again") from None
    shape = tuple(np.frombuffer(raw, ">i4", raw[3], offset=4).tolist()) if len(raw) > 4 and len(raw) >= 4 + 4 * raw[3] else (1,)
    if raw[:3] != b"\x00\x00\x08" or len(raw) != 4 + 4 * len(shape) + math.prod(shape):
        raise ValueError(f"{path} is no whole idx file of bytes: fetch it again")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * len(shape)).reshape(shape).copy()
