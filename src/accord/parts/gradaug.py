"""Narrower copies of the model, on smaller images, learn to answer what the whole model answers."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from accord.check import Count, NonNegative, Positive, Range
from accord.client import Batch, Client
from accord.flat import Output, logits
from accord.models.slim import slimmed
from accord.part import Part
from accord.recipe import named


@named
class Gradaug(Part):
    """Adds mu times the sum over n sub-networks of KL(softmax(z) || softmax(z_s)), z being the whole model's logits, a constant.

    A sub-network is the model at a width, on images at one of `scales`: the first at `width`, the others at widths drawn evenly
    between `width` and 1. GradAug: Yang et al., 2020, as FedAlign's study has it; its paper draws every width, its program always has
    the smallest. Images are resized by bilinear interpolation with corners aligned; the usual scales are 32, 28, 24 and 20 pixels of
    32. Data that are no images, and models that read one size of them only, keep it. Published: width = 0.8, and mu = 1.5, 1.75, 2,
    2.25 for n = 1 to 4; the original has mu = 1 and n = 3.
    """

    n: Count = 2
    width: Annotated[float, Range(0, 0.999999, above=True)] = 0.8
    mu: NonNegative = 1.75
    scales: tuple[Positive, ...] = (1.0, 0.875, 0.75, 0.625)

    def __post_init__(self) -> None:
        if not self.scales:
            raise ValueError("gradaug(scales=()) leaves no size of images: write scales=1 to keep them as they are")

    def draw(self, client: Client) -> list[tuple[float, float]]:
        """Width and scale of each sub-network for one batch, the widest first."""
        drawn = torch.rand(self.n - 1, generator=client.rng, dtype=torch.float64) * (1 - self.width) + self.width
        widths = sorted([self.width, *drawn.tolist()], reverse=True)
        picked = torch.randint(len(self.scales), (self.n,), generator=client.rng)
        return [(width, self.scales[k]) for width, k in zip(widths, picked.tolist(), strict=True)]

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        total, module = out.logits.new_zeros(()), client.model.module
        if not self.mu:
            return total
        teacher = F.log_softmax(out.logits.detach().flatten(0, -2), dim=-1)
        fixed = batch.x.dim() != 4 or any(getattr(child, "one_size", False) for child in module.modules())
        for width, scale in self.draw(client):
            x = batch.x if fixed else resized(batch.x, scale)
            with slimmed(module, width):
                student = F.log_softmax(logits(module(x)).flatten(0, -2), dim=-1)
            total = total + F.kl_div(student, teacher, reduction="batchmean", log_target=True)
        return self.mu * total


def resized(x: Tensor, scale: float) -> Tensor:
    """The images at a multiple of their height and width.

    >>> resized(torch.zeros(1, 3, 28, 32), 0.75).shape
    torch.Size([1, 3, 21, 24])
    """
    size = [max(1, round(side * scale)) for side in x.shape[2:]]
    return x if size == list(x.shape[2:]) else F.interpolate(x, size, mode="bilinear", align_corners=True)
