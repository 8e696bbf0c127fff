"""What clients keep between rounds: in memory up to a limit, on disk past it, and all of it on disk at a checkpoint."""

from __future__ import annotations

import tempfile
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from accord.part import State


class Store:
    """Client states by client number. The least recently used leave memory first; a state on disk has one file per version.

    >>> store = Store(["part"], limit=0)
    >>> store.put(7, {"part": {"c": torch.ones(2)}})
    >>> store.get(7)["part"]["c"]
    tensor([1., 1.])
    """

    def __init__(self, keys: Sequence[Hashable], folder: Path | None = None, limit: int = 2 << 30) -> None:
        self.keys, self.limit = list(keys), limit
        self._temporary = tempfile.TemporaryDirectory(prefix="accord-state-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary else Path(folder or ".")
        self.held: OrderedDict[int, Mapping[Hashable, State]] = OrderedDict()
        self.bytes = 0
        self.versions: dict[int, int] = {}  # the newest version of each client's state
        self.dirty: set[int] = set()  # clients whose newest version is in memory only
        self.committed: dict[int, int] = {}  # versions that a checkpoint names; their files stay until the next one

    def get(self, client: int) -> Mapping[Hashable, State]:
        """What this client kept, empty before its first round."""
        if client in self.held:
            self.held.move_to_end(client)
            return self.held[client]
        if client not in self.versions:
            return {}
        kept: dict[Hashable, dict[str, Tensor]] = {}
        for label, tensor in self._read(client).items():
            index, _, name = label.partition("/")
            kept.setdefault(self.keys[int(index)], {})[name] = tensor
        self._hold(client, kept)
        return kept

    def _read(self, client: int) -> dict[str, Tensor]:
        file = self._file(client, self.versions[client])
        try:
            return load_file(file)
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"what client {client} keeps, in {file}, is damaged ({error}): "
                f"remove {self.folder.parent}, and `accord resume` begins with the first round"
            ) from None

    def put(self, client: int, kept: Mapping[Hashable, State]) -> None:
        """Replace what this client keeps."""
        if not kept and client not in self.versions:
            return
        if client not in self.dirty:
            self._drop_file(client)
        self.versions[client] = self.versions.get(client, 0) + 1
        self.dirty.add(client)
        self._hold(client, kept)

    def _hold(self, client: int, kept: Mapping[Hashable, State]) -> None:
        if client in self.held:
            self.bytes -= _size(self.held.pop(client))
        self.held[client] = kept
        self.bytes += _size(kept)
        while self.bytes > self.limit and self.held:
            oldest = next(iter(self.held))
            if oldest in self.dirty:
                self._write(oldest)
            self.bytes -= _size(self.held.pop(oldest))

    def _write(self, client: int) -> None:
        named = {
            f"{self.keys.index(key)}/{name}": t.contiguous().clone()
            for key, state in self.held[client].items()
            for name, t in state.items()
        }
        target = self._file(client, self.versions[client])
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(named, target)
        self.dirty.discard(client)

    def _file(self, client: int, version: int) -> Path:
        return self.folder / f"{client // 1000:03d}" / f"{client}-{version}.safetensors"

    def _drop_file(self, client: int) -> None:
        """Remove the file of the newest version, unless a checkpoint still needs it."""
        version = self.versions.get(client)
        if version is not None and self.committed.get(client) != version:
            self._file(client, version).unlink(missing_ok=True)

    def flush(self) -> dict[int, int]:
        """Write every state that is in memory only; returns the versions, for the checkpoint to name."""
        for client in sorted(self.dirty):
            self._write(client)
        return dict(self.versions)

    def commit(self, versions: Mapping[int, int]) -> None:
        """A checkpoint now names these versions: the files that only the one before named may go."""
        for client, version in self.committed.items():
            if versions.get(client) != version:
                self._file(client, version).unlink(missing_ok=True)
        self.committed = dict(versions)

    def restore(self, versions: Mapping[int, int]) -> None:
        """Go on from a checkpoint's versions; files of later ones are removed."""
        self.versions, self.committed = dict(versions), dict(versions)
        self.held.clear()
        self.dirty.clear()
        self.bytes = 0
        named = {self._file(client, version) for client, version in versions.items()}
        for file in self.folder.glob("*/*.safetensors"):
            if file not in named:
                file.unlink()


def _size(kept: Mapping[Hashable, State]) -> int:
    return sum(tensor.nbytes for state in kept.values() for tensor in state.values())
