"""What a long computation has found so far: numbers and vectors, in memory, and on disk for one that is interrupted."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from accord.checkpoint import write_atomically

_PAUSE = 2.0  # seconds between two savings
_HELD = 256 << 20  # bytes of vectors in memory; more of them are read from the folder each time


class Scratch:
    """Numbers by name and a growing list of vectors. With a folder they outlive the process, for whoever brings the same key.

    >>> scratch = Scratch()
    >>> scratch.add(torch.ones(2))
    >>> scratch.numbers.setdefault("alpha", []).append(1.5)
    >>> len(scratch), scratch.vector(0).tolist(), scratch.numbers
    (1, [1.0, 1.0], {'alpha': [1.5]})
    """

    def __init__(self, folder: Path | None = None, key: str = "") -> None:
        self.folder, self.key = folder, key
        self.numbers: dict[str, Any] = {}
        self._vectors: list[Tensor | None] = []  # None: on disk only
        self._written = 0
        self._since = time.monotonic()
        if folder is not None:
            self._restore(folder)

    def _restore(self, folder: Path) -> None:
        try:
            held = json.loads((folder / "state.json").read_text(encoding="utf-8"))
            if held["key"] != self.key:
                raise ValueError("of another computation")
            for k in range(held["vectors"]):
                self._hold(load_file(self._file(k))["v"])
            self.numbers, self._written = dict(held["numbers"]), len(self)
        except (OSError, ValueError, LookupError, TypeError, SafetensorError):
            self.clear()

    def __len__(self) -> int:
        return len(self._vectors)

    def vector(self, k: int) -> Tensor:
        """One of the vectors."""
        held = self._vectors[k]
        return load_file(self._file(k))["v"] if held is None else held

    def add(self, vector: Tensor) -> None:
        """One more vector, which nobody changes any more."""
        self._hold(vector)
        if self._vectors[-1] is None:
            self._write(len(self) - 1, vector)

    def _hold(self, vector: Tensor) -> None:
        full = (len(self) + 1) * vector.nbytes > _HELD and self.folder is not None
        self._vectors.append(None if full else vector)

    def save(self, *, now: bool = False) -> None:
        """Write what is new to the folder, if there is one and it was not done a moment ago."""
        if self.folder is None or (not now and time.monotonic() - self._since < _PAUSE):
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for k in range(self._written, len(self)):
            held = self._vectors[k]
            if held is not None:
                self._write(k, held)
        self._written = len(self)
        write_atomically(self.folder / "state.json", json.dumps({"key": self.key, "vectors": len(self), "numbers": self.numbers}))
        self._since = time.monotonic()

    def _write(self, k: int, vector: Tensor) -> None:
        self._file(k).parent.mkdir(parents=True, exist_ok=True)
        save_file({"v": vector.contiguous()}, self._file(k))

    def _file(self, k: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{k:04d}.safetensors"

    def clear(self) -> None:
        """Forget everything, on disk too."""
        self.numbers, self._vectors, self._written = {}, [], 0
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)
