"""VGG-11."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from accord.check import Count
from accord.flat import Output
from accord.models.init import Init, initialise
from accord.models.model import Model, image_shape
from accord.models.norm import Norm, normalise
from accord.models.project import project
from accord.recipe import named

_STAGES = ((1,), (2,), (4, 4), (8, 8), (8, 8))  # filters of the convolutions of each stage, in units of the width
_FEW = 8  # pixels; convolutions on maps of at most half that side are faster with their channels first, on larger ones with them last
_SMALLEST = 32  # pixels; five poolings leave one place of them


class VGG(nn.Module):
    """Five stages of 3x3 convolutions with ReLU and max-pooling between them, two hidden layers and the head `classifier`.

    Images that are not of the size it was built for, or smaller than 32 pixels, are brought to it, each pixel repeated.

    >>> import torch
    >>> out = VGG((3, 28, 28), 10, width=4)(torch.zeros(2, 3, 28, 28))
    >>> out.logits.shape, out.features.shape
    (torch.Size([2, 10]), torch.Size([2, 32]))
    """

    stages = ("stage1", "stage2", "stage3", "stage4", "stage5")

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        width: int = 64,
        bias: bool = True,
        norm: Norm = "none",
        projection: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        channels, high, wide = shape
        self.repeat = 3 if channels == 1 else 1
        self.size = max(_SMALLEST, high), max(_SMALLEST, wide)
        before = channels * self.repeat
        for name, multiples in zip(self.stages, _STAGES, strict=True):
            stage = nn.Sequential() if name == self.stages[0] else nn.Sequential(nn.MaxPool2d(2))
            for multiple in multiples:
                stage.extend([nn.Conv2d(before, multiple * width, 3, padding=1, bias=bias), normalise(norm, multiple * width)])
                stage.append(nn.ReLU(inplace=True))
                before = multiple * width
            self.add_module(name, stage)
        places = (self.size[0] // 32) * (self.size[1] // 32)
        self.fc1, self.fc2 = nn.Linear(before * places, before, bias), nn.Linear(before, before, bias)
        self.project, features = project(projection, before, bias)
        self.classifier = nn.Linear(features, classes, bias)

    def forward(self, x: Tensor) -> Output:
        x = x if self.repeat == 1 else x.expand(-1, self.repeat, -1, -1)
        x = x if x.shape[2:] == self.size else F.interpolate(x, self.size, mode="nearest")
        for name in self.stages:
            x = self.get_submodule(name)(x.contiguous() if x.shape[2] <= _FEW else x)
        x = F.relu(self.fc1(F.max_pool2d(x, 2).flatten(1)), inplace=True)
        features = self.project(F.relu(self.fc2(x), inplace=True))
        return Output(self.classifier(features), features)


@named
class Vgg11(Model):
    """Simonyan and Zisserman 2015 with hidden layers of 512, as FedSOL uses it; `width` filters in the first convolution.

    Grey images are read as three equal channels, images below 32 pixels are enlarged to it. `norm` stands behind each convolution,
    `projection` puts MOON's two layers before the head, whose result are the features.

    >>> from accord.models.vgg import Vgg11
    >>> sum(p.numel() for p in Vgg11().build((3, 32, 32), 10).parameters())
    9750922
    """

    tiny: ClassVar[Mapping[str, Any]] = {"width": 2}

    width: Count = 64
    bias: bool = True
    norm: Norm = "none"
    projection: bool = False
    init: Init = "he_out"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        images = image_shape(shape, "vgg11", 8)
        net = VGG(images, classes, width=self.width, bias=self.bias, norm=self.norm, projection=self.projection)
        return initialise(net, self.init)
