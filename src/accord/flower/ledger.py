"""What a site keeps between rounds, on its own disk: the state that the server counts on, and one that waits to be accepted."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from accord.part import State


class Ledger:
    """States by tag, a two-phase commit. `propose` writes a new state under a tag of its own and keeps the one before it; only when the
    server names that tag in a later round is it the state, and the other goes. A server that names the older tag undoes the newer.

    >>> import tempfile, torch
    >>> ledger = Ledger(Path(tempfile.mkdtemp()), ["part"])
    >>> first = ledger.propose({"part": {"c": torch.ones(2)}})
    >>> lost = ledger.propose({"part": {"c": torch.zeros(2)}})
    >>> ledger.settle(first)["part"]["c"]
    tensor([1., 1.])
    """

    def __init__(self, folder: Path, keys: Sequence[Hashable]) -> None:
        self.folder, self.keys = folder, list(keys)
        folder.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within the block no other process works on this folder."""
        with (self.folder / "lock").open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def holds(self, tag: int) -> bool:
        """Whether the state of this tag is here."""
        return self._file(tag).is_file()

    def settle(self, tag: int) -> dict[Hashable, dict[str, Tensor]]:
        """The state that the server accepted under this tag, empty for tag 0; every other state is forgotten."""
        if tag and not self.holds(tag):
            raise ValueError(
                "has lost what it kept from its earlier rounds: give it its folder back, or join with --anew to begin as in a first round"
            )
        kept = self._read(tag) if tag else {}
        for file in self.folder.glob("*.safetensors*"):
            if file != self._file(tag):
                file.unlink()
        return kept

    def propose(self, kept: Mapping[Hashable, State]) -> int:
        """Write a state that waits for the server's word; returns its tag."""
        tag = secrets.randbelow(2**62) + 1
        named = {
            f"{self.keys.index(key)}/{name}": t.detach().cpu().contiguous().clone()
            for key, state in kept.items()
            for name, t in state.items()
        }
        draft = self._file(tag).with_suffix(".safetensors.new")
        save_file(named, draft)
        with draft.open("rb+") as stream:
            os.fsync(stream.fileno())
        draft.replace(self._file(tag))
        return tag

    def _file(self, tag: int) -> Path:
        return self.folder / f"{tag}.safetensors"

    def _read(self, tag: int) -> dict[Hashable, dict[str, Tensor]]:
        kept: dict[Hashable, dict[str, Tensor]] = {}
        try:
            for label, tensor in load_file(self._file(tag)).items():
                at, _, name = label.partition("/")
                kept.setdefault(self.keys[int(at)], {})[name] = tensor
        except (OSError, SafetensorError, ValueError, IndexError) as error:
            raise ValueError(f"cannot read what it kept from its earlier rounds ({type(error).__name__}): see its log") from error
        return kept
