"""Random changes to training images, drawn for a whole chunk of samples at once from the generator that is handed in."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from accord.check import Count, NonNegative
from accord.recipe import named


class Augment:
    """A random change to a chunk of images, `(N, H, W, C)`: each sample gets its own draw.

    Most act on raw pixels; with `normalised` set, one acts after the mean is taken off, so that zero means the mean.
    """

    kind: ClassVar[str] = "augment"
    normalised: ClassVar[bool] = False
    name: str

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        """The changed images; `x` itself is the caller's scratch memory and may be overwritten."""
        raise TypeError(f"{type(self).__name__} does not say how it changes images")


@named
class Crop(Augment):
    """Pad by `pad` pixels on every side and cut a window of the old size at a random place.

    >>> from accord.data.augment import Crop
    >>> x = torch.arange(16.0).reshape(1, 4, 4, 1)
    >>> Crop(pad=1)(x, torch.Generator().manual_seed(0)).shape
    torch.Size([1, 4, 4, 1])
    """

    pad: Count = 4
    fill: Literal["zero", "reflect"] = "zero"

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        n, high, wide, _ = x.shape
        windows = self.padded(x).unfold(1, high, 1).unfold(2, wide, 1)  # N, 2p+1, 2p+1, C, H, W
        at = torch.randint(2 * self.pad + 1, (2, n), generator=rng).to(x.device)
        return windows.permute(0, 1, 2, 4, 5, 3)[torch.arange(n, device=x.device), at[0], at[1]]

    def padded(self, x: Tensor) -> Tensor:
        """The images with their border, zeros or a mirror of the pixels inside (the edge itself is not repeated)."""
        p = self.pad
        if self.fill == "zero":
            return F.pad(x, (0, 0, p, p, p, p))
        if p >= min(x.shape[1:3]):
            raise ValueError(f"crop(pad={p}, fill='reflect') needs images larger than {p} pixels, not {tuple(x.shape[1:3])}; lower pad")
        x = torch.cat([x[:, 1 : p + 1].flip(1), x, x[:, -p - 1 : -1].flip(1)], 1)
        return torch.cat([x[:, :, 1 : p + 1].flip(2), x, x[:, :, -p - 1 : -1].flip(2)], 2)


@named
class Flip(Augment):
    """Mirror left and right with probability one half.

    >>> from accord.data.augment import Flip
    >>> x = torch.tensor([1.0, 2.0]).reshape(1, 1, 2, 1).expand(64, 1, 2, 1)
    >>> sorted({tuple(row) for row in Flip()(x.clone(), torch.Generator().manual_seed(0)).reshape(64, 2).tolist()})
    [(1.0, 2.0), (2.0, 1.0)]
    """

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        chosen = (torch.rand(len(x), generator=rng) < 0.5).nonzero().squeeze(1).to(x.device)
        return x.index_copy_(0, chosen, x.index_select(0, chosen).flip(2))


@named
class Cutout(Augment):
    """Blank a square of `size` pixels round a uniformly drawn pixel, clipped at the border; blank is the mean.

    DeVries and Taylor, "Improved regularization of convolutional neural networks with Cutout", 2017.

    >>> from accord.data.augment import Cutout
    >>> int((Cutout(2)(torch.ones(1, 8, 8, 1), torch.Generator().manual_seed(0)) == 0).sum())
    4
    """

    normalised: ClassVar[bool] = True
    size: Count = 16

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        n, high, wide, _ = x.shape
        rows = self.inside(torch.randint(high, (n, 1), generator=rng), high)
        columns = self.inside(torch.randint(wide, (n, 1), generator=rng), wide)
        kept = 1 - rows[:, :, None] * columns[:, None, :]
        return x.mul_(kept.unsqueeze(3).to(x.device))

    def inside(self, centre: Tensor, length: int) -> Tensor:
        """One for those of `length` pixels that lie in `[centre - size // 2, centre + size // 2)`, the square of the authors' code."""
        at, half = torch.arange(length), max(self.size // 2, 1)
        return ((at >= centre - half) & (at < centre + half)).float()


@named
class Rotate(Augment):
    """Turn each image by an angle drawn uniformly from `-degrees` to `degrees`; what turns in from outside is zero.

    >>> from accord.data.augment import Rotate
    >>> x = torch.rand(2, 5, 5, 3)
    >>> bool(torch.allclose(Rotate(0)(x, torch.Generator()), x, atol=1e-6))
    True
    """

    degrees: NonNegative = 15.0

    def __call__(self, x: Tensor, rng: torch.Generator) -> Tensor:
        angles = (torch.rand(len(x), generator=rng) * 2 - 1) * self.degrees
        return rotated(x, angles.to(x.device))


def rotated(x: Tensor, degrees: Tensor) -> Tensor:
    """Images `(N, H, W, C)` turned counter-clockwise by `degrees`, one angle each, with bilinear interpolation.

    >>> x = torch.arange(9.0).reshape(1, 3, 3, 1)
    >>> rotated(x, torch.tensor([90.0])).round().to(int).reshape(3, 3).tolist() == x.rot90(1, (1, 2)).to(int).reshape(3, 3).tolist()
    True
    """
    high, wide = x.shape[1:3]
    angle = degrees.to(torch.float32) * (math.pi / 180)
    cos, sin, zero = angle.cos(), angle.sin(), torch.zeros_like(angle)
    turn = torch.stack([cos, -sin * high / wide, zero, sin * wide / high, cos, zero], 1).reshape(-1, 2, 3)
    grid = F.affine_grid(turn, [len(x), 1, high, wide], align_corners=False)
    planes = x.permute(0, 3, 1, 2).to(torch.float32)
    turned = F.grid_sample(planes, grid, mode="bilinear", padding_mode="zeros", align_corners=False).permute(0, 2, 3, 1)
    return turned.round_().clamp_(0, 255).to(torch.uint8).contiguous() if x.dtype == torch.uint8 else turned.to(x.dtype).contiguous()
