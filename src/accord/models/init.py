"""How a network's weights are drawn at first."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor, nn

Init: TypeAlias = Literal["torch", "he", "he_out", "xavier", "sphere"]


def initialise(net: nn.Module, init: Init) -> nn.Module:
    """The network with the weights of its convolutions and linear layers drawn in this way.

    - `torch` leaves torch's own draw;
    - `he` is N(0, 2 / n_in), and biases are zero (He et al., 2015);
    - `he_out` is N(0, 2 / n_out) for convolutions, whose biases are zero, and torch's draw for the rest, as FedAlign's and
      torchvision's ResNets and FedSOL's VGG have it;
    - `xavier` is N(0, 2 / (n_in + n_out)), and biases are zero, as in SL-ViT's program (Glorot and Bengio, 2010);
    - `sphere` is torch's draw with every output unit's row centred and brought to the norm sqrt(2), as FedCONST's program has it.
    """
    for module in net.modules():
        if not isinstance(module, nn.Conv2d | nn.Linear):
            continue
        if init == "he":
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        elif init == "he_out" and isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif init == "xavier":
            nn.init.xavier_normal_(module.weight)
        else:
            if init == "sphere":
                _sphere(module.weight)
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    return net


@torch.no_grad()
def _sphere(weight: Tensor) -> None:
    rows = weight.view(len(weight), -1)
    rows.sub_(rows.mean(1, keepdim=True))
    rows.mul_(math.sqrt(2) / rows.norm(dim=1, keepdim=True))
