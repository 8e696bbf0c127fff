"""Decoded data on disk, memory-mapped by the next run: one file per content, written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

FORM = "1"  # goes up when what is kept changes
Tensors = Mapping[str, Tensor]


def cache_dir() -> Path:
    """The folder in `ACCORD_CACHE`, else `~/.cache/accord`."""
    return Path(os.environ.get("ACCORD_CACHE") or Path.home() / ".cache" / "accord").expanduser()


def content_key(files: Iterable[Path], *settings: object) -> str:
    """A key that changes with any file's content, and with how it is read."""
    digest = hashlib.sha256(repr((FORM, settings)).encode())
    for path in files:
        digest.update(path.name.encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:32]


def cached(key: str, make: Callable[[], Tensors]) -> Tensors:
    """What `make` returns, from disk when it was made before and is whole.

    >>> import os, tempfile, torch
    >>> before, os.environ["ACCORD_CACHE"] = os.environ.get("ACCORD_CACHE"), tempfile.mkdtemp()
    >>> cached("demo", lambda: {"x": torch.arange(3)})["x"]
    tensor([0, 1, 2])
    >>> cached("demo", lambda: {"x": torch.zeros(9)})["x"]
    tensor([0, 1, 2])
    >>> _ = os.environ.pop("ACCORD_CACHE") if before is None else os.environ.update(ACCORD_CACHE=before)
    """
    path = cache_dir() / f"{key}.safetensors"
    found = stored(path)
    if found is None:
        found = make()
        store(path, found)
    return found


def stored(path: Path) -> Tensors | None:
    """The file's tensors, or nothing when it is absent, cut short or damaged."""
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            whole = (file.metadata() or {}).get("crc") == checksum(tensors)
    except (FileNotFoundError, SafetensorError):
        return None
    return tensors if whole else None


def store(path: Path, tensors: Tensors) -> None:
    """Write beside the place and move there, so that no reader ever sees half a file; a folder that cannot be written is left alone."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            part = Path(file.name)
    except OSError:
        return
    try:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, part, {"crc": checksum(tensors)})
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def checksum(tensors: Tensors) -> str:
    """A checksum over names and contents."""
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(tensors[name].contiguous().numpy().data, zlib.crc32(name.encode(), crc))
    return f"{crc:08x}"
