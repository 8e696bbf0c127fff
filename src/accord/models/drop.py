"""Stochastic depth: how likely each block of a network is to be computed in training."""

from __future__ import annotations

from typing import Literal, TypeAlias

DropRule: TypeAlias = Literal["code", "paper", "even"]


def survival(blocks: int, last: float, rule: DropRule = "code") -> tuple[float, ...]:
    """How likely each of L blocks is to be computed in training, falling in a line to `last`, gamma_L.

    `code`: 1 - (l - 1) / (L - 1) (1 - gamma_L) for l = 1 to L, so that the first block always is, as in FedAlign's program;
    `paper`: 1 - l / L (1 - gamma_L), as in its paper and in Huang et al. 2016; `even`: gamma_L for all, as in SL-ViT's program.

    >>> survival(3, 0.5), survival(2, 0.5, "paper")
    ((1.0, 0.75, 0.5), (0.75, 0.5))
    """
    if rule == "even":
        return (last,) * blocks
    steps = [k / max(blocks - 1, 1) if rule == "code" else (k + 1) / blocks for k in range(blocks)]
    return tuple(1 - step * (1 - last) for step in steps)
