"""Recurrent layers, whose fused operations have no forward derivative and no form for many gradients at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


def recurrent(module: nn.Module) -> bool:
    """Whether a module has recurrent layers.

    >>> recurrent(nn.Sequential(nn.GRU(2, 2))), recurrent(nn.Linear(2, 2))
    (True, False)
    """
    return any(isinstance(layer, nn.RNNBase) for layer in module.modules())


@contextmanager
def unfused(module: nn.Module) -> Iterator[None]:
    """Within the block the recurrent layers of a module, if it has any, are computed step by step.

    >>> with unfused(nn.LSTM(2, 2)):
    ...     print(torch.backends.mkldnn.enabled)
    False
    """
    if not recurrent(module):
        yield
        return
    library: Any = torch.backends.mkldnn
    before = library.enabled
    library.enabled = False
    try:
        yield
    finally:
        library.enabled = before
