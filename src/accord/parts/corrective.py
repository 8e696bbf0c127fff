"""After the mean, one more step against the clients' gradients, weighted so that no client's loss need suffer."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from accord.check import Count, NonNegative
from accord.client import Client
from accord.cohort import Cohort
from accord.part import Part, Step
from accord.parts.task import Task
from accord.recipe import named


@named
class Corrective(Part):
    """The step inside minus sum_i x_i D_i, where D_i is the gradient of client i's whole local loss L_i at its trained weights w_i.

    FedOptz (Mousazadeh et al., 2023), equations 24 and 29 (`weighted`): x_i = alpha c m_i / (||D_i||^2 sqrt(sum_j (m_j / ||D_j||)^2)),
    with m_i = D_i . sum_j D_j and c = min_i L_i / ||D_i||; equations 15 and 23 (`plain`): x_i = alpha c / ||sum_j D_j||.
    alpha = 0 is the mean alone, which the paper takes uniform; published: 0 to 0.4, 0.2 in its example.

    L_i is the mean over the client's samples, as the paper says; its program takes the mean of the means of batches of 32, the last
    short one included (`means="batches"`). A client whose gradient is zero has no x_i and no say in c (the program divides by zero);
    where the gradients cancel altogether, nothing is added.
    """

    alpha: NonNegative = 0.2
    constraint: Literal["weighted", "plain"] = "weighted"
    means: Literal["samples", "batches"] = "samples"
    batch: Count = 32
    reads_all: ClassVar[bool] = True

    def end(self, client: Client) -> None:
        if self.alpha:
            gradient, loss = client.whole_gradient((Task(),), self.batch, by_batch=self.means == "batches")
            client.up[self] = {"gradient": gradient, "loss": torch.tensor(loss, dtype=client.w.dtype)}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        step = inner(cohort)
        if not self.alpha:
            return step
        ups = [reply.up[self] for reply in cohort.replies]
        gradients = torch.stack([up["gradient"] for up in ups])
        x = self.weigh(gradients @ gradients.T, torch.stack([up["loss"] for up in ups]))
        return step - x.to(step.dtype) @ gradients

    def weigh(self, dots: Tensor, losses: Tensor) -> Tensor:
        """x, from the dot products of the clients' gradients and their losses.

        >>> Corrective(alpha=0.5).weigh(torch.eye(2), torch.tensor([1.0, 2.0])).float()
        tensor([0.3536, 0.3536])
        """
        dots, losses = dots.double(), losses.double()
        norms = dots.diagonal().clamp(min=0.0).sqrt()
        some = norms > 0
        m = dots.sum(dim=1)
        whole = m.sum().clamp(min=0.0).sqrt() if self.constraint == "plain" else (m[some] / norms[some]).norm()
        if not bool(some.any()) or float(whole) == 0.0:
            return torch.zeros_like(losses)
        c = self.alpha * (losses[some] / norms[some]).min() / whole
        return torch.where(some, c if self.constraint == "plain" else c * m / norms.square(), 0.0)
