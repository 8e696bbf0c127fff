"""MOON's projection: two linear layers between what a network computes and what its head reads."""

from __future__ import annotations

from torch import nn

PROJECTED = 256  # features behind the projection, in MOON's and FedAlign's programs


def project(wanted: bool, width: int, bias: bool = True) -> tuple[nn.Module, int]:
    """Two linear layers with ReLU between them, or nothing; and how many features the head then reads.

    >>> project(True, 84)
    (Sequential(
      (0): Linear(in_features=84, out_features=84, bias=True)
      (1): ReLU(inplace=True)
      (2): Linear(in_features=84, out_features=256, bias=True)
    ), 256)
    >>> project(False, 84)
    (Identity(), 84)
    """
    if not wanted:
        return nn.Identity(), width
    return nn.Sequential(nn.Linear(width, width, bias), nn.ReLU(inplace=True), nn.Linear(width, PROJECTED, bias)), PROJECTED
