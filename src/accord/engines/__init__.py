"""Engines: where jobs run. They know jobs and clients, never algorithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, Self, runtime_checkable

import torch
from torch import nn

from accord.data.federation import Federation
from accord.jobs import Job, Kept, Train
from accord.partial import Partial
from accord.store import Store

Lookup = Callable[[int], Kept]


def stateless(client: int) -> Kept:
    """The lookup for jobs that read nothing a client keeps."""
    return {}


def one_thread() -> Callable[[], None]:
    """Let PyTorch use one thread in this process; returns what puts back the number there was, also while Python shuts down.

    The server's norms are made here too, and how a sum is cut among threads changes its last bits.
    """
    restore = partial(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)
    return restore


class Engine(Protocol):
    """What every engine does: run one job for many clients and hand over the answers as they come. Closed at the end of a `with`."""

    @property
    def name(self) -> str:
        """What it is called."""

    def map(self, job: Job, clients: Sequence[int], kept: Lookup = stateless) -> Iterator[tuple[int, Any]]:
        """`(client, answer)` for each of the clients, in any order."""

    def close(self) -> None:
        """End what the engine started."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exception: object) -> None: ...


@runtime_checkable
class Summing(Protocol):
    """An engine that can add up replies where the clients are; asked for that where no part reads every reply."""

    def sums(self, job: Train, clients: Sequence[int], store: Store) -> Iterator[Partial]:
        """Sums over disjoint groups of these clients, in any order, with what the clients keep."""


ABOUT: Mapping[str, str] = {
    "auto": "Here for two rounds, then in worker processes if the time they take says that this pays.",
    "process": "In this process, one client after another.",
    "threads": "On a pool of threads of this process, one model each; for models without dropout.",
    "processes": "In worker processes that stay, with weights in shared memory; a worker that dies is replaced.",
    "ray": "On a Ray cluster, or Ray on this machine: actors that own clients and send one sum a round; needs accord[ray].",
}


def open_engine(
    name: str, module: nn.Module, federation: Federation, *, workers: int, device: str = "cpu", rounds: int = 1, address: str = ""
) -> Engine:
    """The engine of that name, ready to run; `address` is where Ray's cluster is."""
    from accord.engines.auto import Auto
    from accord.engines.process import Process
    from accord.engines.processes import Processes
    from accord.engines.ray import Ray
    from accord.engines.threads import Threads

    makers: Mapping[str, Callable[[], Engine]] = {
        "auto": lambda: Auto(module, federation, workers=workers, device=device, rounds=rounds),
        "process": lambda: Process(module, federation, device=device),
        "threads": lambda: Threads(module, federation, workers=workers, device=device),
        "processes": lambda: Processes(module, federation, workers=workers, device=device),
        "ray": lambda: Ray(module, federation, workers=workers, device=device, address=address),
    }
    return makers[name]()
