"""The engine that runs everything here, one client after another, on one thread."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from accord.data.federation import Federation
from accord.engines import Lookup, one_thread, stateless
from accord.jobs import Job, Worker


class Process:
    """One worker in this process. While it is open PyTorch uses one thread, as in every engine: results do not depend on the choice."""

    name = "process"

    def __init__(self, module: nn.Module, federation: Federation, *, device: str = "cpu") -> None:
        self._restore = one_thread()
        self.worker = Worker(copy.deepcopy(module), federation, device)

    def map(self, job: Job, clients: Sequence[int], kept: Lookup = stateless) -> Iterator[tuple[int, Any]]:
        before = torch.get_rng_state()
        try:
            for client in clients:
                yield client, job.run(self.worker, client, kept(client))
        finally:
            torch.set_rng_state(before)

    def close(self) -> None:
        self._restore()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
