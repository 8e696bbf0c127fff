"""The local optimiser: how long a client works, in batches of what size, and how a gradient becomes a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import Tensor
from torch.optim.sgd import sgd

from accord.check import Count, NonNegative, Positive, Range
from accord.flat import On
from accord.recipe import named

if TYPE_CHECKING:
    from accord.client import Client


class Steps:
    """How many local steps a client takes in a round, when that is not the same for all."""

    kind: ClassVar[str] = "steps"
    name: str

    def draw(self, rng: torch.Generator) -> int:
        """The number of steps, from the client's own stream of this round."""
        raise TypeError(f"{type(self).__name__} does not say how to draw a number of steps")


@named
class Uniform(Steps):
    """Any number of steps between two, equally likely."""

    low: Count
    high: Count

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"uniform({self.low}, {self.high}) has its ends the wrong way round: write uniform({self.high}, {self.low})")

    def draw(self, rng: torch.Generator) -> int:
        return int(torch.randint(self.low, self.high + 1, (), generator=rng))


def _touched(ws: list[Tensor], gs: list[Tensor], vs: list[Tensor]) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """The pieces that have a gradient."""
    at = [k for k, g in enumerate(gs) if bool(g.any())]
    return [ws[k] for k in at], [gs[k] for k in at], [vs[k] for k in at if vs]


class Rule:
    """A local optimiser."""

    kind: ClassVar[str] = "rule"
    name: str

    def end(self, client: Client) -> None:
        """Set what the client keeps of the optimiser, `client.kept[self] = {...}`."""


@named
class SGD(Rule):
    """Stochastic gradient descent: d = g + decay w; v = momentum v + d; w -= lr v, with an empty v at the start of each round.

    `epochs` passes over the client's data in shuffled batches of `batch`, or exactly `steps` batches. The learning rate of round r
    is `lr * lr_decay ** r`. `on` says which parameters move; `clip` bounds the norm of the gradient. With `persist` each client goes
    on with its own v from round to round, as FedAlign's program does. With `skip` a tensor whose gradient is zero throughout, as in a
    block that stochastic depth has dropped, is left alone in that step by decay and momentum too: what torch does where it is None.
    """

    lr: Positive = 0.02
    momentum: Annotated[float, Range(0, 0.999999)] = 0.9
    decay: NonNegative = 0.0
    nesterov: bool = False
    epochs: Count = 3
    steps: Count | Steps | None = None
    batch: Count = 20
    drop_last: bool = False
    lr_decay: Annotated[float, Range(0, 1, above=True)] = 1.0
    on: On = "all"
    clip: Positive | None = None
    persist: bool = False
    skip: bool = False

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise ValueError("sgd(nesterov=True) needs a momentum above 0")

    def start(self, client: Client) -> Callable[[], None]:
        """The function that makes one step from `client.g`; the momentum lies in `client.memo`."""
        w, g, spans = client.w, client.g, client.layout.spans(self.on)
        if self.skip:
            spans = tuple(slice(s.start, s.stop) for s in client.layout.slots if any(k.start <= s.start < k.stop for k in spans))
        v = self._velocity(client) if self.momentum else None
        ws, gs = [w[s] for s in spans], [g[s] for s in spans]
        vs = [] if v is None else [v[s] for s in spans]
        constants = {"momentum": self.momentum, "dampening": 0.0, "nesterov": self.nesterov, "maximize": False}
        fused = getattr(torch, "_fused_sgd_", None) if w.device.type in ("cpu", "cuda") else None

        def update() -> None:
            if self.clip is not None:
                g.mul_((self.clip / (g.norm() + 1e-6)).clamp(max=1.0))
            decay = 0.0 if client.decayed else self.decay
            a, b, c = _touched(ws, gs, vs) if self.skip else (ws, gs, vs)
            if fused is None:
                sgd(a, b, c or [None] * len(a), lr=client.lr, weight_decay=decay, **constants)  # type: ignore[arg-type]
            elif a:
                fused(a, b, c, lr=client.lr, weight_decay=decay, is_first_step=False, **constants)

        return update

    def _velocity(self, client: Client) -> Tensor:
        if self not in client.memo:
            kept = client.kept.get(self) if self.persist else None
            client.memo[self] = kept["v"].clone() if kept else torch.zeros_like(client.w)
        v: Tensor = client.memo[self]
        return v

    def end(self, client: Client) -> None:
        if self.persist and self.momentum and self in client.memo:
            client.kept[self] = {"v": client.memo[self]}

    def __str__(self) -> str:
        """In words.

        >>> str(SGD(steps=5, decay=1e-4))
        '5 steps of 20 samples, lr 0.02, momentum 0.9, weight decay 0.0001'
        """
        work = f"{self.epochs} epoch{'s' * (self.epochs > 1)} in batches" if self.steps is None else f"{self.steps!r} steps"
        lr = f"lr {self.lr:g}" + (f" x {self.lr_decay:g} a round" if self.lr_decay < 1 else "")
        extra = [f"weight decay {self.decay:g}"] if self.decay else []
        extra += [f"only the {self.on} moves"] if self.on != "all" else []
        extra += [f"clipped at {self.clip:g}"] if self.clip else []
        kind = "Nesterov momentum" if self.nesterov else "momentum"
        return ", ".join([f"{work} of {self.batch} samples", lr, f"{kind} {self.momentum:g}", *extra])

    def reach(self, steps: int) -> float:
        """How far `steps` equal gradients carry the weights, in units of lr: the number of steps, or more with momentum.

        >>> SGD(momentum=0.0).reach(50), round(SGD(momentum=0.9).reach(50), 1)
        (50.0, 410.5)
        """
        rho = self.momentum
        return (steps - rho * (1 - rho**steps) / (1 - rho)) / (1 - rho)

    def length(self, rng: torch.Generator) -> tuple[int | None, int | None]:
        """(epochs, steps) of one client's round: one of the two is None."""
        if self.steps is None:
            return self.epochs, None
        return None, self.steps if isinstance(self.steps, int) else self.steps.draw(rng)
