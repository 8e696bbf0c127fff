"""What lives on a Ray worker: one model, the data, and what its clients keep from round to round."""

from __future__ import annotations

import copy
import os
import warnings
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch

from accord.engines.arena import Arena
from accord.engines.crew import portable
from accord.jobs import Job, Kept, Train, Worker
from accord.partial import Partial

Parcel: TypeAlias = tuple[bytes, np.ndarray]  # a pickle without its tensors, and the tensors side by side
Key: TypeAlias = Hashable  # which version of a client's state is meant
_LIMIT = 2 << 30  # bytes of clients' states in an actor's memory; what leaves is sent again when it is needed


def pack(thing: Any) -> Parcel:
    """A thing as Ray can carry it without copying its tensors more than once a machine."""
    arena = Arena()
    packed = arena.pack(thing)
    return packed, arena.block[: arena.used].numpy()


def unpack(parcel: Parcel, copy: bool = True) -> Any:
    """The thing again; without `copy` its tensors are memory that must not be written to."""
    packed, block = parcel
    arena = Arena()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # Ray's memory is read-only
        arena.give(torch.from_numpy(block))
    return arena.unpack(packed, copy=copy)


class Actor:
    """A worker that owns clients. Asked about a version of their states that it does not hold, it says so, and is sent it."""

    def __init__(self, parcel: Parcel) -> None:
        torch.set_num_threads(1)
        _, module, federation, device = unpack(parcel, copy=False)
        self.worker = Worker(copy.deepcopy(module), federation, device)
        self.held: OrderedDict[int, tuple[Key, Kept]] = OrderedDict()
        self.bytes = 0

    def pid(self) -> int:
        """The number of the process."""
        return os.getpid()

    def answer(self, job: Parcel, asked: Mapping[int, Key | None], states: Parcel | None, after: Mapping[int, Key] | None) -> Any:
        """A parcel with answers by client, or with their sum if it is said which version `after` it is what each client keeps.

        In place of it, the clients whose states must be sent along, or the error that ended the work.
        """
        found = self._found(asked, unpack(states) if states is not None else {})
        lacking = [client for client in asked if client not in found]
        if lacking:
            return lacking
        try:
            return pack(self._run(unpack(job), found) if after is None else self._sum(unpack(job), found, after))
        except Exception as error:
            return portable(error)

    def _run(self, job: Job, found: Mapping[int, Kept]) -> Mapping[int, Any]:
        if isinstance(job, Train):  # what they keep from now on is for the server to say
            self._forget(found)
        return {client: job.run(self.worker, client, kept) for client, kept in found.items()}

    def _sum(self, job: Train, found: Mapping[int, Kept], after: Mapping[int, Key]) -> Partial:
        partial = Partial()
        for client, kept in found.items():
            reply = job.run(self.worker, client, kept)
            if partial.add(reply, job.algorithm, job.w, job.b) is None:
                partial.kept[client] = reply.kept
                self._hold(client, after[client], reply.kept)
        return partial

    def _found(self, asked: Mapping[int, Key | None], sent: Mapping[int, Kept]) -> dict[int, Kept]:
        """What these clients keep, as sent along or as held here; without a version, nothing."""
        found = {client: self.held[client][1] for client, key in asked.items() if client in self.held and self.held[client][0] == key}
        return {client: {} for client, key in asked.items() if key is None} | found | {k: sent[k] for k in asked if k in sent}

    def _hold(self, client: int, key: Key, kept: Kept) -> None:
        self._forget([client])
        self.held[client] = key, kept
        self.bytes += sum(_sizes(kept))
        while self.bytes > _LIMIT:
            self._forget([next(iter(self.held))])

    def _forget(self, clients: Iterable[int]) -> None:
        for client in clients:
            if client in self.held:
                self.bytes -= sum(_sizes(self.held.pop(client)[1]))


def _sizes(kept: Kept) -> Iterator[int]:
    return (tensor.nbytes for state in kept.values() for tensor in state.values())
