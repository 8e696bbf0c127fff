"""What engines carry: frozen jobs that a worker does for one client, knowing nothing of engines."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accord.algorithm import Algorithm
from accord.client import Batch, Client, Paused
from accord.cohort import Reply
from accord.data.federation import Federation
from accord.data.pool import Pool
from accord.flat import Flat, logits
from accord.part import State
from accord.seeds import number, seed_module, stream

Kept: TypeAlias = Mapping[Hashable, State]
CHUNK = 200  # samples a forward pass when nothing is learned: convolutions are slower on more


class Worker:
    """One model and the clients' data, in one process or thread."""

    def __init__(self, module: nn.Module, federation: Federation, device: str = "cpu") -> None:
        self.model, self.federation, self.device = Flat(module.to(device)), federation, torch.device(device)

    def place(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches on this worker's device."""
        if self.device.type == "cpu":
            return iter(batches)
        return (Batch(b.x.to(self.device, non_blocking=True), b.y.to(self.device, non_blocking=True)) for b in batches)


@dataclass(frozen=True)
class Job:
    """The global model of a round, as every job needs it."""

    algorithm: Algorithm
    w: Tensor
    b: Tensor
    round: int = 0
    seed: int = 0
    down: Kept = field(default_factory=dict)

    def cost(self, federation: Federation, client: int) -> int:
        """How long this job takes for a client, relative to others; what an engine plans by."""
        return 1

    def run(self, worker: Worker, client: int, kept: Kept) -> Any:
        """Do the job for one client."""
        raise TypeError(f"{type(self).__name__} does not say what to do")

    def module_stream(self, client: int) -> torch.Generator:
        """The stream of random numbers that a module draws from by itself, as dropout does."""
        return stream(self.seed, "module", self.round, client)

    def federation(self, worker: Worker) -> Federation:
        """Whose clients' data this job is about."""
        return worker.federation

    def client(self, worker: Worker, client: int, kept: Kept) -> Client:
        """The client at the start of its round: the global weights, its own state, its own randomness."""
        device = worker.device
        seed_module(number(self.seed, "module", self.round, client), device)
        w0 = self.w.to(device)
        worker.model.load(w0, self.b)
        federation = self.federation(worker)
        index = federation.clients[client]
        return Client(
            self.algorithm,
            worker.model,
            w0,
            down=_to(self.down, device),
            kept=_to(kept, device),
            rng=lambda: stream(self.seed, "client", self.round, client),
            round=self.round,
            id=client,
            samples=len(index),
            relative=len(index) / max(federation.mean_size, 1e-9),
            data=lambda size: worker.place(federation.train.batches(index, size)),
        )


def _to(states: Kept, device: torch.device) -> Kept:
    if device.type == "cpu":
        return states
    return {key: {name: tensor.to(device) for name, tensor in state.items()} for key, state in states.items()}


@dataclass(frozen=True)
class Train(Job):
    """One client's local training."""

    def federation(self, worker: Worker) -> Federation:
        return self.algorithm.trains_on(worker.federation)

    def run(self, worker: Worker, client: int, kept: Kept) -> Reply:
        answer = self.run_until(worker, client, kept)
        assert isinstance(answer, Reply)
        return answer

    def run_until(self, worker: Worker, client: int, kept: Kept, paused: Paused | None = None, stop: int | None = None) -> Reply | Paused:
        """Train from the start or from where the client was paused, to the end or until `stop` steps are done."""
        started = time.perf_counter()
        me = self.client(worker, client, kept)
        batches = self.batches(worker.federation, client)
        if paused is None:
            me.begin()
        else:
            me.resume(paused)
        try:
            me.run(worker.place(itertools.islice(batches, me.step, stop)))
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ValueError(
                f"client {client} has a batch of one sample, which BatchNorm cannot normalise: use another batch size, "
                "sgd(drop_last=True), clients with more samples, or a model with group norm"
            ) from None
        if stop is not None:
            return me.pause()
        me.end()
        reply = me.reply()
        reply.seconds = time.perf_counter() - started
        return reply

    def batches(self, federation: Federation, client: int) -> Iterator[Batch]:
        """The client's batches of this round."""
        rule, rng = self.algorithm.rule, stream(self.seed, "batches", self.round, client)
        epochs, steps = rule.length(rng)
        data = self.algorithm.trains_on(federation)
        return data.batches(client, rng, size=rule.batch, epochs=epochs, steps=steps, drop_last=rule.drop_last)

    def cost(self, federation: Federation, client: int) -> int:
        """How many steps the client will take."""
        rule, rng = self.algorithm.rule, stream(self.seed, "batches", self.round, client)
        epochs, steps = rule.length(rng)
        if steps is not None:
            return steps
        data = self.algorithm.trains_on(federation)
        return data.steps(client, size=rule.batch, epochs=epochs or 0, drop_last=rule.drop_last)


@dataclass(frozen=True)
class Score:
    """How many samples of each class there were, how many were right, and the summed loss."""

    right: Tensor
    total: Tensor
    loss: float

    @property
    def samples(self) -> int:
        """How many samples were looked at."""
        return int(self.total.sum())

    @property
    def accuracy(self) -> float:
        """The share that was right."""
        return float(self.right.sum()) / self.samples if self.samples else float("nan")

    def __add__(self, other: Score) -> Score:
        return Score(self.right + other.right, self.total + other.total, self.loss + other.loss)


@dataclass(frozen=True)
class Evaluate(Job):
    """A score: of the global model on one chunk of the test set or on one client's own data, or of a client's personal model.

    For `of="test"` the engine's "clients" are chunks of the test set, so that workers share it.
    """

    of: Literal["test", "train", "own", "personal"] = "test"

    def run(self, worker: Worker, client: int, kept: Kept) -> Score:
        federation = worker.federation
        if self.of == "test":
            index = torch.arange(client * CHUNK, min((client + 1) * CHUNK, len(federation.test)))
            worker.model.load(self.w.to(worker.device), self.b)
            worker.model.mode(False)
            return self.score(worker, federation.test, index, lambda x: logits(worker.model.module(x)))
        me = self.client(worker, client, kept)
        if self.of == "personal":
            size, drop = self.algorithm.rule.batch, self.algorithm.rule.drop_last
            predict = self.algorithm.personal.fit(
                me, lambda epochs: worker.place(federation.batches(client, me.rng, size=size, epochs=epochs, drop_last=drop))
            )
        else:
            predict = lambda x: me.forward(x).logits  # noqa: E731
        me.model.mode(False)
        pool, index = (federation.train, federation.clients[client]) if self.of == "train" else (federation.own, federation.tests[client])
        return self.score(worker, pool, index, predict)

    def score(self, worker: Worker, pool: Pool, index: Tensor, predict: Callable[[Tensor], Tensor]) -> Score:
        """The score of a prediction on some samples of a pool."""
        classes = worker.federation.classes
        right, total, loss = torch.zeros(classes, dtype=torch.long), torch.zeros(classes, dtype=torch.long), 0.0
        with torch.no_grad():
            for batch in worker.place(pool.gather(part) for part in torch.split(index, CHUNK)):
                scores, y = predict(batch.x).flatten(0, -2), batch.y.flatten()
                loss += float(F.cross_entropy(scores, y, reduction="sum"))
                total += torch.bincount(y.cpu(), minlength=classes)
                right += torch.bincount(y[scores.argmax(-1) == y].cpu(), minlength=classes)
        return Score(right, total, loss)
