"""The task itself: the loss that every client minimises, and the mean of what they found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from accord.client import Batch, Client
from accord.cohort import Cohort, Reply
from accord.flat import Output
from accord.part import Part, Step
from accord.recipe import named


@named
class Task(Part):
    """Cross entropy on the client; on the server the mean of the clients' updates, weighted by their samples or alike.

    w <- w + sum_k p_k (w_k - w), with p_k = n_k / sum n (`samples`) or 1 / m (`uniform`). McMahan et al., 2017.
    """

    weights: Literal["samples", "uniform"] = "samples"

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        return F.cross_entropy(out.logits.flatten(0, -2), batch.y.flatten())

    def weigh(self, reply: Reply) -> float:
        """The weight of one reply in the mean, before it is divided by the sum of all."""
        return float(reply.samples) if self.weights == "samples" else 1.0

    def sums(self, reply: Reply) -> Mapping[str, tuple[float, Tensor]]:
        return {"delta": (self.weigh(reply), reply.delta)}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        return cohort.mean(self, "delta")
