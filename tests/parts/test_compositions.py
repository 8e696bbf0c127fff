"""Every local method with every other and under the constraint, in either order, on a model that has what any of them asks for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import accord
from accord.cost import Small
from accord.flat import Flat
from accord.recipe import entries, read
from small import federation, net
from test_every_part import assert_finite, loss

# Recipes that say what the server or the last round does, and add nothing to a client's work.
ELSEWHERE = {"fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedmrur", "knnper", "fedsol_a0", "centralised"}
LOCAL = [e.name for e in entries("algorithm") if e.make.__module__ == "accord.algorithms" and e.name not in ELSEWHERE]


def small() -> nn.Module:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        return Small().double()


def deal(seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = torch.Generator().manual_seed(seed)
    return [(torch.randn(4, 2, 6, 6, generator=rng, dtype=torch.float64), torch.arange(4)) for _ in range(2)]


@pytest.mark.parametrize("first", LOCAL)
def test_every_local_method_with_every_other(first: str) -> None:
    """Nothing is refused: parts that wrap the gradient nest. What a client keeps from one composition's round starts its next."""
    module, w0 = small(), Flat(small()).w.clone()
    for second in LOCAL:
        algorithm = read(f"{first} + {second} + constrain(order=joint) + sgd(lr=0.02, decay=0.001)")
        assert {type(p) for p in algorithm.parts} >= {type(p) for p in (*read(first).parts, *read(second).parts)}
        assert read(repr(algorithm)) == algorithm
        reply = accord.local_round(algorithm, module, deal(0))
        reply = accord.local_round(algorithm, module, deal(1), kept=reply.kept, round=1)
        w, state = accord.server_step(algorithm, w0, [reply], population=2)
        assert_finite(reply, w, state)
        assert not reply.w.equal(w0), f"{algorithm!r} moves nothing"


@pytest.mark.parametrize(
    "text", ["scaffold + fedsol(by=contrast) + constrain + mixup", "mixup + constrain + fedsol(by=contrast) + scaffold"]
)
def test_four_ideas_of_four_papers_train_together(text: str) -> None:
    data, module = federation(), net()
    algorithm = read(text) + accord.uniform(4) + accord.sgd(lr=0.05, batch=5, epochs=1)
    assert {p.name for p in algorithm.all_parts} == {"task", "control", "contrast", "perturb", "constrain", "mixup"}
    losses = [loss(c.server.model(module), data) for c in accord.rounds(algorithm, module, data, rounds=15)]
    assert losses[-1] < losses[0] < loss(module, data)


@pytest.mark.parametrize("method", [m for m in LOCAL if m not in ("fedconst", "fedoptz", "perfedavg")])
def test_the_constraint_outermost_holds_whatever_is_inside(method: str) -> None:
    """Each row's change is at right angles to its global weights, and sums to nothing: Condition 2 of FedCONST."""
    module, start = small(), Flat(small())
    algorithm = read(f"{method} + constrain(order=joint) + sgd(lr=0.02, decay=0.001)")
    reply = accord.local_round(algorithm, module, deal(0))
    rows, change = start.layout.rows(start.w), start.layout.rows(reply.w - start.w)
    for w, d in zip(rows, change, strict=True):
        scale = d.norm(dim=1).clamp(min=1e-12)
        assert (torch.linalg.vecdot(w, d).abs() / (w.norm(dim=1) * scale)).max() < 1e-6
        assert (d.sum(dim=1).abs() / scale).max() < 1e-6


@pytest.mark.parametrize("text", ["fedprox", "fedsam + moon", "fedavg + constrain(mode=linear) + hold"])
def test_what_is_refused_is_refused_when_it_is_written(text: str) -> None:
    last = text.split(" + ")[-1]
    part = "proximal" if last == "fedprox" else "contrast" if last == "moon" else last
    with pytest.raises(ValueError, match="stands twice"):
        read(f"{text} + {part}")
