"""Samples and labels are mixed in pairs."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from accord.check import NonNegative
from accord.client import Batch, Client
from accord.flat import Output
from accord.part import Gradient, Part
from accord.recipe import named


@named
class Mixup(Part):
    """x~ = lam x + (1 - lam) x', loss lam CE(., y) + (1 - lam) CE(., y'), (x', y') being the batch in another order. Zhang et al., 2018.

    lam ~ Beta(gamma, gamma) is drawn once a batch. FedAlign's study has gamma = 0.1 (its program's default, 0, is no mixing). The
    task's own loss stays as it is on x~ and y; this part adds (1 - lam) (CE(., y') - CE(., y)). Parts inside see x~.
    """

    gamma: NonNegative = 0.1

    def begin(self, client: Client) -> None:
        client.memo[self] = np.random.default_rng(int(torch.randint(2**62, (), generator=client.rng)))

    def draw(self, client: Client, size: int) -> tuple[float, Tensor]:
        """lam, and the order of the partners, for one batch."""
        rng = client.memo[self]
        return float(rng.beta(self.gamma, self.gamma)), torch.from_numpy(rng.permutation(size))

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        if not self.gamma:
            inner(batch)
            return
        if not batch.x.is_floating_point():
            raise ValueError("mixup mixes measurements, and these samples are whole numbers such as characters: leave it out")
        lam, order = self.draw(client, len(batch.y))
        order = order.to(batch.x.device)
        client.memo[self, "partner"] = (lam, batch.y[order])
        inner(Batch(torch.lerp(batch.x[order], batch.x, lam), batch.y))

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        if not self.gamma:
            return out.logits.new_zeros(())
        lam, partner = client.memo[self, "partner"]
        scores = out.logits.flatten(0, -2)
        change: Tensor = F.cross_entropy(scores, partner.flatten()) - F.cross_entropy(scores, batch.y.flatten())
        return change.mul(1 - lam)
