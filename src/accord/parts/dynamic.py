"""Each client's objective is bent until the clients' optima meet in the global one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from accord.check import NonNegative, Positive
from accord.client import Batch, Client
from accord.cohort import Cohort, Reply
from accord.part import Gradient, Part, State, Step
from accord.recipe import named


@named
class Dynamic(Part):
    """Adds -<h_k, w> + (alpha / 2) ||w - w0||^2 to the local objective; h_k <- h_k - alpha (w_k - w0). FedDyn: Acar et al., 2021.

    The server keeps h <- h - (alpha / N) sum_k (w_k - w0) and takes the mean of the parts inside, minus h / alpha. The paper's mean
    is uniform; FedSOL's program weighs it by samples (h is never weighed). In the authors' program H = -h / alpha, the gradient is
    bounded before the alpha w part is added (`clip=10`), and a client's alpha is divided by its share of samples (`scale="samples"`).
    Published: alpha = 1 (FedCONST), 0.1 (FedSOL's program), 0.01 (the authors' example). alpha = 0 is FedAvg.
    """

    alpha: NonNegative = 0.1
    scale: Literal["none", "samples"] = "none"
    clip: Positive | None = None

    def server_state(self, w: Tensor) -> State:
        return {"h": torch.zeros_like(w)}

    def client_state(self, w: Tensor) -> State:
        return {"h": torch.zeros_like(w)}

    def own(self, client: Client) -> float:
        """This client's alpha."""
        return self.alpha / client.relative if self.scale == "samples" else self.alpha

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        if not self.alpha:
            return
        alpha = self.own(client)
        client.g.sub_(client.kept[self]["h"])
        if self.clip is None:
            client.g.add_(client.drift, alpha=alpha)
            return
        client.g.sub_(client.w0, alpha=alpha)
        client.g.mul_((self.clip / (client.g.norm() + 1e-6)).clamp(max=1.0))
        client.g.add_(client.w, alpha=alpha)

    def end(self, client: Client) -> None:
        if self.alpha:
            client.kept[self] = {"h": client.kept[self]["h"] - self.own(client) * client.drift}

    def sums(self, reply: Reply) -> Mapping[str, tuple[float, Tensor]]:
        return {"delta": (1.0, reply.delta)} if self.alpha else {}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        if not self.alpha:
            return inner(cohort)
        h = cohort.state[self]["h"].sub(cohort.sum(self, "delta"), alpha=self.alpha / cohort.population)
        cohort.state[self] = {"h": h}
        return inner(cohort) - h / self.alpha
