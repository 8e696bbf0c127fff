"""Convex constraints on the local update: each output unit moves at right angles to its global weights, with zero mean."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from accord.client import Batch, Client
from accord.flat import Layout
from accord.part import Gradient, Part
from accord.recipe import named

SPHERE = math.sqrt(2)  # the expected norm of a row after He initialisation


@named
class Constrain(Part):
    """For each row c of every weight, g_c <- g_c - mean(g_c), then g_c <- g_c - u (u . g_c), u = w0_c / ||w0_c||: FedCONST, Algorithm 1.

    Kim et al., 2025. The global weights w0 are fixed for the round. The two projections commute only where the rows of w0 have zero mean:
    `order="joint"` removes the span of both, exactly. `decay="inside"` puts the rule's weight decay under the constraint, as
    orthogonality demands. Biases and other one-dimensional tensors move freely; a row of zeros has no direction and is only centred.

    What the authors' programs do otherwise: they constrain the displacement w - w0 after each step of the optimiser
    (`apply="displacement"`; equal to Algorithm 1 where rows have zero mean); a program of 2023 removes the parallel part by the norm
    before centring (`parallel="uncentred"`); older ones take a whole tensor or the whole model, biases included, for one row (`unit`);
    the last one also puts each row back on a sphere of radius sqrt(2), centred (`mode="linear+sphere"`, or `"sphere"` alone).
    """

    center: bool = True
    orthogonal: bool = True
    unit: Literal["row", "tensor", "model"] = "row"
    apply: Literal["gradient", "displacement"] = "gradient"
    mode: Literal["linear", "sphere", "linear+sphere"] = "linear"
    order: Literal["sequential", "joint"] = "sequential"
    decay: Literal["inside", "outside"] = "inside"
    parallel: Literal["exact", "uncentred"] = "exact"

    def rows(self, layout: Layout, vector: Tensor) -> list[Tensor]:
        """The rows that are constrained, as matrix views of the vector."""
        if self.unit == "row":
            return layout.rows(vector)
        return [view.view(1, -1) for view in layout.views(vector)] if self.unit == "tensor" else [vector.view(1, -1)]

    def begin(self, client: Client) -> None:
        client.memo[self] = [self.units(rows) for rows in self.rows(client.layout, client.w0)]

    def units(self, rows: Tensor) -> Tensor:
        """The directions that an update may not have, one unit vector a row; zero where the row is zero."""
        if self.order == "joint" and self.center:
            centred = rows - rows.mean(dim=1, keepdim=True)
            flat = centred.norm(dim=1, keepdim=True) <= 1e-6 * rows.norm(dim=1, keepdim=True)
            return torch.nn.functional.normalize(centred.masked_fill_(flat, 0.0), dim=1, eps=1e-12)
        return torch.nn.functional.normalize(rows, dim=1, eps=1e-12)

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        if self.apply == "displacement" or self.mode == "sphere" or not (self.center or self.orthogonal):
            return
        if self.decay == "inside":
            client.decay()
        self.project(self.rows(client.layout, client.g), client.memo[self])

    def project(self, rows: list[Tensor], units: list[Tensor]) -> None:
        """Take the mean and the forbidden direction out of each row, in place."""
        for d, u in zip(rows, units, strict=True):
            before = d.norm(dim=1) if self.parallel == "uncentred" else None
            if self.center:
                d.sub_(d.mean(dim=1, keepdim=True))
            if self.orthogonal:
                along = torch.linalg.vecdot(u, d)
                if before is not None:
                    along.mul_(before / d.norm(dim=1).clamp(min=1e-30))
                d.addcmul_(u, along.unsqueeze_(1), value=-1)

    def moved(self, client: Client) -> None:
        if self.mode != "sphere" and self.apply == "displacement":
            for w, w0, u in zip(self.rows(client.layout, client.w), self.rows(client.layout, client.w0), client.memo[self], strict=True):
                d = w - w0
                self.project([d], [u])
                torch.add(w0, d, out=w)
        if self.mode != "linear":
            for w in self.rows(client.layout, client.w):
                if self.center:
                    w.sub_(w.mean(dim=1, keepdim=True))
                if self.orthogonal:
                    w.mul_(SPHERE / w.norm(dim=1, keepdim=True).clamp(min=1e-12))
