"""The gradient is taken a little up the slope of another loss: sharpness-aware minimisation, and FedSOL."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

import torch
from torch import Tensor

from accord.check import NonNegative
from accord.client import Batch, Client
from accord.flat import On
from accord.part import Gradient, Part
from accord.parts.task import Task
from accord.recipe import named


@named
class Perturb(Part):
    """g(w + e) in place of g(w), where e = rho Lambda . p / ||p|| and p is the gradient of the loss `by`.

    `by=task` is SAM (Foret et al., 2021; FedSAM: Qu et al., 2022); `by=distil(tau=3)` with `adaptive="drift"` is FedSOL (Lee et al.,
    2024). Only the weights named by `on` are moved. Lambda is 1 (`none`); |w| squared over the norm of |w| p (`weight`, ASAM); or
    |w - w0|, normalised in each tensor along its first axis (`drift`, as FedSOL's program does) or over the whole tensor
    (`drift-tensor`, as its paper writes).
    """

    by: Part = field(default_factory=Task)
    rho: NonNegative = 0.05
    on: On = "all"
    adaptive: Literal["none", "weight", "drift", "drift-tensor"] = "none"

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        if not self.rho:
            inner(batch)
            return
        client.pull(self.by, batch, self.on)
        e = self.direction(client)
        with client.shifted(e), client.still():
            inner(batch)

    def direction(self, client: Client) -> Tensor:
        """e, zero outside the weights that are moved."""
        p = torch.zeros_like(client.g)
        for span in client.layout.spans(self.on):
            p[span] = client.g[span]
        scaled = p * client.w.abs() if self.adaptive == "weight" else p
        e = scaled * (self.rho / (scaled.norm() + 1e-12))
        if self.adaptive == "weight":
            return e.mul_(client.w.abs())
        return e.mul_(self.drift(client)) if self.adaptive != "none" else e

    def drift(self, client: Client) -> Tensor:
        """Lambda: how far each weight has moved in this round, relative to its column or its tensor."""
        moved = (client.w - client.w0).abs_()
        for view in client.layout.views(moved):
            norm = view.norm(dim=0, keepdim=True) if self.adaptive == "drift" and view.dim() else view.norm()
            view.div_(norm.clamp(min=1e-12))
        return moved
