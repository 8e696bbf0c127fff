"""Checkpoints: everything a run needs to go on as if nothing had happened, replaced in one step."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from accord.server import Server
from accord.store import Store

_SHARE = 100  # a checkpoint is due when the run has worked this many times as long as the last one took


class Checkpoint:
    """The checkpoint in a run's folder. A manifest names the files of one moment; it is the last thing written, and renamed into place.

    A process that dies at any moment leaves either the old manifest and its files, or the new one and its own.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = folder / "checkpoint.json"
        self._cost = 0.0
        self._since = time.monotonic()

    @property
    def due(self) -> bool:
        """Whether enough work was done since the last one to be worth saving: at most one part in 100 of the time goes to saving."""
        return time.monotonic() - self._since > _SHARE * self._cost

    def save(self, server: Server, store: Store, notes: dict[str, Any]) -> None:
        """Write the server, every client's state and some notes of the run."""
        started = time.monotonic()
        self.folder.mkdir(parents=True, exist_ok=True)
        tensors = {"w": server.w, "b": server.b}
        keys = server.algorithm.keys
        for key, state in server.state.items():
            tensors |= {f"{keys.index(key)}/{name}": tensor for name, tensor in state.items()}
        name = f"server-{server.round:06d}.safetensors"
        draft = self.folder / (name + ".new")  # the manifest in force may name a file of this very round
        save_file({label: tensor.detach().cpu().contiguous().clone() for label, tensor in tensors.items()}, draft)
        draft.replace(self.folder / name)
        versions = store.flush()
        write_atomically(self.manifest, json.dumps({"round": server.round, "server": name, "clients": versions, **notes}))
        store.commit(versions)
        for old in self.folder.glob("server-*"):
            if old.name != name:
                old.unlink()
        self._cost, self._since = time.monotonic() - started, time.monotonic()

    def load(self, server: Server, store: Store) -> dict[str, Any] | None:
        """Put server and store where the checkpoint left them, and return its notes; None when there is none."""
        notes = self.read(server)
        store.restore({} if notes is None else notes["clients"])
        return notes

    def read(self, server: Server) -> dict[str, Any] | None:
        """Put the server where the checkpoint left it, and return the notes with the versions of the clients' states; writes nothing."""
        if not self.manifest.is_file():
            return None
        try:
            notes: dict[str, Any] = json.loads(self.manifest.read_text(encoding="utf-8"))
            tensors = load_file(self.folder / notes["server"])
            w, b, at = tensors.pop("w"), tensors.pop("b"), notes["round"]
            found: dict[Any, dict[str, torch.Tensor]] = {}
            for label, tensor in tensors.items():
                index, _, name = label.partition("/")
                found.setdefault(server.algorithm.keys[int(index)], {})[name] = tensor
            notes["clients"] = {int(client): version for client, version in notes["clients"].items()}
        except (ValueError, LookupError, TypeError, AttributeError, OSError, SafetensorError) as error:
            raise damaged(self.folder, error) from None
        if w.shape != server.w.shape or b.shape != server.b.shape:
            raise ValueError(
                f"the checkpoint in {self.folder} is of another model ({len(w)} weights, not {len(server.w)}): remove that folder"
            )
        server.w, server.b, server.round, server.state = w, b, at, dict(found)
        return notes


def damaged(folder: Path, error: Exception) -> ValueError:
    """What is said of a checkpoint that cannot be read."""
    why = f"{type(error).__name__}: {error}"
    return ValueError(f"the checkpoint in {folder} is damaged ({why}): remove that folder, and `accord resume` begins with the first round")


def write_atomically(path: Path, text: str) -> None:
    """Replace a file as a whole: a reader, or a crash, sees the old text or the new."""
    draft = path.with_name(path.name + ".new")
    with draft.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(path)
