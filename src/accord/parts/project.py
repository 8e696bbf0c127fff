"""What of the gradient works against another loss is taken out of it."""

from __future__ import annotations

from dataclasses import field

import torch

from accord.client import Batch, Client
from accord.part import Gradient, Part
from accord.parts.distil import Distil
from accord.recipe import named


@named
class Project(Part):
    """g - (<g, p> / <p, p>) p where <g, p> < 0, else g; p is the gradient of the loss `by` on the same batch.

    Equation 3 of FedSOL (Lee et al., 2024), its baseline of Table 1: one dot product over all parameters, before momentum and weight
    decay. How `by` is scaled does not matter; where p is zero nothing changes.
    """

    by: Part = field(default_factory=Distil)

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        first, decayed = client.g.clone(), client.decayed
        with client.still():
            client.pull(self.by, batch, client.rule.on)
        against = torch.dot(first, client.g).clamp(max=0.0) / torch.dot(client.g, client.g).clamp(min=torch.finfo(first.dtype).tiny)
        client.g.mul_(-against).add_(first)
        client.decayed = decayed
