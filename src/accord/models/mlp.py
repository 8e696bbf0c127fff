"""Fully connected networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn

from accord.check import Count
from accord.flat import Output
from accord.models.init import Init, initialise
from accord.models.model import Model
from accord.models.project import project
from accord.recipe import named


class PerceptronNet(nn.Module):
    """Linear layers with ReLU between them; no hidden layer is multinomial regression.

    >>> import torch
    >>> out = PerceptronNet(64, (200,), 10)(torch.zeros(2, 8, 8))
    >>> out.logits.shape, out.features.shape
    (torch.Size([2, 10]), torch.Size([2, 200]))
    """

    stages = ("body",)
    one_size = True

    def __init__(self, inputs: int, hidden: tuple[int, ...], classes: int, bias: bool = True, projection: bool = False) -> None:
        nn.Module.__init__(self)
        widths = (inputs, *hidden)
        self.body = nn.Sequential()
        for wide, narrow in zip(widths, hidden, strict=False):
            self.body.append(nn.Linear(wide, narrow, bias=bias)).append(nn.ReLU(inplace=True))
        self.project, features = project(projection, widths[-1], bias)
        self.head = nn.Linear(features, classes, bias=bias)

    def forward(self, x: Tensor) -> Output:
        if not x.is_floating_point():
            raise ValueError("mlp reads measurements, and these samples are whole numbers: use char_rnn for text, or make them floats")
        features = self.project(self.body(x.flatten(1)))
        return Output(self.head(features), features)


@named
class Mlp(Model):
    """A perceptron with hidden layers of these widths, for data of any shape; `mlp(hidden=())` is multinomial regression.

    >>> from accord.models.mlp import Mlp
    >>> sum(p.numel() for p in Mlp((200,)).build((64,), 10).parameters())
    15010
    """

    tiny: ClassVar[Mapping[str, Any]] = {"hidden": (8,)}

    hidden: tuple[Count, ...] = (200,)
    bias: bool = True
    init: Init = "torch"
    projection: bool = False

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return initialise(PerceptronNet(math.prod(shape), self.hidden, classes, self.bias, self.projection), self.init)
