"""A pull back to the global weights."""

from __future__ import annotations

from accord.check import NonNegative
from accord.client import Batch, Client
from accord.part import Gradient, Part
from accord.recipe import named


@named
class Proximal(Part):
    """Adds (mu / 2) ||w - w0||^2 to the local objective, that is mu (w - w0) to the gradient. FedProx: Li et al., 2020.

    Published settings: mu = 1.0 (FedSOL's tables), 0.01 (FedCONST's), 0.0001 (FedAlign's).
    """

    mu: NonNegative = 0.01

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        if self.mu:
            client.g.add_(client.drift, alpha=self.mu)
