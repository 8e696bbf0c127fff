"""Pooling without gradient gives what torch's pooling gives."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.func import functional_call, vmap

import accord
from accord.models.pool import halve


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(8, 8), (7, 9), (2, 3)])
def test_it_is_torchs_pooling_with_and_without_gradient(size: tuple[int, int], layout: torch.memory_format) -> None:
    x = torch.randn(5, 6, *size).round(decimals=1).contiguous(memory_format=layout)  # with ties
    wanted = F.max_pool2d(x, 2)
    assert halve(x).equal(wanted)
    with torch.no_grad():
        assert halve(x).equal(wanted)
        assert vmap(halve)(x[:, None]).equal(wanted[:, None])
        x[0, 0, 0, 0] = torch.nan
        assert halve(x)[0, 0, 0, 0].isnan()


@pytest.mark.parametrize("name", ["lenet5", "cnn", "femnist_cnn"])
def test_models_answer_alike_with_and_without_gradient(name: str) -> None:
    module = accord.read(name, "model").build((1, 28, 28), 10).eval()
    x = torch.randn(4, 1, 28, 28).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        quick = module(x).logits
    assert quick.equal(module(x).logits)
    weights = dict(module.named_parameters())
    with torch.no_grad():  # as the analysis asks: the gradient inside has to find torch's pooling
        inside = torch.func.grad(lambda w: functional_call(module, w, (x,)).logits.sum())(weights)
    module(x).logits.sum().backward()
    assert all(inside[key].equal(p.grad) for key, p in module.named_parameters())
