"""SL-ViT: a vision transformer for small data, with shifted patches and locality self-attention."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accord.check import Count, Fraction
from accord.flat import Output
from accord.models.attention import Block, Temperature
from accord.models.drop import DropRule, survival
from accord.models.init import Init, initialise
from accord.models.model import Model, image_shape
from accord.models.project import project
from accord.recipe import named

Shifts: TypeAlias = Literal["pixel", "diagonal"]


class ShiftedPatches(nn.Module):
    """An image and four shifted copies of it (zeros move in), cut into patches: each is normalised and mapped to a token.

    `pixel` shifts by one pixel to the right, left, bottom and top; `diagonal` by half a patch towards the four corners.

    >>> ShiftedPatches(3, 8, 192, "pixel")(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 16, 192])
    """

    def __init__(self, channels: int, patch: int, width: int, shifts: Shifts, bias: bool = True) -> None:
        nn.Module.__init__(self)
        self.patch, by = patch, patch // 2
        moves = {
            "pixel": [(0, 1), (0, -1), (1, 0), (-1, 0)],
            "diagonal": [(by, by), (by, -by), (-by, by), (-by, -by)],
        }
        self.moves = moves[shifts]  # how far the picture moves down and to the right
        self.norm = nn.LayerNorm(5 * channels * patch * patch)
        self.linear = nn.Linear(5 * channels * patch * patch, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, *(F.pad(x, (right, -right, down, -down)) for down, right in self.moves)], dim=1)
        n, channels, high, wide = x.shape
        p = self.patch
        x = x.reshape(n, channels, high // p, p, wide // p, p).permute(0, 2, 4, 3, 5, 1)
        return self.linear(self.norm(x.flatten(3).flatten(1, 2)))  # type: ignore[no-any-return]


class Stage(nn.Module):
    """Blocks one after another. Between stages the tokens are places, as in an image: (N, channels, places)."""

    def __init__(self, *blocks: Block) -> None:
        nn.Module.__init__(self)
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = x.mT
        for block in self.blocks:
            x = block(x)
        return x.mT


class ViT(nn.Module):
    """Patches, a class token before them, a learnt position for each, blocks in three stages, and a head on the class token.

    >>> net = ViT((3, 16, 16), 10, patch=4, width=16, depth=3, heads=2, dim_head=8, hidden=16)
    >>> out = net(torch.zeros(2, 3, 16, 16))
    >>> out.logits.shape, out.features.shape
    (torch.Size([2, 10]), torch.Size([2, 16]))
    """

    one_size = True
    any_width = True

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        *,
        patch: int,
        width: int,
        depth: int,
        heads: int,
        dim_head: int,
        hidden: int,
        shifts: Shifts = "pixel",
        temperature: Temperature = "one",
        bias: bool = True,
        survivals: tuple[float, ...] = (),
        projection: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        channels, high, wide = shape
        self.repeat = 3 if channels == 1 else 1
        self.tokens = ShiftedPatches(channels * self.repeat, patch, width, shifts, bias)
        self.position = nn.Parameter(torch.randn(1, (high // patch) * (wide // patch) + 1, width))
        self.first = nn.Parameter(torch.randn(1, 1, width))
        chances = survivals or (1.0,) * depth
        blocks = [Block(width, heads, dim_head, hidden, temperature, bias, chance) for chance in chances]
        count = min(3, depth)
        self.stages = tuple(f"stage{k}" for k in range(1, count + 1))
        for name, (start, stop) in zip(self.stages, itertools.pairwise(k * depth // count for k in range(count + 1)), strict=True):
            self.add_module(name, Stage(*blocks[start:stop]))
        self.project, features = project(projection, width, bias)
        self.head = nn.Sequential(nn.LayerNorm(features), nn.Linear(features, classes, bias))

    def forward(self, x: Tensor) -> Output:
        x = x if self.repeat == 1 else x.expand(-1, self.repeat, -1, -1)
        x = self.tokens(x)
        x = torch.cat([self.first[..., : x.shape[-1]].expand(len(x), -1, -1), x], dim=1) + self.position[..., : x.shape[-1]]
        x = x.mT
        for name in self.stages:
            x = self.get_submodule(name)(x)
        features = self.project(x[..., 0])
        return Output(self.head(features), features)


@named
class VitSmall(Model):
    """SL-ViT (Lee et al. 2021) in the sizes of FedSOL's program; `sl_vit` has its authors' own.

    `patch` is by default a quarter of the side. `shifts` move the image by one pixel to its sides, or by half a patch to its corners;
    the `temperature` of attention is one for all heads of a block or one a head. Grey images are read as three equal channels. `drop`
    is the last block's chance to be computed in training, and `drop_rule` how the chance falls to it. `bias` is that of all linear
    layers but the one that makes queries, keys and values, which has none. `projection` puts MOON's two layers before the head, which
    is a LayerNorm and a linear layer.

    >>> from accord.models.vit import VitSmall
    >>> sum(p.numel() for p in VitSmall().build((3, 32, 32), 10).parameters())
    6176275
    """

    tiny: ClassVar[Mapping[str, Any]] = {"width": 8, "depth": 3, "heads": 2, "dim_head": 4, "hidden": 8}

    patch: Count | None = None
    width: Count = 192
    depth: Count = 9
    heads: Count = 12
    dim_head: Count = 64
    hidden: Count = 192
    shifts: Shifts = "pixel"
    temperature: Temperature = "one"
    bias: bool = True
    drop: Fraction = 1.0
    drop_rule: DropRule = "code"
    projection: bool = False
    init: Init = "torch"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        images = image_shape(shape, "vit_small", 4)
        patch = self.patch or min(images[1:]) // 4
        if images[1] % patch or images[2] % patch:
            said = "" if self.patch else ", a quarter of the side,"
            raise ValueError(
                f"vit_small cuts images into patches of {patch}x{patch} pixels{said} and these have {images[1]}x{images[2]}: "
                "write patch= a divisor of both sides"
            )
        net = ViT(
            images,
            classes,
            patch=patch,
            width=self.width,
            depth=self.depth,
            heads=self.heads,
            dim_head=self.dim_head,
            hidden=self.hidden,
            shifts=self.shifts,
            temperature=self.temperature,
            bias=self.bias,
            survivals=survival(self.depth, self.drop, self.drop_rule),
            projection=self.projection,
        )
        return initialise(net, self.init)


@named
def sl_vit(
    patch: Count = 4,
    width: Count = 192,
    depth: Count = 9,
    heads: Count = 12,
    drop: Fraction = 0.9,
    bias: bool = True,
    projection: bool = False,
    init: Init = "xavier",
) -> VitSmall:
    """The `vit_small` of SL-ViT's authors: patches of 4, heads of width / heads, twice as many hidden units, half-patch shifts.

    >>> sum(p.numel() for p in sl_vit().build((3, 32, 32), 10).parameters())
    2729878
    """
    return VitSmall(
        patch=patch,
        width=width,
        depth=depth,
        heads=heads,
        dim_head=max(1, width // heads),
        hidden=2 * width,
        shifts="diagonal",
        temperature="heads",
        bias=bias,
        drop=drop,
        drop_rule="even",
        projection=projection,
        init=init,
    )
