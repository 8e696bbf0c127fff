"""The engine that measures two rounds and then decides where the others run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from accord.data.federation import Federation
from accord.engines import Engine, Lookup, stateless
from accord.engines.process import Process
from accord.engines.processes import Processes
from accord.jobs import Job, Train

_HIRING = 4.0  # seconds to start worker processes, pessimistically


class Auto:
    """Here for two rounds; then worker processes, if what they could save is more than they cost to start, and if they keep the promise.

    The choice cannot change a result: every engine gives the same bits.
    """

    def __init__(self, module: nn.Module, federation: Federation, *, workers: int, device: str = "cpu", rounds: int = 1) -> None:
        self._start = (module, federation)
        self._workers, self._device, self._rounds = workers, device, rounds
        self._engine: Engine = Process(module, federation, device=device)
        self._here = self._engine
        self._pace: list[float] = []  # seconds for one unit of cost, in each round so far

    @property
    def name(self) -> str:
        """The engine in use."""
        return self._engine.name

    def map(self, job: Job, clients: Sequence[int], kept: Lookup = stateless) -> Iterator[tuple[int, Any]]:
        started = time.perf_counter()
        yield from self._engine.map(job, clients, kept)
        if isinstance(job, Train) and len(self._pace) < 5:
            cost = sum(job.cost(self._start[1], client) for client in clients)
            self._pace.append((time.perf_counter() - started) / max(cost, 1))
            self._decide(len(clients), cost)

    def _decide(self, clients: int, cost: int) -> None:
        measured = len(self._pace)
        if measured == 2 and self._workers > 1 and clients > 1:
            left = (self._rounds - 2) * self._pace[1] * cost
            if left * (1 - 1 / min(self._workers, clients)) > 2 * _HIRING:
                self._engine = Processes(*self._start, workers=self._workers, device=self._device)
        elif measured == 4 and self._engine is not self._here and self._pace[3] > self._pace[1]:
            self._engine.close()
            self._engine = self._here

    def close(self) -> None:
        if self._engine is not self._here:
            self._engine.close()
        self._here.close()

    def __enter__(self) -> Auto:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
