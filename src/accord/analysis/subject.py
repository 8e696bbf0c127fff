"""What is analysed: a run's folder, opened to be read only, with its model, its clients and their data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

from accord.algorithm import Algorithm
from accord.analysis.piece import Progress, quiet
from accord.analysis.scratch import Scratch
from accord.checkpoint import Checkpoint
from accord.data.federation import Federation
from accord.data.pool import Batch
from accord.experiment import Experiment, read_file
from accord.flat import Flat
from accord.jobs import Train, Worker
from accord.reports.record import Run, read_run
from accord.seeds import stream
from accord.server import Server
from accord.store import Store

On: TypeAlias = Literal["train", "test"]


@dataclass(frozen=True, eq=False)
class Subject:
    """A run under analysis. Nothing of it is written to but `analysis/`."""

    path: Path

    @cached_property
    def record(self) -> Run:
        """What the run wrote: settings, rounds, result."""
        return read_run(self.path)

    @cached_property
    def experiment(self) -> Experiment:
        """The run's settings."""
        file = self.path / "experiment.toml"
        if not file.is_file():
            raise ValueError(f"{str(self.path)!r} holds no run: there is no experiment.toml in it")
        return Experiment.of(read_file(file), str(file))

    @cached_property
    def federation(self) -> Federation:
        """The clients and their data, as in the run."""
        return self.experiment.federation()

    @cached_property
    def algorithm(self) -> Algorithm:
        """The run's algorithm."""
        return self.experiment.recipe()

    @cached_property
    def first(self) -> nn.Module:
        """The model with its first weights."""
        return self.experiment.module(self.federation)

    @cached_property
    def _state(self) -> tuple[Server, Store]:
        checkpoint = Checkpoint(self.path / "checkpoint")
        server, store = Server.start(self.algorithm, self.first), Store(self.algorithm.keys, checkpoint.folder / "clients")
        notes = checkpoint.read(server)
        if notes is None:
            raise ValueError(
                f"{str(self.path)!r} has no checkpoint, and so no weights to analyse: `accord resume {self.path}` finishes the run first"
            )
        store.versions = dict(notes["clients"])
        return server, store

    @property
    def server(self) -> Server:
        """The server at the run's last checkpoint."""
        return self._state[0]

    @cached_property
    def module(self) -> nn.Module:
        """The global model at the last checkpoint, ready to be asked."""
        return self.at(self.server.w, self.server.b)

    def at(self, w: Tensor, b: Tensor | None = None) -> nn.Module:
        """The model at other weights and statistics (default: the server's)."""
        flat = Flat(self.experiment.module(self.federation))
        flat.load(w, self.server.b if b is None or not b.numel() else b)
        return flat.module.eval()

    def batches(self, samples: int, size: int = 50, *, on: On = "train", client: int | None = None) -> list[Batch]:
        """So many samples, or all there are if they are fewer, unchanged, in batches: of everyone's, or of one client's.

        They are drawn once, by the run's seed, so that every analysis of a run looks at the same ones.
        """
        federation = self.federation
        if on == "test" and client is None and not len(federation.test):
            raise ValueError("these data have no global test set: analyse with on='train'")
        if client is not None:
            pool, index = (federation.train, federation.clients[client]) if on == "train" else (federation.own, federation.tests[client])
        elif on == "train":
            pool, index = federation.train, federation.clients.order[: int(federation.clients.starts[federation.population])]
        else:
            pool, index = federation.test, torch.arange(len(federation.test))
        drawn = torch.randperm(len(index), generator=stream(self.experiment.seed, "analysis", on, -1 if client is None else client))
        return [Batch(x.contiguous(), y) for x, y in pool.batches(index[drawn[:samples]], size)]

    def clients(self, count: int) -> list[int]:
        """So many of the clients that train and have samples, drawn by the run's seed; all of them if they are fewer."""
        data = self.algorithm.trains_on(self.federation)
        able = torch.nonzero(data.clients.sizes[: data.population] > 0).flatten()
        drawn = torch.randperm(len(able), generator=stream(self.experiment.seed, "analysis", "clients"))[:count]
        return sorted(able[drawn].tolist())

    def locals(self, clients: Sequence[int], progress: Progress = quiet) -> list[tuple[Tensor, Tensor]]:
        """Weights and statistics of these clients after one more local round from the checkpoint, each trained as the run would."""
        server, store = self._state
        worker, found = Worker(self.experiment.module(self.federation), self.federation), []
        job = Train(self.algorithm, server.w, server.b, server.round, self.experiment.seed, server.down)
        for place, client in enumerate(clients):
            progress("local rounds", place, len(clients))
            reply = job.run(worker, client, store.get(client))
            found.append((reply.w, reply.b))
        progress("local rounds", len(clients), len(clients))
        return found

    def partial(self, name: str) -> Path:
        """Where an analysis leaves what it has found so far."""
        return self.path / "analysis" / "partial" / name

    def scratch(self, name: str, what: str, *key: object) -> Scratch:
        """What an analysis has found so far of something; it goes on from there only with the same key and the same weights."""
        w = self.server.w
        return Scratch(self.partial(name) / what, f"{what} {key!r} {self.server.round} {float(w.sum())!r} {float(w.norm())!r}")
