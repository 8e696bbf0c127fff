"""A module at a reduced width, on the leading channels of its own weights: no second model and no special layers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accord.flat import head_of

_Rule: TypeAlias = "Callable[..., Any]"


def divisible(size: float, by: int = 8) -> int:
    """The multiple of `by` that is nearest to a size and at least nine tenths of it; of sizes that round to nothing, 1 or more.

    >>> divisible(25.6), divisible(12.8), divisible(1.0), divisible(1.6)
    (24, 16, 1, 9)
    """
    found = max(1, int(size + by / 2) // by * by)
    return found if found >= 0.9 * size else found + by


def channels(count: int, width: float) -> int:
    """How many of so many channels are left at a width.

    >>> channels(64, 0.25), channels(32, 0.8), channels(6, 0.25)
    (16, 24, 6)
    """
    return min(count, divisible(count * width))


@contextmanager
def slimmed(module: nn.Module, width: float, *, stage: bool = False) -> Iterator[None]:
    """Within the block the module computes with the first `channels(C, width)` of the C outputs of each of its layers.

    Every layer reads as many inputs as it is given, so the first one reads them all. What the head answers stays whole; with `stage`
    the module is a part of a network without a head, and what it is given may have been cut before. BatchNorm uses the statistics of
    the batch and leaves its own alone, even where all channels are left. The weights are views: gradients arrive where they belong.
    Slimmable networks: Yu et al., 2019; widths as in FedAlign's and GradAug's programs.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))
    >>> with slimmed(net, 0.25):
    ...     print(net[0](torch.zeros(2, 4)).shape, net(torch.zeros(2, 4)).shape)
    torch.Size([2, 8]) torch.Size([2, 3])
    """
    if width >= 1:
        yield
        return
    narrow = _Narrow(module, width, stage)
    restart = module.register_forward_pre_hook(narrow.start)
    before = {layer: layer.__dict__.get("forward") for layer in narrow.rules}
    for layer, rule in narrow.rules.items():
        layer.__dict__["forward"] = partial(rule, narrow, layer)
    try:
        yield
    finally:
        restart.remove()
        for layer, own in before.items():
            del layer.__dict__["forward"]
            if own is not None:
                layer.__dict__["forward"] = own


class Joint(nn.Linear):
    """Several linear layers of one size on one input, without biases, their outputs side by side; each is cut by itself.

    >>> import torch
    >>> layer = Joint(32, 64, 3)
    >>> with slimmed(layer, 0.5, stage=True):
    ...     layer(torch.zeros(2, 16)).shape
    torch.Size([2, 96])
    """

    def __init__(self, inputs: int, outputs: int, parts: int) -> None:
        nn.Linear.__init__(self, inputs, parts * outputs, bias=False)
        self.parts = parts

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight)


class _Narrow:
    """One pass at a reduced width: the layers and what computes them now, and how much the last of them left."""

    def __init__(self, module: nn.Module, width: float, stage: bool) -> None:
        self.module, self.width = module, width
        self.rules = {layer: self.rule_of(name, layer) for name, layer in module.named_modules() if _computes(layer)}
        inside = [] if stage else [layer for layer in module.get_submodule(head_of(module)).modules() if layer in self.rules]
        self.whole = inside[-1] if inside else None
        self.stage = stage
        self.start()

    def start(self, *given: object) -> None:
        """Begin a pass: n of C channels are left of what is given, which is not known for a stage."""
        self.left: tuple[int, int] | None = None if self.stage else (1, 1)

    def rule_of(self, name: str, layer: nn.Module) -> _Rule:
        rule = _RULES.get(type(layer).forward)
        kind, where = type(layer).__name__, f"{name or 'it'} of {type(self.module).__name__}"
        if rule is None:
            known = "Conv1d to Conv3d, Linear, BatchNorm1d to BatchNorm3d, GroupNorm, LayerNorm, Embedding, RNN, LSTM and GRU"
            raise ValueError(f"{where} is a {kind}, which cannot be run at a reduced width: the weights must lie in {known}")
        if getattr(layer, "groups", 1) > 1:
            raise ValueError(f"{where} is a {kind} with groups={layer.groups}, which cannot be run at a reduced width: use groups=1")
        if len(getattr(layer, "normalized_shape", ())) > 1:
            over = layer.normalized_shape
            raise ValueError(f"{where} is a {kind} over {over}, which cannot be run at a reduced width: normalise one dimension")
        if getattr(layer, "bidirectional", False) or getattr(layer, "proj_size", 0):
            raise ValueError(f"{where} is a {kind} of two directions or with proj_size, which cannot be run at a reduced width")
        return rule

    def outputs(self, layer: nn.Module, count: int) -> int:
        """How many outputs of a layer are computed."""
        left = count if layer is self.whole else channels(count, self.width)
        self.left = left, count
        return left

    def convolution(self, layer: nn.Conv2d, x: Tensor) -> Tensor:
        n = self.outputs(layer, layer.out_channels)
        answer: Tensor = layer._conv_forward(x, layer.weight[:n, : x.shape[1]], _first(layer.bias, n))
        return answer

    def linear(self, layer: nn.Linear, x: Tensor) -> Tensor:
        if self.left is not None and x.shape[-1] * self.left[1] != layer.in_features * self.left[0]:
            wanted = layer.in_features * self.left[0] // self.left[1]
            raise ValueError(
                f"a linear layer of {type(self.module).__name__} is given {x.shape[-1]} features at width {self.width:.3g}, where "
                f"{wanted} belong: it flattens images and so reads one size of them only; show it no others (gradaug(scales=1)), "
                "or let it average over the image before the layer"
            )
        n = self.outputs(layer, layer.out_features)
        return F.linear(x, layer.weight[:n, : x.shape[-1]], _first(layer.bias, n))

    def joint(self, layer: Joint, x: Tensor) -> Tensor:
        each = layer.weight.view(layer.parts, -1, layer.in_features)
        n = self.outputs(layer, each.shape[1])
        return F.linear(x, each[:, :n, : x.shape[-1]].reshape(layer.parts * n, x.shape[-1]))

    def embedding(self, layer: nn.Embedding, x: Tensor) -> Tensor:
        return F.embedding(x, layer.weight[:, : self.outputs(layer, layer.embedding_dim)], layer.padding_idx)

    def recurrent(self, layer: nn.RNNBase, x: Tensor, *state: object) -> Any:
        if state:
            raise ValueError(
                f"a {type(layer).__name__} that is given a state to begin with cannot be run at a reduced width: begin with zeros"
            )
        n, read, weights = self.outputs(layer, layer.hidden_size), x.shape[-1], []
        for each in layer.all_weights:
            for weight, inputs in zip(each, (read, n, None, None), strict=False):
                gates = weight.view(-1, layer.hidden_size, *weight.shape[1:])[:, :n]
                weights.append((gates if inputs is None else gates[..., :inputs]).flatten(0, 1))
            read = n
        zeros = x.new_zeros(layer.num_layers, len(x) if layer.batch_first else x.shape[1], n)
        options = layer.bias, layer.num_layers, layer.dropout, layer.training, False, layer.batch_first
        if isinstance(layer, nn.LSTM):
            answer, *last = torch.lstm(x, (zeros, zeros), weights, *options)
            return answer, tuple(last)
        return (torch.gru if isinstance(layer, nn.GRU) else _PLAIN[layer.mode])(x, zeros, weights, *options)

    def layer_norm(self, layer: nn.LayerNorm, x: Tensor) -> Tensor:
        n = x.shape[-1]
        return F.layer_norm(x, (n,), _first(layer.weight, n), _first(layer.bias, n), layer.eps)

    def batch_norm(self, layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
        n = x.shape[1]
        return F.batch_norm(x, None, None, _first(layer.weight, n), _first(layer.bias, n), training=True, eps=layer.eps)

    def group_norm(self, layer: nn.GroupNorm, x: Tensor) -> Tensor:
        n = x.shape[1]
        return F.group_norm(x, math.gcd(layer.num_groups, n), _first(layer.weight, n), _first(layer.bias, n), layer.eps)


def _computes(layer: nn.Module) -> bool:
    """Whether a module is one of the layers that are known here, or has weights of its own and does not say that it cuts them itself."""
    own = any(True for _ in layer.parameters(recurse=False)) and not getattr(layer, "any_width", False)
    return type(layer).forward in _RULES or own


def _first(tensor: Tensor | None, n: int) -> Tensor | None:
    return None if tensor is None else tensor[:n]


_PLAIN = {"RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}
_RULES: dict[Callable[..., Any], _Rule] = {
    **{kind.forward: _Narrow.convolution for kind in (nn.Conv1d, nn.Conv2d, nn.Conv3d)},
    nn.Linear.forward: _Narrow.linear,
    Joint.forward: _Narrow.joint,
    nn.LayerNorm.forward: _Narrow.layer_norm,
    nn.Embedding.forward: _Narrow.embedding,
    **{kind.forward: _Narrow.recurrent for kind in (nn.RNN, nn.LSTM, nn.GRU)},
    nn.BatchNorm2d.forward: _Narrow.batch_norm,  # one function for BatchNorm1d to 3d
    nn.GroupNorm.forward: _Narrow.group_norm,
}
