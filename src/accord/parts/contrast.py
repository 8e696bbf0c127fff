"""Features closer to the global model's than to the client's own last ones."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from accord.check import NonNegative, Positive
from accord.client import Batch, Client
from accord.flat import Output
from accord.part import Part
from accord.recipe import named


@named
class Contrast(Part):
    """Adds mu times the mean of -log[e^(s_g / tau) / (e^(s_g / tau) + e^(s_p / tau))], s_g = cos(z, z_global), s_p = cos(z, z_previous).

    MOON: Li et al., 2021. z are the model's features: give the model a projection head if the paper at hand has one (the authors and
    FedAlign do, FedSOL does not). A client that has not trained yet has no previous model and trains without the term; the papers
    take the global model for it, whose gradient is zero. The global and the previous model answer as in evaluation; FedAlign's
    program leaves them in training mode (`mode="train"`), so that BatchNorm uses the batch. FedCONST's program compares the previous
    features with the global ones (`negative="global"`). Published: mu = 5 or 1, tau = 0.5 (authors), mu = 1, tau = 0.5 (FedAlign),
    mu = 0.1, tau = 0.5 (FedSOL), mu = 0.01, tau = 1 (FedCONST).
    """

    mu: NonNegative = 1.0
    tau: Positive = 0.5
    mode: Literal["eval", "train"] = "eval"
    negative: Literal["local", "global"] = "local"

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        if not self.mu:
            return out.logits.new_zeros(())
        z, before = client.features(out, self).flatten(1), client.kept[self]
        if not before:
            return out.logits.new_zeros(())
        train = self.mode == "train"
        there = client.features(client.look("global", client.w0, batch.x, train=train), self).flatten(1)
        past = client.features(client.look("previous", before["w"], batch.x, b=before.get("b"), train=train), self).flatten(1)
        scores = torch.stack([F.cosine_similarity(z, there), F.cosine_similarity(z if self.negative == "local" else there, past)], dim=1)
        return self.mu * F.cross_entropy(scores / self.tau, batch.y.new_zeros(len(z)))

    def end(self, client: Client) -> None:
        if self.mu:
            b = client.model.read_statistics()
            client.kept[self] = {"w": client.copied(), "b": b} if b.numel() else {"w": client.copied()}
