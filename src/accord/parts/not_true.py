"""Staying close to what the global model says of the classes that are not the true one."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from accord.check import NonNegative, Positive
from accord.client import Batch, Client
from accord.flat import Output
from accord.part import Part
from accord.recipe import named


@named
class NotTrue(Part):
    """Adds beta tau^2 KL(q0 || q), q being the softmax at temperature tau over the not-true classes, q0 that of the global model.

    FedNTD: Lee et al., 2022. Each sample leaves its own label out; the global model answers on the same batch. The paper and both
    programs agree: beta = 1, tau = 1 in FedSOL's tables.
    """

    beta: NonNegative = 1.0
    tau: Positive = 1.0

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        if not self.beta:
            return out.logits.new_zeros(())
        teacher = others(client.look("global", client.w0, batch.x).logits, batch.y) / self.tau
        student = others(out.logits, batch.y) / self.tau
        apart = F.kl_div(F.log_softmax(student, dim=-1), F.log_softmax(teacher, dim=-1), reduction="batchmean", log_target=True)
        return self.beta * self.tau**2 * apart


def others(logits: Tensor, y: Tensor) -> Tensor:
    """The scores of the classes that are not the label, in their order, one row a sample.

    >>> import torch
    >>> others(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([0, 2]))
    tensor([[2., 3.],
            [4., 5.]])
    """
    rows = logits.flatten(0, -2)
    inside = F.one_hot(y.flatten(), rows.shape[1]) == 0
    return rows[inside].view(len(rows), -1)
