"""The engine that runs clients side by side on the threads of this process."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import torch
from torch import nn

from accord.data.federation import Federation
from accord.engines import Lookup, one_thread, stateless
from accord.jobs import Job, Kept, Train, Worker


class Threads:
    """A pool of threads, one model and one intra-op thread each. PyTorch lets go of the interpreter while it computes.

    A model that draws random numbers of its own (dropout) cannot run here: its draws come from one stream that all threads share.
    """

    name = "threads"

    def __init__(self, module: nn.Module, federation: Federation, *, workers: int, device: str = "cpu") -> None:
        self._restore = one_thread()
        self._local = threading.local()
        self._start_with = (module, federation, device)
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(workers, "accord", initializer=self._start)
        self._tried = False

    def _start(self) -> None:
        torch.set_num_threads(1)
        module, federation, device = self._start_with
        with self._lock:
            self._local.worker = Worker(copy.deepcopy(module), federation, device)

    def _run(self, job: Job, client: int, kept: Kept) -> Any:
        return job.run(self._local.worker, client, kept)

    def _try(self, job: Job, client: int, kept: Kept) -> Any:
        """Run one client while no other runs, and see whether the model drew from the shared stream."""
        answer = self._pool.submit(self._run, job, client, kept).result()
        if not torch.equal(torch.get_rng_state(), job.module_stream(client).get_state()):
            raise ValueError(
                "this model draws random numbers of its own (dropout?), which threads would share: use the engine process or processes"
            )
        self._tried = True
        return answer

    def map(self, job: Job, clients: Sequence[int], kept: Lookup = stateless) -> Iterator[tuple[int, Any]]:
        before, first = torch.get_rng_state(), 0
        try:
            if isinstance(job, Train) and not self._tried and clients:
                first = 1
                yield clients[0], self._try(job, clients[0], kept(clients[0]))
            waiting = {self._pool.submit(self._run, job, client, kept(client)): client for client in clients[first:]}
            for done in as_completed(waiting):
                yield waiting.pop(done), done.result()
        finally:
            torch.set_rng_state(before)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._restore()

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
