"""Every registered model is put through the same demands; a new one is picked up by being registered."""

from __future__ import annotations

import dataclasses
import inspect

import pytest
import torch
from torch import Tensor, nn

import accord
from accord.data.pool import Batch
from accord.flat import Flat, head_of
from accord.models import check, slimmed
from accord.recipe import Entry, entries, read
from accord.server import first_state

MODELS = [e for e in entries("model") if e.make.__module__.startswith("accord.models.")]
ALGORITHMS = [e.name for e in entries("algorithm") if e.make.__module__ == "accord.algorithms"]
each = pytest.mark.parametrize("entry", MODELS, ids=lambda e: e.name)


def tiny(entry: Entry, **more: object) -> nn.Module:
    model = entry.make()
    torch.manual_seed(0)
    return dataclasses.replace(model, **{**model.tiny, **more}).build(model.example, 4)  # type: ignore[no-any-return]


def samples(entry: Entry, count: int = 4) -> Tensor:
    """Samples of the shape that the model's example has: numbers, or symbols where it reads those."""
    shape, rng = (count, *entry.make().example), torch.Generator().manual_seed(1)
    return torch.randint(4, shape, generator=rng) if len(shape) == 2 else torch.randn(shape, generator=rng)


def batch(entry: Entry, count: int = 4) -> Batch:
    x = samples(entry, count)
    y = torch.arange(x.numel() if x.dim() == 2 else len(x)) % 4
    return Batch(x, y.view(x.shape) if x.dim() == 2 else y)


def reads_only(entry: Entry) -> set[str]:
    """The algorithms that a model's data or answers do not fit: FedSR needs a distribution, mixup needs numbers."""
    return {name for name, fits in (("fedsr", entry.name == "stochastic"), ("mixup", entry.name != "char_rnn")) if not fits}


@each
def test_answers_logits_and_features_and_names_its_head_and_stages(entry: Entry) -> None:
    net, x = tiny(entry).eval(), samples(entry)
    out = net(x)
    assert isinstance(out, accord.Output)
    assert out.features is not None
    assert out.logits.shape == (*batch(entry).y.shape, 4)
    assert len(out.features) == len(x)
    head = net.get_submodule(head_of(net))
    if entry.name != "stochastic":  # in evaluation its answer is a mean over draws
        assert torch.equal(head(out.features), out.logits)
    assert net.stages
    order = list(dict(net.named_modules()))
    assert [order.index(name) for name in net.stages] == sorted(order.index(name) for name in net.stages)  # type: ignore[union-attr]
    seen: list[str] = []
    for name in net.stages:  # type: ignore[union-attr]
        net.get_submodule(name).register_forward_hook(lambda *_, name=name: seen.append(name))
    net(x)
    assert seen == list(net.stages)  # type: ignore[arg-type]


@each
def test_runs_at_a_reduced_width_on_its_own_weights(entry: Entry) -> None:
    net, x = tiny(entry).eval(), samples(entry)
    whole = net(x).logits
    with slimmed(net, 0.25):
        narrow = net(x)
        assert narrow.logits.shape == whole.shape
        assert torch.isfinite(narrow.logits).all()
    assert net(x).logits.equal(whole)


@each
def test_is_its_text_and_its_seed(entry: Entry) -> None:
    model = entry.make()
    assert read(repr(model), "model") == model
    assert torch.equal(Flat(tiny(entry)).w, Flat(tiny(entry)).w)
    doc = inspect.getdoc(entry.make) or ""
    assert entry.summary == doc.split("\n")[0]
    assert entry.summary.endswith(".")


@each
def test_every_weight_is_trained(entry: Entry) -> None:
    """Two classes of arguments beside the defaults: a projection head, and no biases."""
    for more in ({}, {"projection": True}, {"bias": False}):
        if not set(more) <= set(entry.hints):
            continue
        net, (x, y) = tiny(entry, **more).train(), batch(entry, 12)
        out = net(x)
        nn.functional.cross_entropy(out.logits.flatten(0, -2), y.flatten()).backward()
        still = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
        assert not still, f"{entry.name}({more}): {still}"
        if more == {"projection": True}:
            assert out.features.shape[-1] == 256
        if more == {"bias": False}:
            biased = [n for n, m in net.named_modules() if isinstance(m, nn.Linear | nn.Conv2d) and m.bias is not None]
            assert not biased


def having(argument: str) -> pytest.MarkDecorator:
    """The models that take an argument."""
    return pytest.mark.parametrize("entry", [e for e in MODELS if argument in e.hints], ids=lambda e: e.name)


@having("norm")
@pytest.mark.parametrize("norm", ["batch", "batch_stats", "group", "none"])
def test_norms(norm: str, entry: Entry) -> None:
    net, x = tiny(entry, norm=norm), samples(entry)
    kinds = {type(m) for m in net.modules() if isinstance(m, nn.BatchNorm2d | nn.GroupNorm)}
    assert kinds == {"batch": {nn.BatchNorm2d}, "batch_stats": {nn.BatchNorm2d}, "group": {nn.GroupNorm}, "none": set()}[norm]
    assert bool(Flat(tiny(entry, norm=norm)).b.numel()) == (norm == "batch")  # what travels beside the weights
    alone, together = net.eval()(x[:2]).logits, net(x).logits[:2]
    assert alone.allclose(together, atol=1e-5) == (norm != "batch_stats")


@having("init")
def test_first_weights(entry: Entry) -> None:
    layers = lambda net: [m for m in net.modules() if isinstance(m, nn.Linear | nn.Conv2d)]  # noqa: E731
    for layer in layers(tiny(entry, init="sphere")):
        rows = layer.weight.detach().flatten(1)
        assert rows.sum(1).abs().max() < 1e-4
        torch.testing.assert_close(rows.norm(dim=1), torch.full((len(rows),), 2**0.5), rtol=1e-5, atol=0)
    for init, of in (("he", lambda a, b: 2 / a), ("xavier", lambda a, b: 2 / (a + b))):
        found = layers(tiny(entry, init=init))
        sizes = [(m.weight[0].numel(), len(m.weight) * m.weight[0, 0].numel()) for m in found]
        drawn = torch.cat([m.weight.detach().flatten() / of(a, b) ** 0.5 for m, (a, b) in zip(found, sizes, strict=True)])
        assert drawn.std().item() == pytest.approx(1, abs=5 / (2 * len(drawn)) ** 0.5)
        assert not any(m.bias.any() for m in found if m.bias is not None)


@having("drop")
def test_stochastic_depth(entry: Entry) -> None:
    net, whole, x = (
        tiny(entry, drop=0.3, drop_rule="even") if "drop_rule" in entry.hints else tiny(entry, drop=0.3),
        tiny(entry),
        samples(entry),
    )
    assert Flat(net).w.equal(Flat(whole).w)
    assert not torch.equal(net.train()(x).logits, net(x).logits)
    assert torch.equal(net.eval()(x).logits, net(x).logits)


@each
@pytest.mark.parametrize("name", ALGORITHMS)
def test_trains_under_every_algorithm(name: str, entry: Entry) -> None:
    """One local step and a server step: what comes out is finite, and what does not fit is refused in words."""
    net, algorithm = tiny(entry), read(name) + accord.sgd(lr=0.01, batch=4, epochs=1)
    w = Flat(net).w.clone()
    if name in reads_only(entry):
        with pytest.raises(ValueError, match=r"represent reads a distribution|mixup mixes measurements"):
            accord.local_round(algorithm, net, [tuple(batch(entry))])
        return
    reply = accord.local_round(algorithm, net, [tuple(batch(entry))])
    assert reply.steps == 1
    assert torch.isfinite(reply.w).all()
    new, _ = accord.server_step(algorithm, w, [reply], state=first_state(algorithm, w), population=2)
    assert torch.isfinite(new).all()
    assert not reply.w.equal(w) or name == "perfedavg"  # a first step without its partner moves nothing


@each
def test_the_check_says_what_a_run_would(entry: Entry) -> None:
    fit = check(tiny(entry), samples(entry))
    assert set(fit.missing) & set(ALGORITHMS) == reads_only(entry)
    assert set(ALGORITHMS) <= set(fit.serves) | set(fit.missing)
    assert not fit.rigid
    assert fit.head == head_of(tiny(entry))
    assert fit.stages == tuple(tiny(entry).stages)  # type: ignore[arg-type]
