"""The two-convolution network of McMahan et al. in the forms that the papers use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from accord.check import Count, Whole
from accord.flat import Output
from accord.models.init import Init, initialise
from accord.models.model import Model, image_shape
from accord.models.norm import Norm, normalise
from accord.models.pool import halve
from accord.models.project import project
from accord.recipe import named


class ConvNet(nn.Module):
    """Two convolutions of 5x5, each with max-pooling and ReLU, a hidden layer (none where `hidden` is 0) and the head.

    Pooling comes before ReLU, which gives the same numbers for a quarter of the work.

    >>> import torch
    >>> out = ConvNet((3, 32, 32), 10)(torch.zeros(2, 3, 32, 32))
    >>> out.logits.shape, out.features.shape
    (torch.Size([2, 10]), torch.Size([2, 512]))
    """

    stages = ("conv1", "conv2")
    one_size = True

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        padding: int = 2,
        hidden: int = 512,
        rgb: bool = True,
        norm: Norm = "none",
        bias: bool = True,
        projection: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        channels, high, wide = shape
        self.repeat = 3 if rgb and channels == 1 else 1
        self.conv1 = nn.Conv2d(channels * self.repeat, 32, 5, padding=padding, bias=bias)
        self.norm1 = normalise(norm, 32)
        self.conv2 = nn.Conv2d(32, 64, 5, padding=padding, bias=bias)
        self.norm2 = normalise(norm, 64)
        for _ in range(2):
            high, wide = ((side + 2 * padding - 4) // 2 for side in (high, wide))
        self.hidden = nn.Linear(64 * high * wide, hidden, bias) if hidden else None
        self.project, features = project(projection, hidden or 64 * high * wide, bias)
        self.head = nn.Linear(features, classes, bias)

    def forward(self, x: Tensor) -> Output:
        x = x if self.repeat == 1 else x.expand(-1, self.repeat, -1, -1)
        x = F.relu(halve(self.norm1(self.conv1(x))), inplace=True)
        x = F.relu(halve(self.norm2(self.conv2(x))), inplace=True)
        features = self.project(x.flatten(1) if self.hidden is None else F.relu(self.hidden(x.flatten(1)), inplace=True))
        return Output(self.head(features), features)


@named
class Cnn(Model):
    """McMahan et al. 2017: 32 and 64 filters of 5x5 and 512 hidden units; grey images are read as three equal channels.

    `norm` stands behind each convolution, `projection` puts MOON's two layers before the head, whose result are the features.
    With `hidden=0` the head reads what the convolutions give, so that FedOptz's model of FedSR is
    `stochastic(of=cnn(padding=0, hidden=0, rgb=False), width=1024, logits=direct)`.

    >>> from accord.models.cnn import Cnn
    >>> [sum(p.numel() for p in Cnn().build(shape, 10).parameters()) for shape in ((3, 32, 32), (1, 28, 28))]
    [2156490, 1664970]
    """

    tiny: ClassVar[Mapping[str, Any]] = {"hidden": 8}

    padding: Whole = 2
    hidden: Whole = 512
    rgb: bool = True
    init: Init = "torch"
    norm: Norm = "none"
    bias: bool = True
    projection: bool = False

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        images = image_shape(shape, "cnn", max(2, 16 - 6 * self.padding))
        net = ConvNet(images, classes, self.padding, self.hidden, self.rgb, self.norm, self.bias, self.projection)
        return initialise(net, self.init)


@named
def femnist_cnn(hidden: Count = 2048, init: Init = "torch", norm: Norm = "none", bias: bool = True, projection: bool = False) -> Cnn:
    """The `cnn` of FedOptz for 28x28 characters: no padding, one channel, 2048 hidden units. LEAF's own is the padded one.

    >>> sum(p.numel() for p in femnist_cnn().build((1, 28, 28), 62).parameters())
    2278334
    """
    return Cnn(padding=0, hidden=hidden, rgb=False, init=init, norm=norm, bias=bias, projection=projection)
