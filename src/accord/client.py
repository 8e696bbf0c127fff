"""One client in one round: the model it trains, what it was sent, what it keeps, and the one local loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from accord.cohort import Reply
from accord.data.pool import Batch
from accord.flat import Body, Flat, On, Output
from accord.part import Gradient, Part, State
from accord.seeds import stream

if TYPE_CHECKING:
    from accord.algorithm import Algorithm

__all__ = ["Batch", "Client", "local_round"]


@dataclass(frozen=True)
class Paused:
    """A client between two steps of its round: weights, statistics, states and random streams."""

    w: Tensor
    b: Tensor
    kept: dict[Hashable, State]
    up: dict[Hashable, State]
    memo: dict[Hashable, Any]
    rngs: tuple[Tensor, Tensor]
    step: int
    loss: Tensor
    losses: int


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
        rng: Callable[[], torch.Generator],
        round: int = 0,
        id: int = 0,
        samples: int = 0,
        relative: float = 1.0,
        data: Callable[[int], Iterable[Batch]] | None = None,
    ) -> None:
        self.algorithm, self.rule, self.model, self.w0 = algorithm, algorithm.rule, model, w0
        self.w, self.g, self.layout = model.w, model.g, model.layout
        self.down, self._rng, self.round, self.id, self.samples = down, rng, round, id, samples
        self.relative, self._data = relative, data
        self.kept: dict[Hashable, State] = {p: kept[p] if p in kept else p.client_state(w0) for p in algorithm.all_parts}
        if self.rule in kept:
            self.kept[self.rule] = kept[self.rule]
        if algorithm.buffers in kept:
            model.load_statistics(kept[algorithm.buffers]["b"])
        self.b0 = model.read_statistics()
        self.up: dict[Hashable, State] = {}
        self.memo: dict[Hashable, Any] = {}
        self.lr = algorithm.rule.lr * algorithm.rule.lr_decay**round
        self.step = self.passes = 0  # optimiser steps, and forward passes that move the model's statistics
        self.decayed = False
        self._body: Body | None = None
        self._copy: tuple[int, Tensor] | None = None
        self._watch = ""
        self.seen: tuple[Tensor, Tensor] | None = None
        self._loss = self.w.new_zeros(())
        self._losses = 0
        self._others: dict[str, Flat] = {}
        self._answers: dict[tuple[str, bool], tuple[Tensor, Output]] = {}

    @cached_property
    def rng(self) -> torch.Generator:
        """This client's own random numbers in this round, for parts that draw."""
        return self._rng()

    @property
    def drift(self) -> Tensor:
        """w - w0, exactly zero where nothing has moved; the next call writes over it."""
        return torch.sub(self.w, self.w0, out=self.model.scratch)

    def train(self, batches: Iterable[Batch]) -> None:
        """One whole round: begin, the local loop over these batches, end."""
        self.begin()
        self.run(batches)
        self.end()

    def begin(self) -> None:
        """Let every part prepare the round."""
        for part in self.algorithm.all_parts:
            part.begin(self)

    def run(self, batches: Iterable[Batch]) -> None:
        """The local loop: every algorithm runs through these lines."""
        gradient: Gradient = partial(self.descend, self.algorithm.parts)
        for part in self.algorithm.parts:
            if part.has("gradient"):
                gradient = partial(part.gradient, self, inner=gradient)
        update = self.rule.start(self)
        moved = [part.moved for part in self.algorithm.parts if part.has("moved")]
        self.model.mode(True, self.algorithm.buffers)
        for batch in batches:
            self.decayed = False
            gradient(batch)
            update()
            for correct in moved:
                correct(self)
            self.step += 1

    def end(self) -> None:
        """Let every part set what is kept and what is sent."""
        for part in self.algorithm.all_parts:
            part.end(self)
        self.rule.end(self)
        if self.algorithm.buffers.policy == "local" and self.model.b.numel():
            self.kept[self.algorithm.buffers] = {"b": self.model.read_statistics()}

    def copied(self) -> Tensor:
        """A copy of the weights as they are now: the same one until they move, so that what is kept and what is sent can share it."""
        if self._copy is None or self._copy[0] != self.w._version:
            self._copy = self.w._version, self.w.detach().cpu().clone()
        return self._copy[1]

    def pause(self) -> Paused:
        """Everything that another worker needs to go on from here, between two steps."""
        rngs = (self.rng.get_state(), torch.get_rng_state())
        w, b = self.copied(), self.model.read_statistics().cpu()
        return Paused(w, b, dict(self.kept), dict(self.up), dict(self.memo), rngs, self.step, self._loss, self._losses)

    def resume(self, paused: Paused) -> None:
        """Go on from where a client of the same round was paused."""
        self.model.load(paused.w, paused.b)
        self.kept, self.up, self.memo = paused.kept, paused.up, paused.memo
        # clones: set_state reads from the start of a tensor's storage, whatever its offset there
        self.rng.set_state(paused.rngs[0].clone())
        torch.set_rng_state(paused.rngs[1].clone())
        self.step, self._loss, self._losses = paused.step, paused.loss.clone(), paused.losses

    def reply(self) -> Reply:
        """What this client answers now: copies, so that the model can serve the next client."""
        w, b = self.copied(), self.model.read_statistics().cpu()
        if self.algorithm.buffers.policy == "freeze":
            b = b.new_empty(0)
        kept, up = _plain(self.kept), _plain(self.up)
        return Reply(w, self.samples, self.id, b, kept, up, steps=self.step, loss=self.loss)

    def descend(self, parts: Sequence[Part], batch: Batch, on: On | None = None) -> None:
        """Fill `g` with the gradient of the sum of these parts' loss terms at the present weights."""
        self.g.zero_()
        self.decayed = False
        terms = [part for part in parts if part.has("loss")]
        if not terms:
            return
        out = self.forward_head(batch.x) if on == "head" else self.forward(batch.x)
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
        body, self._body = self._body, None
        if body is not None and body.x is x:
            return Output(self.model.head(body.read), body.features, body.latent)
        self.passes += 1
        if self._watch:
            self.seen, out = self.model.watched(self._watch, lambda: self.model.module(x))
        else:
            out = self.model.module(x)
        return out if isinstance(out, Output) else Output(out)

    def forward_head(self, x: Tensor) -> Output:
        """The answer as a function of the head's weights only; the next `forward` of this `x` goes on from the same pass through the body.

        Where the head is not the last thing that the model does, both are ordinary passes.
        """
        read, out = self.model.tapped(lambda: self.forward(x))
        if read is None:
            return out
        self._body = Body(x, read, out.features, out.latent)
        latent = None if out.latent is None else (out.latent[0].detach(), out.latent[1].detach())
        return Output(self.model.head(read.detach()), None if out.features is None else out.features.detach(), latent)

    def backward(self, loss: Tensor, on: On = "all") -> None:
        """Add the gradient of a loss to `g`, for the named part of the weights."""
        if not loss.requires_grad:
            return
        if on == "all":
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            loss.backward(inputs=self.model.parameters_of(on))  # type: ignore[no-untyped-call]

    @contextmanager
    def watching(self, name: str) -> Iterator[None]:
        """Within the block `seen` is what the model's child of that name read and answered in the last `forward`, without gradient."""
        before, self._watch, self._body = self._watch, name, None
        try:
            yield
        finally:
            self._watch, self.seen = before, None

    def features(self, out: Output, needed_by: Part) -> Tensor:
        """The features of an answer, or a `ValueError` when the model gives none."""
        if out.features is None:
            raise ValueError(
                f"{needed_by.name} reads the model's features, and {type(self.model.module).__name__} returns logits only: "
                "return accord.Output(logits, features) from its forward"
            )
        return out.features

    def look(self, name: str, w: Tensor, x: Tensor, *, b: Tensor | None = None, train: bool = False) -> Output:
        """The answer of the model at other weights, fixed for the round, without gradient; `name` tells one set from another.

        Its statistics are `b`, by default those at the start of the round. It answers as in evaluation unless `train` is set.
        """
        if name not in self._others:
            other = self.model_for(name)
            other.load(w, self.b0 if b is None else b)
            self._others[name] = other
        seen = self._answers.get((name, train))
        if seen is None or seen[0] is not x:
            module = self._others[name].module.train(train)
            with torch.no_grad():
                out = module(x)
            seen = self._answers[name, train] = (x, out if isinstance(out, Output) else Output(out))
        return seen[1]

    def model_for(self, name: str) -> Flat:
        """A second model of the same shape, made once for a worker and reused."""
        spare: dict[str, Flat] = self.model.__dict__.setdefault("spare", {})
        if name not in spare:
            spare[name] = self.model.twin()
        return spare[name]

    @contextmanager
    def shifted(self, e: Tensor, on: On = "all") -> Iterator[None]:
        """Within the block the weights named by `on` are `w + e`; afterwards they are exactly what they were."""
        spans, shelves = self.layout.spans(on), self.model.shelves
        shelf = shelves.pop() if shelves else torch.empty_like(self.w)
        if on != "head":
            self._body = None
        for s in spans:
            shelf[s].copy_(self.w[s])
            self.w[s].add_(e[s])
        try:
            yield
        finally:
            for s in spans:
                self.w[s].copy_(shelf[s])
            shelves.append(shelf)

    @contextmanager
    def still(self) -> Iterator[None]:
        """Within the block the model's statistics (BatchNorm) do not move."""
        before = self.model.read_statistics()
        try:
            yield
        finally:
            self.model.load_statistics(before)

    def all_batches(self, size: int = 500) -> Iterator[Batch]:
        """All of this client's training data once, in order and unchanged, in batches of at most `size`."""
        if self._data is None:
            raise ValueError("this client has no data beside its batches: give local_round(..., data=(x, y))")
        return iter(self._data(size))

    def whole_gradient(self, parts: Sequence[Part], size: int = 500, *, by_batch: bool = False) -> tuple[Tensor, float]:
        """The gradient, at the present weights and in evaluation mode, of these parts' mean loss over all the client's data, and that loss.

        It is zero where the weights do not move. The mean is over samples, or with `by_batch` over the means of batches. The weights,
        `g` and the statistics are left as they were.
        """
        before, total, value, count = self.g.clone(), torch.zeros_like(self.g), 0.0, 0
        spans = self.algorithm.moves(self.layout)
        self.model.mode(False)
        for batch in self.all_batches(size):
            out = self.forward(batch.x)
            loss = sum((part.loss(self, batch, out) for part in parts), start=out.logits.new_zeros(()))
            self.g.zero_()
            self.backward(loss)
            weight = 1 if by_batch else len(batch.y)
            for s in spans:
                total[s].add_(self.g[s], alpha=weight)
            value, count = value + weight * float(loss.detach()), count + weight
        self.model.mode(True, self.algorithm.buffers)
        self.g.copy_(before)
        return total.div_(max(count, 1)), value / max(count, 1)

    def decay(self) -> None:
        """Add the rule's weight decay to `g` now, so that a part outside sees it; the rule then adds it no more this step."""
        if not self.decayed and self.rule.decay:
            self.g.add_(self.w, alpha=self.rule.decay)
        self.decayed = True

    def again(self, algorithm: Algorithm) -> Client:
        """The same client on the same model, about to train by another algorithm from where the weights stand now."""
        start = self.w.clone()
        other = Client(
            algorithm,
            self.model,
            start,
            down=first_down(algorithm, start),
            kept={},
            rng=lambda: self.rng,
            id=self.id,
            samples=self.samples,
            relative=self.relative,
            data=self._data,
        )
        other.down, other.kept = {**other.down, **self.down}, {**other.kept, **{p: s for p, s in self.kept.items() if p in other.kept}}
        return other

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
    data: tuple[Tensor, Tensor] | None = None,
    seed: int = 0,
    round: int = 0,
) -> Reply:
    """One client's round on these batches, in this order, from the weights `w0` (default: the module's own). The module is not changed.

    `down` and `kept` are what the server sends and the client keeps, by part; what is not given starts as in a first round.
    `data` are all the client's samples, for parts that look at them outside the steps (default: those of the batches).

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
        rng=lambda: stream(seed, "client", round, 0),
        round=round,
        samples=sum(len(y) for _, y in batches),
        data=partial(_pieces, batches if data is None else [data]),
    )
    with torch.random.fork_rng(devices=()):
        torch.set_rng_state(stream(seed, "module", round, 0).get_state())
        client.train(Batch(x, y) for x, y in batches)
    return client.reply()


def _pieces(batches: Sequence[tuple[Tensor, Tensor]], size: int) -> Iterator[Batch]:
    """The distinct batches, put together and cut anew."""
    once = list({id(x): (x, y) for x, y in batches}.values())
    if once:
        x, y = torch.cat([x for x, _ in once]), torch.cat([y for _, y in once])
        yield from (Batch(x[at : at + size], y[at : at + size]) for at in range(0, len(y), size))


def first_down(algorithm: Algorithm, w: Tensor) -> dict[Hashable, State]:
    """What the server sends besides the weights in a first round."""
    return {p: {name: p.server_state(w)[name] for name in p.sends} for p in algorithm.all_parts if p.sends}
