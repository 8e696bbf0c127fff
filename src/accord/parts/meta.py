"""Learning to be fine-tuned: every second step is taken where the first one led, from where it started."""

from __future__ import annotations

from accord.check import Positive
from accord.client import Batch, Client
from accord.part import Gradient, Part
from accord.recipe import named


@named
class Meta(Part):
    """w' = w - lr u(g(w)) on one batch, then w <- w - beta u(g(w')) on the next. Per-FedAvg, first order: Fallah et al., 2020.

    u is the rule's step with its one momentum buffer, which takes both gradients, and weight decay acts on the weights that each
    step starts from, as in FedSOL's and FedBABU's programs. beta does not follow the learning rate's decay. A last batch without a
    partner moves nothing. FedSOL's E local epochs are E ceil(batches / E) pairs, about two passes: write `sgd(epochs=2)`.
    """

    beta: Positive = 0.01

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        if client.step % 2 == 0:
            client.memo[self] = (client.w.clone(), client.lr)
            inner(batch)
            return
        inner(batch)
        client.w.copy_(client.memo[self][0])
        client.lr = self.beta

    def moved(self, client: Client) -> None:
        client.lr = client.memo[self][1]

    def end(self, client: Client) -> None:
        if client.step % 2:
            client.w.copy_(client.memo[self][0])
