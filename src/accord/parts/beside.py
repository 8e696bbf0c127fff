"""A second gradient beside the first."""

from __future__ import annotations

from dataclasses import field

from accord.check import NonNegative
from accord.client import Batch, Client
from accord.part import Gradient, Part
from accord.parts.distil import Distil
from accord.recipe import named


@named
class Beside(Part):
    """g + beta p, where p is the gradient of the part `of` alone, taken apart from everything inside.

    A loss that is simply added to the task belongs inside; this is for a loss whose gradient is taken elsewhere than the task's, as in
    the variants A2 and A6 of FedSOL's Appendix H (Lee et al., 2024), where only one of the two is taken at perturbed weights.
    """

    of: Part = field(default_factory=Distil)
    beta: NonNegative = 1.0

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        if not self.beta:
            return
        first, decayed, on = client.g.clone(), client.decayed, client.rule.on
        with client.still():
            client.pull(self.of, batch, on)
        client.g.mul_(self.beta).add_(first)
        client.decayed = decayed
