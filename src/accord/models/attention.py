"""Locality self-attention, and the transformer block that is made of it."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from accord.models.slim import Joint

Temperature: TypeAlias = Literal["one", "heads"]


class LocalAttention(nn.Module):
    """softmax(t q k' with -inf on its diagonal) v in each head: a token never reads itself, and the temperature is learnt.

    `one` temperature is e^s for all heads, s at first log(d^(-1/2)), d = `dim_head`; `heads` is one factor a head, at first d^(-1/2).
    At a reduced width the first heads are left, the last of them perhaps with a part of its dimensions.
    """

    any_width = True

    def __init__(self, width: int, heads: int, dim_head: int, temperature: Temperature, bias: bool = True) -> None:
        nn.Module.__init__(self)
        self.dim_head, start = dim_head, dim_head**-0.5
        self.temperature = nn.Parameter(torch.tensor(math.log(start)) if temperature == "one" else torch.full((heads, 1, 1), start))
        self.qkv = Joint(width, heads * dim_head, 3)
        self.out = nn.Linear(heads * dim_head, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        joint = self.qkv(x)
        width = joint.shape[-1] // 3
        missing = -width % self.dim_head
        q, k, v = (self.by_head(F.pad(t, (0, missing))) for t in joint.chunk(3, dim=-1))
        scale = self.temperature.exp() if self.temperature.dim() == 0 else self.temperature[: q.shape[1]]
        dots = q @ k.mT * scale
        itself = torch.eye(dots.shape[-1], dtype=torch.bool, device=x.device)
        z = dots.masked_fill(itself, -math.inf).softmax(-1) @ v
        return self.out(z.transpose(1, 2).flatten(2)[..., :width])  # type: ignore[no-any-return]

    def by_head(self, t: Tensor) -> Tensor:
        """(N, places, width) as (N, heads, places, dim_head)."""
        return t.view(*t.shape[:2], -1, self.dim_head).transpose(1, 2)


class Block(nn.Module):
    """x + A(x), then x + F(x): attention and a hidden layer, each behind a LayerNorm.

    Where its survival p is below 1, each of the two is, in training, left out of a sample with probability 1 - p and counts 1 / p
    times where it stays. The draws come from torch's own stream, on the CPU.
    """

    def __init__(
        self, width: int, heads: int, dim_head: int, hidden: int, temperature: Temperature, bias: bool = True, survival: float = 1.0
    ) -> None:
        nn.Module.__init__(self)
        self.survival = survival
        self.norm1, self.attention = nn.LayerNorm(width), LocalAttention(width, heads, dim_head, temperature, bias)
        self.norm2, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, hidden, bias), nn.Linear(hidden, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.kept(self.attention(self.norm1(x)))
        return x + self.kept(self.down(F.gelu(self.up(self.norm2(x)))))

    def kept(self, z: Tensor) -> Tensor:
        """What is left of a branch."""
        if self.survival == 1 or not self.training:
            return z
        stays = (torch.rand(len(z), 1, 1) < self.survival).to(z.device, z.dtype)
        return z * stays / max(self.survival, torch.finfo(z.dtype).tiny)
