"""Convex constraints on the local update: each output unit moves at right angles to its global weights, with zero mean."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from accord.client import Batch, Client
from accord.part import Gradient, Part
from accord.recipe import named


@named
class Constrain(Part):
    """FedCONST (Algorithm 1): for each row c of every weight, g_c <- g_c - mean(g_c), then g_c <- g_c - u (u . g_c), u = w0_c / ||w0_c||.

    The global weights w0 are fixed for the round. `decay="inside"` puts the rule's weight decay under the constraint, as orthogonality
    demands. The two projections commute only where the rows of w0 have zero mean: `order="joint"` removes the span of both, exactly.
    Biases and other one-dimensional tensors move freely; a row of zeros has no direction and is only centred.
    """

    center: bool = True
    orthogonal: bool = True
    order: Literal["sequential", "joint"] = "sequential"
    decay: Literal["inside", "outside"] = "inside"

    def begin(self, client: Client) -> None:
        client.memo[self] = [self.units(rows) for rows in client.layout.rows(client.w0)]

    def units(self, rows: Tensor) -> Tensor:
        """The directions that an update may not have, one unit vector a row; zero where the row is zero."""
        if self.order == "joint" and self.center:
            centred = rows - rows.mean(dim=1, keepdim=True)
            flat = centred.norm(dim=1, keepdim=True) <= 1e-6 * rows.norm(dim=1, keepdim=True)
            return torch.nn.functional.normalize(centred.masked_fill_(flat, 0.0), dim=1, eps=1e-12)
        return torch.nn.functional.normalize(rows, dim=1, eps=1e-12)

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        if not (self.center or self.orthogonal):
            return
        if self.decay == "inside":
            client.decay()
        for g, u in zip(client.layout.rows(client.g), client.memo[self], strict=True):
            if self.center:
                g.sub_(g.mean(dim=1, keepdim=True))
            if self.orthogonal:
                g.addcmul_(u, torch.linalg.vecdot(u, g).unsqueeze_(1), value=-1)
