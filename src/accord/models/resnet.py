"""Residual networks: ResNet-18, and FedAlign's bottleneck network called ResNet-56."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accord.check import Count, Fraction
from accord.flat import Output
from accord.models.drop import DropRule, survival
from accord.models.init import Init, initialise
from accord.models.model import Model, image_shape
from accord.models.norm import Norm, normalise
from accord.models.project import PROJECTED
from accord.recipe import named

Stem: TypeAlias = Literal["cifar", "imagenet"]


class Block(nn.Module):
    """relu(F(x) + x), with a convolution on the way past F where the shape changes.

    Where its survival p is below 1 it is, with probability 1 - p for each batch of training, relu(x) alone, and in evaluation
    relu(p F(x) + x). The draws come from torch's own stream, on the CPU.
    """

    expansion: ClassVar[int]

    def __init__(self, inputs: int, width: int, stride: int, survival: float, norm: Norm) -> None:
        nn.Module.__init__(self)
        self.survival = survival
        self.place(inputs, width, stride, norm)
        outputs = width * self.expansion
        self.downsample = nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), normalise(norm, outputs))

    def place(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        """Make the layers of F."""
        raise TypeError(f"{type(self).__name__} does not say what its layers are")

    def residual(self, x: Tensor) -> Tensor:
        """F(x)."""
        raise TypeError(f"{type(self).__name__} does not say what F is")

    def forward(self, x: Tensor) -> Tensor:
        past = self.downsample(x)
        if self.survival < 1 and self.training and float(torch.rand(())) >= self.survival:
            return F.relu(past)
        out = self.residual(x)
        if self.survival < 1 and not self.training:
            out = out * self.survival
        return F.relu(out + past, inplace=True)


class Basic(Block):
    """Two convolutions of 3x3."""

    expansion = 1

    def place(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), normalise(norm, width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), normalise(norm, width)

    def residual(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        return self.bn2(self.conv2(x))  # type: ignore[no-any-return]


class Bottleneck(Block):
    """Convolutions of 1x1, 3x3 and 1x1, the last to four times the width."""

    expansion = 4

    def place(self, inputs: int, width: int, stride: int, norm: Norm) -> None:
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), normalise(norm, width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), normalise(norm, width)
        self.conv3, self.bn3 = nn.Conv2d(width, 4 * width, 1, bias=False), normalise(norm, 4 * width)

    def residual(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        x = F.relu(self.bn2(self.conv2(x)), inplace=True)
        return self.bn3(self.conv3(x))  # type: ignore[no-any-return]


class ResNet(nn.Module):
    """Stages of blocks, each after the first at half the resolution and twice the width; the mean over the image; a linear head `fc`.

    Children have torchvision's names. `blocks` holds how many blocks each stage `layer1`, `layer2`, ... has, `survivals` what
    `survival` gave for all of them.

    >>> out = ResNet(Basic, (1, 1, 1), 8, 3, 10)(torch.zeros(2, 3, 32, 32))
    >>> out.logits.shape, out.features.shape
    (torch.Size([2, 10]), torch.Size([2, 32]))
    """

    head_name = "fc"

    def __init__(
        self,
        block: type[Block],
        blocks: tuple[int, ...],
        width: int,
        inputs: int,
        classes: int,
        *,
        stem: Stem = "cifar",
        norm: Norm = "batch",
        bias: bool = True,
        survivals: tuple[float, ...] = (),
        projection: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        small, chances = stem == "cifar", iter(survivals or (1.0,) * sum(blocks))
        self.conv1 = nn.Conv2d(inputs, width, 3 if small else 7, 1 if small else 2, 1 if small else 3, bias=False)
        self.bn1 = normalise(norm, width)
        self.shrink = not small
        self.stages = tuple(f"layer{k}" for k in range(1, len(blocks) + 1))
        before = width
        for stage, (name, count) in enumerate(zip(self.stages, blocks, strict=True)):
            made = nn.Sequential()
            for k in range(count):
                made.append(block(before, width << stage, 2 if stage and not k else 1, next(chances), norm))
                before = (width << stage) * block.expansion
            self.add_module(name, made)
        self.projection = projection
        if projection:
            self.p1, self.p2 = nn.Linear(before, before, bias), nn.Linear(before, PROJECTED, bias)
        self.fc = nn.Linear(PROJECTED if projection else before, classes, bias)

    def forward(self, x: Tensor) -> Output:
        x = self.bn1(self.conv1(x))
        x = F.relu(F.max_pool2d(x, 3, 2, 1) if self.shrink else x, inplace=True)
        for name in self.stages:
            x = self.get_submodule(name)(x)
        features = x.mean((2, 3))
        if self.projection:
            features = self.p2(F.relu(self.p1(features), inplace=True))
        return Output(self.fc(features), features)


class ResNet18(Model):
    """He et al. 2016: two blocks of two 3x3 convolutions in each of four stages, `width` filters in the first.

    `stem="cifar"` begins with one convolution of 3x3 (FedSOL with `norm="batch_stats"`; FedCONST with `norm="none", bias=False`),
    `"imagenet"` with 7x7 at half the resolution and max-pooling (FedAlign, with `init="he_out"`). `bias` is that of the linear
    layers; the convolutions have none. `drop` is stochastic depth's gamma_L, the last block's chance to be computed in training, and
    `drop_rule` how the chance falls to it. `projection` puts MOON's two layers before the head, whose result are the features.

    >>> sum(p.numel() for p in ResNet18(norm="batch_stats").build((3, 32, 32), 10).parameters())
    11173962
    """

    tiny: ClassVar[Mapping[str, Any]] = {"width": 2}

    width: Count = 64
    stem: Stem = "cifar"
    norm: Norm = "batch"
    bias: bool = True
    drop: Fraction = 1.0
    drop_rule: DropRule = "code"
    projection: bool = False
    init: Init = "torch"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        inputs, blocks, chances = image_shape(shape, "resnet18", 8)[0], (2, 2, 2, 2), survival(8, self.drop, self.drop_rule)
        net = ResNet(
            Basic,
            blocks,
            self.width,
            inputs,
            classes,
            stem=self.stem,
            norm=self.norm,
            bias=self.bias,
            survivals=chances,
            projection=self.projection,
        )
        return initialise(net, self.init)


class ResNet56(Model):
    """FedAlign's network: six bottleneck blocks in each of three stages, of `width`, twice and four times as many filters, times four.

    It is FedML's; He's ResNet-56 is another one. The other arguments are those of `resnet18`.

    >>> sum(p.numel() for p in ResNet56().build((3, 32, 32), 100).parameters())
    614452
    """

    tiny: ClassVar[Mapping[str, Any]] = {"width": 2}

    width: Count = 16
    norm: Norm = "batch"
    bias: bool = True
    drop: Fraction = 1.0
    drop_rule: DropRule = "code"
    projection: bool = False
    init: Init = "he_out"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        inputs, blocks, chances = image_shape(shape, "resnet56", 8)[0], (6, 6, 6), survival(18, self.drop, self.drop_rule)
        net = ResNet(
            Bottleneck,
            blocks,
            self.width,
            inputs,
            classes,
            norm=self.norm,
            bias=self.bias,
            survivals=chances,
            projection=self.projection,
        )
        return initialise(net, self.init)


named(ResNet18, "resnet18")
named(ResNet56, "resnet56")
