"""GradAug: the authors' numbers, its draws, its cost, and models that read one size of images only."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cases import case, close
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import accord
from accord.client import Client
from accord.flat import Flat
from accord.models import Bottleneck, ResNet, slimmed
from accord.parts.gradaug import Gradaug, resized
from small import batches, client_at, net
from tinyslim import check, tiny_slim

RULE = accord.sgd(lr=0.05, momentum=0.9, decay=0.01)
X = torch.randn(5, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 3, 1, 2, 3])


def small() -> ResNet:
    torch.manual_seed(0)
    return ResNet(Bottleneck, (1, 1, 1), 16, 3, 4).double()


def client_of(part: Gradaug, module: nn.Module, seed: int = 0) -> Client:
    w = Flat(module).w.clone()
    client = client_at(accord.fedavg() + part + RULE, module, w, w)
    client.__dict__["rng"] = torch.Generator().manual_seed(seed)
    return client


def test_local_update(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = case(golden, "gradaug_tinyslim")
    widths, sides = known.arrays["message/widths"].tolist(), known.arrays["message/resolutions"].tolist()
    drawn = [[(w, side / 8) for w, side in zip(*step, strict=True)] for step in zip(widths, sides, strict=True)]
    monkeypatch.setattr(Gradaug, "draw", lambda part, client: drawn[client.step])
    check(known, "gradaug")


def test_the_authors_divergences(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = case(golden, "gradaug_tinyslim")
    of = known.arrays
    for k in range(2):
        drawn = [(float(of["message/widths"][0, k]), float(of["message/resolutions"][0, k]) / 8)]
        monkeypatch.setattr(Gradaug, "draw", lambda part, client, drawn=drawn: drawn)
        client = client_of(Gradaug(mu=1.0), tiny_slim(known))
        batch = accord.Batch(of["x"][known.hyper["batch_order"][0]], of["y"][known.hyper["batch_order"][0]])
        found = client.algorithm.parts[-1].loss(client, batch, client.forward(batch.x))
        close(found.detach(), of["trace/kl"][0, k], 1e-7)


def test_the_gradient_written_out() -> None:
    part, module, other = Gradaug(n=2, width=0.5, mu=0.7), small(), small()
    client = client_of(part, module)
    draws = part.draw(client_of(part, small()))
    client.descend(client.algorithm.parts, accord.Batch(X, Y))
    z = other(X).logits
    F.cross_entropy(z, Y).backward()
    teacher = z.detach().softmax(1)
    for width, scale in draws:
        side = round(16 * scale)
        x = F.interpolate(X, (side, side), mode="bilinear", align_corners=True)
        with slimmed(other, width):
            p = other(x).logits.log_softmax(1)
        (0.7 * (teacher * (teacher.log() - p)).sum(1).mean()).backward()
    for name, p in other.named_parameters():
        close(client.layout.named(client.g)[name], p.grad, 1e-9)


def test_draws() -> None:
    part = Gradaug(n=4, width=0.6, scales=(1.0, 0.5))
    client = client_of(part, small())
    seen = [part.draw(client) for _ in range(200)]
    for drawn in seen:
        widths = [w for w, _ in drawn]
        assert widths == sorted(widths, reverse=True)
        assert widths[-1] == 0.6
        assert all(0.6 <= w < 1 for w in widths)
    free = torch.tensor([w for drawn in seen for w, _ in drawn[:-1]])
    assert float(free.mean()) == pytest.approx(0.8, abs=0.02)
    assert float(free.std()) == pytest.approx(0.4 / 12**0.5, abs=0.01)
    assert sum(s == 1.0 for drawn in seen for _, s in drawn) == pytest.approx(400, abs=60)
    assert part.draw(client_of(part, small())) == seen[0]
    assert part.draw(client_of(part, small(), seed=1)) != seen[0]


def test_resized() -> None:
    sides = [resized(torch.zeros(1, 1, 32, 32), s).shape[-1] for s in accord.gradaug().parts[-1].scales]
    assert sides == [32, 28, 24, 20]
    assert resized(X, 1.0) is X
    assert resized(torch.zeros(1, 1, 1, 4), 0.25).shape == (1, 1, 1, 1)


def test_the_sub_networks_leave_the_statistics_alone() -> None:
    one, two = (accord.local_round(a + RULE, small(), [(X, Y)]) for a in (accord.fedavg(), accord.gradaug()))
    assert one.b.equal(two.b)
    assert not one.w.equal(two.w)


def test_models_that_read_one_size_keep_it() -> None:
    model = accord.read("cnn(hidden=8)", "model").build((3, 16, 16), 4).double()
    found = accord.local_round(accord.gradaug(width=0.25) + RULE, model, [(X, Y)])
    whole = accord.local_round(accord.gradaug(width=0.25, scales=(1.0, 1.0, 1.0, 1.0)) + RULE, model, [(X, Y)])
    assert found.w.equal(whole.w)
    flat = accord.local_round(accord.gradaug(width=0.25) + RULE, net(), batches(1))
    assert torch.isfinite(flat.w).all()


class Flattens(nn.Sequential):
    """Reads one size of images and does not say so."""


def test_a_model_that_does_not_say_so_is_refused() -> None:
    model = Flattens(nn.Conv2d(3, 16, 3, padding=1), nn.Flatten(), nn.Linear(16 * 256, 4)).double()
    algorithm = accord.gradaug(scales=(0.5,)) + RULE
    with pytest.raises(ValueError, match=r"a linear layer of Flattens is given .*show it no others \(gradaug\(scales=1\)\)"):
        accord.local_round(algorithm, model, [(X, Y)])
    assert accord.local_round(accord.read("gradaug(scales=1)") + RULE, model, [(X, Y)]).steps == 1


def test_bad_arguments() -> None:
    for text, words in (("gradaug(scales=())", "no size of images"), ("gradaug(width=1.0)", "0.999999"), ("gradaug(n=0)", "at least 1")):
        with pytest.raises(ValueError, match=words):
            accord.read(text)


def test_what_it_costs() -> None:
    """FedAlign's Table 5: 170.7 million multiply-adds with n = 2, that is 95.5 % over the whole network's 87.3.

    What a batch costs is drawn: from 53 % (20 pixels, both narrow) to 168 % (32 pixels, one nearly whole), 106 % on average, with a
    standard deviation of 25 %. The paper does not say what it averages over: its number must lie within one deviation of the mean.
    """
    module = accord.read("resnet56", "model").build((3, 32, 32), 100)

    def flops(width: float, side: int) -> float:
        with FlopCounterMode(display=False) as counter, slimmed(module, width), torch.no_grad():
            module(torch.zeros(2, 3, side, side))
        return counter.get_total_flops()

    whole = flops(1.0, 32)
    grid = [0.8 + 0.2 * (k + 0.5) / 10 for k in range(10)]
    narrow = torch.tensor([flops(0.8, s) / whole for s in (32, 28, 24, 20)])
    drawn = torch.tensor([flops(w, s) / whole for w, s in itertools.product(grid, (32, 28, 24, 20))])
    mean, deviation = float(narrow.mean() + drawn.mean()), float((narrow.var() + drawn.var()) ** 0.5)
    assert mean == pytest.approx(1.06, abs=0.03)
    assert abs(mean - (170.7 / 87.3 - 1)) < deviation < 0.35
    client = client_of(Gradaug(), module)
    client.backward = lambda loss, on="all": None  # type: ignore[method-assign]
    draws = Gradaug().draw(client_of(Gradaug(), module))
    with FlopCounterMode(display=False) as counter:
        client.run([accord.Batch(torch.zeros(2, 3, 32, 32), torch.zeros(2, dtype=torch.long))])
    assert counter.get_total_flops() == whole + sum(flops(w, round(32 * s)) for w, s in draws)
