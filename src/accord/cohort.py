"""The clients of one round and what they answered, summed exactly as the answers come."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from accord.part import Part, State, Step
from accord.partial import Partial

if TYPE_CHECKING:
    from accord.algorithm import Algorithm
    from accord.server import Server


_WILD = "sent numbers that are not finite"


@dataclass
class Reply:
    """What one client answers: its weights `w` and statistics `b`, what it keeps, what it sends up, and how it went."""

    w: Tensor
    samples: int = 1
    client: int = 0
    b: Tensor = field(default_factory=lambda: torch.empty(0))
    kept: Mapping[Hashable, State] = field(default_factory=dict)
    up: Mapping[Hashable, State] = field(default_factory=dict)
    steps: int = 0
    loss: float = math.nan
    seconds: float = 0.0
    failure: str = ""  # why there is no answer, where a client gave none; the rest then means nothing
    delta: Tensor = field(default_factory=lambda: torch.empty(0), repr=False)  # w - w0; set by the cohort that takes the reply

    def tensors(self) -> Iterator[Tensor]:
        """Everything that a reply holds for the server."""
        yield self.w
        yield self.b
        for state in self.up.values():
            yield from state.values()

    def fault(self, size: int, statistics: int) -> str | None:
        """Why this reply cannot be used, or None."""
        if self.failure:
            return self.failure
        if self.w.numel() != size or self.b.numel() not in (0, statistics):
            return f"sent {self.w.numel()} weights and {self.b.numel()} statistics; the model has {size} and {statistics}"
        if self.samples <= 0:
            return "has no training samples"
        if not all(finite(t) for t in self.tensors()):
            return _WILD
        return None


class Diverged(ValueError):
    """Nobody's answer could be used, and all because their numbers were not finite."""


def finite(tensor: Tensor) -> bool:
    """Whether every number is finite; one pass when the sum is, two otherwise."""
    return math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all())


class Cohort:
    """One round as the server sees it.

    `aggregate` reads sums (`cohort.sum(part, name)`, `cohort.mean(part, name)`) of what its parts' `sums` named, or, in a part that
    says `reads_all`, every `reply` with its `delta`. Replies may arrive in any order, and be added up in any groups: the sums are exact
    and rounded once, to double precision, so that the result does not depend on it.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        w: Tensor,
        *,
        b: Tensor,
        state: Mapping[Hashable, State],
        clients: Sequence[int],
        population: int,
        round: int = 0,
        traffic: int | None = None,
    ) -> None:
        self.traffic = w.nbytes + b.nbytes if traffic is None else traffic  # bytes of weights and statistics, each way
        self.algorithm, self.w, self.b, self.population, self.round = algorithm, w, b, population, round
        self.state: dict[Hashable, State] = dict(state)
        self.clients = list(clients)
        self._expected = set(self.clients)
        self.absent: list[int] = []
        self.rejected: dict[int, str] = {}
        self.accepted: list[int] = []
        self.losses: list[float] = []
        self.samples: list[int] = []
        self.replies: list[Reply] = []  # of the accepted clients, where a part reads all
        self.seen: dict[int, State] = {}  # what a watch saw of each client
        self.bytes_up = self.bytes_down = 0
        self.server: Server
        self.seconds = 0.0
        self._waiting: dict[int, Reply] = {}
        self._read: dict[int, Reply] = {}
        self._next = 0
        self.reads_all = any(part.reads_all for part in algorithm.all_parts)
        self._sums = Partial()

    def take(self, reply: Reply) -> list[Reply]:
        """Add a reply; returns the replies that were accepted by this call."""
        assert reply.client in self._expected, f"client {reply.client} was not asked, or answered twice"
        self._expected.discard(reply.client)
        self._waiting[reply.client] = reply
        taken = []
        while (ready := self._ready()) is not None:
            if self._sums.add(ready, self.algorithm, self.w, self.b) is None:
                taken.append(ready)
                if self.reads_all:
                    self._read[ready.client] = ready
        self._record()
        return taken

    def _ready(self) -> Reply | None:
        """A reply that can be added now: the first usable one, in the order of the clients, says of what shape the others have to be."""
        if self._sums.totals:
            return self._waiting.popitem()[1] if self._waiting else None
        first = next((client for client in self.clients[self._next :] if client not in self._sums.outcomes), None)
        return None if first is None else self._waiting.pop(first, None)

    def merge(self, partial: Partial) -> None:
        """Add what the replies of some of the clients add up to elsewhere; only where no part `reads_all`."""
        assert not self.reads_all, "a part reads every reply, and here is a sum of them"
        assert self._expected.issuperset(partial.outcomes), "some of these clients were not asked, or answered twice"
        self._sums.merge(partial)
        self._expected.difference_update(partial.outcomes)
        self._record()

    def _record(self) -> None:
        """Record how it went with clients, in their order."""
        while self._next < len(self.clients) and self.clients[self._next] in self._sums.outcomes:
            self._note(self.clients[self._next])
            self._next += 1

    def _note(self, client: int) -> None:
        fault, samples, loss, sent = self._sums.outcomes[client]
        if fault is not None:
            self.rejected[client] = fault
            return
        self.bytes_up += self.traffic + sent
        self.accepted.append(client)
        self.samples.append(samples)
        self.losses.append(loss)
        if self.reads_all:
            self.replies.append(self._read.pop(client))

    def sum(self, part: Part, name: str) -> Tensor:
        """The sum over the accepted replies of weight times tensor, as named by `part.sums`."""
        return self._sums.totals[part, name].value().to(self.w.dtype)

    def mean(self, part: Part, name: str) -> Tensor:
        """The same sum divided by the sum of the weights."""
        total = self._sums.totals[part, name]
        return (total.value() / float(total.weights)).to(self.w.dtype)

    def step(self) -> tuple[Tensor, Tensor]:
        """The new global weights and statistics. `ValueError` when no reply could be used, `Diverged` when none was finite."""
        if not self.accepted:
            reasons = "; ".join(f"client {k} {why}" for k, why in list(self.rejected.items())[:3])
            kind = Diverged if self.rejected and set(self.rejected.values()) == {_WILD} else ValueError
            raise kind(f"round {self.round + 1}: no client gave a usable answer ({reasons or 'nobody answered'})")
        aggregate: Step = nothing
        outer = {type(part) for part in self.algorithm.parts}
        for part in self.algorithm.all_parts:
            if part.has("aggregate") and (part in self.algorithm.parts or type(part) not in outer):
                aggregate = _wrap(part, aggregate)
        w = self.w + aggregate(self)
        if self._sums.statistics.shape is None:
            return w, self.b.clone()
        return w, self.b + (self._sums.statistics.value() / sum(self.samples)).to(self.b.dtype)

    @property
    def loss(self) -> float:
        """The mean local objective during this round, weighted by samples, of the clients that took a step; NaN if none did."""
        known = [(n, loss) for n, loss in zip(self.samples, self.losses, strict=True) if not math.isnan(loss)]
        return sum(n * loss for n, loss in known) / sum(n for n, _ in known) if known else math.nan


def nothing(cohort: Cohort) -> Tensor:
    """The innermost step: none."""
    return torch.zeros_like(cohort.w)


def _wrap(part: Part, inner: Step) -> Step:
    return lambda cohort: part.aggregate(cohort, inner)
