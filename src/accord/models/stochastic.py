"""A model whose representation is drawn at random: the body says where it lies and how far it spreads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accord.check import Count
from accord.flat import Output, logits
from accord.models.cnn import Cnn
from accord.models.model import Model
from accord.recipe import named


class StochasticNet(nn.Module):
    """z = mu + sigma xi with (mu, raw) = body(x), sigma = softplus(raw), xi ~ N(0, 1); the head `cls` reads z.

    In evaluation the answer is the logarithm of the mean probability over `samples` draws of xi, the same draws for every batch.

    >>> out = StochasticNet(nn.Linear(8, 6), 3, 4)(torch.zeros(2, 8))
    >>> out.logits.shape, out.features.shape
    (torch.Size([2, 4]), torch.Size([2, 3]))
    """

    head_name = "cls"

    def __init__(self, body: nn.Module, width: int, classes: int, samples: int = 20, logits: Literal["drawn", "direct"] = "drawn") -> None:
        nn.Module.__init__(self)
        self.stages = tuple(f"net.{name}" for name in getattr(body, "stages", ()))
        self.net, self.samples, self.drawn = body, samples, logits == "drawn"
        self.cls = nn.Linear(width if self.drawn else 2 * width, classes)

    def forward(self, x: Tensor) -> Output:
        h = logits(self.net(x))
        mean, raw = h.chunk(2, dim=-1)
        spread = F.softplus(raw)
        if self.training or not self.drawn:
            z = mean + spread * self.draw(mean)
            return Output(self.cls(z if self.drawn else F.relu(h)), z, (mean, spread))
        rng = torch.Generator().manual_seed(0)
        xi = torch.randn(self.samples, *[1] * (mean.dim() - 1), mean.shape[-1], generator=rng, dtype=mean.dtype).to(mean.device)
        chances = self.cls(mean + spread * xi).softmax(-1).mean(0)
        return Output(chances.clamp(min=torch.finfo(chances.dtype).tiny).log(), mean, (mean, spread))

    def draw(self, mean: Tensor) -> Tensor:
        """xi, for one batch."""
        return torch.randn_like(mean)


@named
class Stochastic(Model):
    """FedSR's model (Nguyen et al., 2022): the model `of`, with 2 `width` outputs, says where z lies, and one layer reads z.

    FedOptz's study reads the logits from relu of the body's output instead and draws z for the penalty alone (`logits="direct"`,
    width 1024 on its network).
    """

    tiny: ClassVar[Mapping[str, Any]] = {"of": Cnn(hidden=8), "width": 4}

    of: Model = Cnn()
    width: Count = 64
    samples: Count = 20
    logits: Literal["drawn", "direct"] = "drawn"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return StochasticNet(self.of.build(shape, 2 * self.width), self.width, classes, self.samples, self.logits)
