"""Clients that work longer do not weigh more: each update is divided by how far its steps could have carried it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from accord.check import NonNegative
from accord.client import Batch, Client
from accord.cohort import Cohort, Reply
from accord.part import Gradient, Part, State, Step
from accord.recipe import named


@named
class Normalise(Part):
    """w <- w + (sum_k p_k a_k) sum_k p_k (w_k - w) / a_k, in place of the mean of the updates. FedNova: Wang et al., 2020.

    a_k is the reach of client k's steps: their number, or [K - m (1 - m^K) / (1 - m)] / (1 - m) with local momentum m. `weights`
    must be those of the mean inside. `mu` is that of a proximal term, which shrinks the reach by 1 - lr mu each step as in the
    authors' program; the step is then as long as the mean number of steps, as there.

    `variate` adds d - d_i to the gradient, d_i being the client's last direction (w0 - w) / (lr a) and d the last mean of them.
    FedSOL's released FedNova has d = 0 for ever (`frozen`); FedSOL by `normalise(variate="moving")` is perturbed along it.
    """

    weights: Literal["samples", "uniform"] = "samples"
    mu: NonNegative = 0.0
    variate: Literal["none", "moving", "frozen"] = "none"

    @property
    def sends(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("d",) if self.variate == "moving" else ()

    def server_state(self, w: Tensor) -> State:
        return {"d": torch.zeros_like(w)} if self.variate == "moving" else {}

    def client_state(self, w: Tensor) -> State:
        return {"d": torch.zeros_like(w)} if self.variate != "none" else {}

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        if self.variate == "none":
            return
        client.g.sub_(client.kept[self]["d"])
        if self.variate == "moving":
            client.g.add_(client.down[self]["d"])

    def reach(self, client: Client) -> float:
        """a: how far this client's steps carry equal gradients, in units of lr."""
        if not self.mu:
            return client.rule.reach(client.step)
        total = speed = 0.0
        for _ in range(client.step):
            speed = client.rule.momentum * speed + 1.0
            total = (total + speed if client.rule.momentum else total) * (1 - client.lr * self.mu) + 1.0
        return total

    def end(self, client: Client) -> None:
        a = self.reach(client)
        client.up[self] = {"a": torch.tensor([a, float(client.step)] if self.mu else [a], dtype=client.w.dtype)}
        if self.variate != "none" and a:
            client.kept[self] = {"d": (client.w0 - client.w).div_(client.lr * a)}

    def sums(self, reply: Reply) -> Mapping[str, tuple[float, Tensor]]:
        weight = float(reply.samples) if self.weights == "samples" else 1.0
        a = reply.up[self]["a"]
        direction = reply.delta / float(a[0]) if a[0] else reply.delta
        return {"reach": (weight, a[1] if self.mu else a[0]), "direction": (weight, direction), "delta": (weight, reply.delta)}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        direction = cohort.mean(self, "direction")
        if self.variate == "moving":
            rule = cohort.algorithm.rule
            cohort.state[self] = {"d": direction / -(rule.lr * rule.lr_decay**cohort.round)}
        return inner(cohort) - cohort.mean(self, "delta") + cohort.mean(self, "reach") * direction
