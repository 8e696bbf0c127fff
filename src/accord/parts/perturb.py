"""The gradient is taken a little up the slope of another loss: sharpness-aware minimisation, and FedSOL."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import field
from typing import Literal

import torch
from torch import Tensor

from accord.check import NonNegative
from accord.client import Batch, Client
from accord.flat import On, Slot
from accord.part import Gradient, Part
from accord.parts.task import Task
from accord.recipe import named


@named
class Perturb(Part):
    """g(w + e) in place of g(w), where e = rho Lambda . p / ||p|| and p is the gradient of the loss `by`, or what that part adds to one.

    `by=task` is SAM (Foret et al., 2021; FedSAM: Qu et al., 2022); `by=distil(tau=3)` with `adaptive="drift"` is FedSOL (Lee et al.,
    2024); any other part may stand there, and its own server side runs with it. Only the weights named by `on` are moved. Lambda is

    - `none`: 1;
    - `weight`: T^2, over the norm of T p, T = |w| + eta (ASAM: Kwon et al., 2021). FedSOL's program has eta = 0 and scales every
      tensor, the authors' eta = 0.2 and leaves T = 1 where the name does not say "weight" (`scaled="weights"`);
    - `drift`: |w - w0|, normalised in each tensor along its first axis, as FedSOL's program does; `drift-tensor` over the whole
      tensor, as its paper writes. Both are zero in the first step of a round.

    Where ||p|| is at most `floor` nothing is moved: without Lambda the first step of FedSOL divides round-off by itself and goes rho
    in a random direction, which `floor=1e-6` prevents; the authors' program does not.
    """

    by: Part = field(default_factory=Task)
    rho: NonNegative = 0.05
    on: On = "all"
    adaptive: Literal["none", "weight", "drift", "drift-tensor"] = "none"
    eta: NonNegative = 0.0
    scaled: Literal["all", "weights"] = "all"
    floor: NonNegative = 0.0

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        if not self.rho:
            inner(batch)
            return
        seen = client.passes
        client.pull(self.by, batch, self.on)
        e = self.direction(client)
        with client.shifted(e, self.on), client.still() if client.passes > seen else nullcontext():
            inner(batch)

    def direction(self, client: Client) -> Tensor:
        """e, made in place of p, which lies in `client.g`; what it holds outside `on` means nothing."""
        e, spans = client.g, client.layout.spans(self.on)
        slots = [s for s in client.layout.slots if any(k.start <= s.start and s.stop <= k.stop for k in spans)]
        lengths = [(slot, self.length(client, slot)) for slot in slots] if self.adaptive == "weight" else []
        for slot, t in lengths:
            e[slot.start : slot.stop].mul_(t)
        norm = torch.stack([e[s].norm() for s in spans]).norm()
        factor = torch.where(norm > self.floor, self.rho / (norm + 1e-12), torch.zeros_like(norm))
        for s in spans:
            e[s].mul_(factor)
        for slot, t in lengths:
            e[slot.start : slot.stop].mul_(t)
        if self.adaptive in ("drift", "drift-tensor"):
            for slot in slots:
                e[slot.start : slot.stop].view(slot.shape).mul_(self.drift(client, slot))
        return e

    def length(self, client: Client, slot: Slot) -> Tensor:
        """T: the length that ASAM gives each weight."""
        w = client.w[slot.start : slot.stop]
        return torch.ones_like(w) if self.scaled == "weights" and "weight" not in slot.name else w.abs().add_(self.eta)

    def drift(self, client: Client, slot: Slot) -> Tensor:
        """Lambda: how far each weight of a tensor has moved in this round, relative to its column or the tensor."""
        at = slice(slot.start, slot.stop)
        moved = (client.w[at] - client.w0[at]).abs_().view(slot.shape)
        norm = moved.square().sum(0).sqrt_() if self.adaptive == "drift" and moved.dim() else moved.norm()
        return moved.div_(norm.clamp_(min=1e-12))
