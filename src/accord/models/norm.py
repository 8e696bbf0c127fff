"""Normalisation layers by name."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from torch import nn

Norm: TypeAlias = Literal["batch", "batch_stats", "group", "none"]


def normalise(norm: Norm, channels: int) -> nn.Module:
    """The layer that normalises so many channels.

    `batch` is BatchNorm; `batch_stats` keeps no running statistics, so that the batch's own are used in evaluation too (FedSOL's
    ResNet); `group` is GroupNorm with two groups, as in Hsieh et al. 2020; `none` does nothing.

    >>> normalise("group", 16).num_groups
    2
    """
    if norm == "group":
        return nn.GroupNorm(math.gcd(2, channels), channels)
    return nn.Identity() if norm == "none" else nn.BatchNorm2d(channels, track_running_stats=norm == "batch")
