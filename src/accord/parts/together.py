"""Several parts in the place of one."""

from __future__ import annotations

from dataclasses import field
from functools import partial

from torch import Tensor

from accord.client import Batch, Client
from accord.flat import Output
from accord.part import Gradient, Part
from accord.parts.distil import Distil
from accord.parts.task import Task
from accord.recipe import named


@named
class Together(Part):
    """The sum of the parts' losses, and their gradients wrapped one around the other, the first innermost.

    For arguments that take one part: `perturb(by=together((task, distil)))` goes up the slope of both losses at once.
    """

    parts: tuple[Part, ...] = field(default_factory=lambda: (Task(), Distil()))

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError("together() holds no part: write for example together((task, distil))")

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        total = out.logits.new_zeros(())
        for part in self.parts:
            total = total + part.loss(client, batch, out)
        return total

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        for part in self.parts:
            inner = partial(part.gradient, client, inner=inner)
        inner(batch)
