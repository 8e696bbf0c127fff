"""Staying close to what the global model answers."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from accord.check import NonNegative, Positive
from accord.client import Batch, Client
from accord.flat import Output
from accord.part import Part
from accord.recipe import named


@named
class Distil(Part):
    """Adds beta KL(softmax(z0 / tau) || softmax(z / tau)) to the local objective, z0 being the global model's logits on the same batch.

    FedSOL's proximal loss (Lee et al., 2024), with tau = 3 and no factor tau squared.
    """

    beta: NonNegative = 1.0
    tau: Positive = 3.0

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        if not self.beta:
            return out.logits.new_zeros(())
        teacher = F.log_softmax(client.look("global", client.w0, batch.x).logits.flatten(0, -2) / self.tau, dim=-1)
        student = F.log_softmax(out.logits.flatten(0, -2) / self.tau, dim=-1)
        return self.beta * F.kl_div(student, teacher, reduction="batchmean", log_target=True)
