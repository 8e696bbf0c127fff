"""Each client's bias is estimated from its own past updates and fades with their age."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from accord.check import NonNegative
from accord.client import Batch, Client
from accord.cohort import Cohort, Reply
from accord.part import Gradient, Part, State, Step
from accord.recipe import named


@named
class Debias(Part):
    """g - mu_k h_k, with h_k <- h_k / (t - t_k) + (w0 - w_k) after each round. AdaBest: Varno et al., 2022.

    t - t_k is the number of rounds since the client's last one. The server takes m - beta (m' - m), m being the mean of the models
    and m' the mean of the round before (at first the initial model). mu_k = mu n / n_k, n being the mean number of samples in all
    answers so far, as in the authors' program; their paper has mu inside h. The mean inside should be uniform. The constants are
    those of the program's last version; its example runs mu = 0.01, beta = 0.6.
    """

    mu: NonNegative = 0.1
    beta: NonNegative = 0.85
    sends: ClassVar[tuple[str, ...]] = ("samples",)

    def server_state(self, w: Tensor) -> State:
        return {"mean": w.clone(), "samples": w.new_zeros(()), "answers": torch.zeros((), dtype=torch.float64)}

    def client_state(self, w: Tensor) -> State:
        return {"h": torch.zeros_like(w), "round": torch.full((), -1.0, dtype=torch.float64)}

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        if self.mu:
            client.g.sub_(client.kept[self]["h"], alpha=self.mu * float(client.down[self]["samples"]) / client.samples)

    def end(self, client: Client) -> None:
        age = client.round - float(client.kept[self]["round"])
        h = (client.w0 - client.w).add_(client.kept[self]["h"], alpha=1 / max(age, 1.0))
        client.kept[self] = {"h": h, "round": torch.full((), float(client.round), dtype=torch.float64)}

    def sums(self, reply: Reply) -> Mapping[str, tuple[float, Tensor]]:
        return {"samples": (1.0, torch.tensor(float(reply.samples), dtype=torch.float64))}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        step, old, count = inner(cohort), cohort.state[self], len(cohort.accepted)
        answers, mean = old["answers"] + count, cohort.w + step
        samples = old["samples"] + (cohort.mean(self, "samples") - old["samples"]) * (count / float(answers))
        cohort.state[self] = {"mean": mean, "samples": samples, "answers": answers}
        return step - self.beta * (old["mean"] - mean)
