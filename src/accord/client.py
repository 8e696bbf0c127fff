"""One client in one round: the model it trains, what it was sent, what it keeps, and the one local loop."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from accord.cohort import Reply
from accord.data.pool import Batch
from accord.flat import Flat, On, Output
from accord.part import Gradient, Part, State
from accord.seeds import stream

if TYPE_CHECKING:
    from accord.algorithm import Algorithm

__all__ = ["Batch", "Client", "local_round"]


class Client:
    """What a part sees while a client trains: `w`, `g`, `w0`, `down`, `kept`, `up`, `memo`, `rng` and the rule's constants.

    `down[part]` came from the server, `kept[part]` is this client's own from its last round (or its first state), `up[part]` goes
    to the server, `memo[part]` lasts for this round only. Values are replaced, never changed in place.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: Flat,
        w0: Tensor,
        *,
        down: Mapping[Hashable, State],
        kept: Mapping[Hashable, State],
        rng: torch.Generator,
        round: int = 0,
        id: int = 0,
        samples: int = 0,
    ) -> None:
        self.algorithm, self.rule, self.model, self.w0 = algorithm, algorithm.rule, model, w0
        self.w, self.g, self.layout = model.w, model.g, model.layout
        self.down, self.rng, self.round, self.id, self.samples = down, rng, round, id, samples
        self.kept: dict[Hashable, State] = {p: kept[p] if p in kept else p.client_state(w0) for p in algorithm.all_parts}
        if algorithm.buffers in kept:
            model.load_statistics(kept[algorithm.buffers]["b"])
        self.up: dict[Hashable, State] = {}
        self.memo: dict[Hashable, Any] = {}
        self.lr = algorithm.rule.lr * algorithm.rule.lr_decay**round
        self.step = 0
        self.decayed = False
        self._loss = self.w.new_zeros(())
        self._losses = 0
        self._others: dict[str, Flat] = {}

    def train(self, batches: Iterable[Batch]) -> None:
        """The local loop: every algorithm runs through these lines."""
        gradient: Gradient = partial(self.descend, self.algorithm.parts)
        for part in self.algorithm.parts:
            if part.has("gradient"):
                gradient = partial(part.gradient, self, inner=gradient)
        update = self.rule.start(self)
        for part in self.algorithm.all_parts:
            part.begin(self)
        self.model.module.train()
        self.algorithm.buffers.prepare(self.model.module)
        for batch in batches:
            self.decayed = False
            gradient(batch)
            update()
            self.step += 1
        for part in self.algorithm.all_parts:
            part.end(self)

        if self.algorithm.buffers.policy == "local" and self.model.b.numel():
            self.kept[self.algorithm.buffers] = {"b": self.model.read_statistics()}

    def reply(self) -> Reply:
        """What this client answers now: copies, so that the model can serve the next client."""
        w, b = self.w.detach().cpu().clone(), self.model.read_statistics().cpu()
        if self.algorithm.buffers.policy == "freeze":
            b = b.new_empty(0)
        kept, up = _plain(self.kept), _plain(self.up)
        return Reply(w, self.samples, self.id, b, kept, up, steps=self.step, loss=self.loss)

    def descend(self, parts: Sequence[Part], batch: Batch, on: On | None = None) -> None:
        """Fill `g` with the gradient of the sum of these parts' loss terms at the present weights."""
        self.g.zero_()
        terms = [part for part in parts if part.has("loss")]
        if not terms:
            return
        out = self.forward(batch.x)
        loss = terms[0].loss(self, batch, out)
        for part in terms[1:]:
            loss = loss + part.loss(self, batch, out)
        self.backward(loss, on or self.rule.on)
        if on is None:
            self._loss += loss.detach()
            self._losses += 1

    def pull(self, part: Part, batch: Batch, on: On) -> None:
        """Fill `g` with what this one part alone adds to a gradient: of its loss term, or of its own formula."""
        part.gradient(self, batch, partial(self.descend, (part,), on=on))

    def forward(self, x: Tensor) -> Output:
        """The model's answer at the present weights."""
        out = self.model.module(x)
        return out if isinstance(out, Output) else Output(out)

    def backward(self, loss: Tensor, on: On = "all") -> None:
        """Add the gradient of a loss to `g`, for the named part of the weights."""
        if not loss.requires_grad:
            return
        if on == "all":
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            loss.backward(inputs=self.wanted(on))  # type: ignore[no-untyped-call]

    def wanted(self, on: On) -> list[Tensor]:
        """The parameters of the head, of the body, or all."""
        spans = self.layout.spans(on)
        inside = {s.name for s in self.layout.slots if any(k.start <= s.start and s.stop <= k.stop for k in spans)}
        return [p for name, p in self.model.parameters.items() if name in inside]

    def features(self, out: Output, needed_by: Part) -> Tensor:
        """The features of an answer, or a `ValueError` when the model gives none."""
        if out.features is None:
            raise ValueError(
                f"{needed_by.name} reads the model's features, and {type(self.model.module).__name__} returns logits only: "
                "return accord.Output(logits, features) from its forward"
            )
        return out.features

    def look(self, name: str, w: Tensor, x: Tensor) -> Output:
        """The answer of the model at other weights, in evaluation mode and without gradient; `name` tells one set from another."""
        if name not in self._others:
            other = self.model_for(name)
            other.load(w, self.model.b)
            self._others[name] = other
        with torch.no_grad():
            out = self._others[name].module(x)
        return out if isinstance(out, Output) else Output(out)

    def model_for(self, name: str) -> Flat:
        """A second model of the same shape, made once for a worker and reused."""
        spare: dict[str, Flat] = self.model.__dict__.setdefault("spare", {})
        if name not in spare:
            spare[name] = self.model.twin()
        return spare[name]

    @contextmanager
    def shifted(self, e: Tensor) -> Iterator[None]:
        """Within the block the weights are `w + e`; afterwards they are exactly what they were."""
        before = self.w.clone()
        self.w.add_(e)
        try:
            yield
        finally:
            self.w.copy_(before)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within the block the model's statistics (BatchNorm) do not move."""
        before = self.model.read_statistics()
        try:
            yield
        finally:
            self.model.load_statistics(before)

    def decay(self) -> None:
        """Add the rule's weight decay to `g` now, so that a part outside sees it; the rule then adds it no more this step."""
        if not self.decayed and self.rule.decay:
            self.g.add_(self.w, alpha=self.rule.decay)
        self.decayed = True

    @property
    def loss(self) -> float:
        """The mean of the local objective over the steps taken so far."""
        return float(self._loss) / self._losses if self._losses else float("nan")



def _plain(states: Mapping[Hashable, State]) -> dict[Hashable, State]:
    return {key: {name: tensor.detach().cpu() for name, tensor in state.items()} for key, state in states.items() if state}


def local_round(
    algorithm: Algorithm,
    module: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    w0: Tensor | Mapping[str, Tensor] | None = None,
    down: Mapping[Hashable, State] | None = None,
    kept: Mapping[Hashable, State] | None = None,
    seed: int = 0,
    round: int = 0,
) -> Reply:
    """One client's round on these batches, in this order, from the weights `w0` (default: the module's own). The module is not changed.

    `down` and `kept` are what the server sends and the client keeps, by part; what is not given starts as in a first round.

    >>> import accord
    >>> reply = accord.local_round(accord.fedavg(), nn.Linear(2, 3), [(torch.ones(4, 2), torch.tensor([0, 1, 2, 0]))])
    >>> reply.w.shape, reply.samples, reply.steps
    (torch.Size([9]), 4, 1)
    """
    model = Flat(copy.deepcopy(module))
    start = model.layout.pack(w0) if isinstance(w0, Mapping) else model.w.clone() if w0 is None else w0
    model.load(start)
    client = Client(
        algorithm,
        model,
        start,
        down={**first_down(algorithm, start), **(down or {})},
        kept=kept or {},
        rng=stream(seed, "client", round, 0),
        round=round,
        samples=sum(len(y) for _, y in batches),
    )
    client.train(Batch(x, y) for x, y in batches)
    return client.reply()


def first_down(algorithm: Algorithm, w: Tensor) -> dict[Hashable, State]:
    """What the server sends besides the weights in a first round."""
    return {p: {name: p.server_state(w)[name] for name in p.sends} for p in algorithm.all_parts if p.sends}
