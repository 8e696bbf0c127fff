"""ResNets: parameter counts, names, heads and stages, stochastic depth, first weights, and every algorithm for one step."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import accord
from accord.data.pool import Pool
from accord.data.shards import Shards
from accord.engines.process import Process
from accord.engines.processes import Processes
from accord.engines.threads import Threads
from accord.flat import Flat, head_of
from accord.jobs import Train
from accord.models import Basic, Bottleneck, ResNet, survival
from accord.recipe import entries, read
from accord.server import first_state
from test_golden import case


def build(text: str, classes: int = 10, shape: tuple[int, ...] = (3, 32, 32)) -> ResNet:
    torch.manual_seed(0)
    return read(text, "model").build(shape, classes)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("text", "classes", "parameters"),
    [
        ("resnet56", 100, 614_452),
        ("resnet56", 10, 591_322),
        ("resnet56(projection=True)", 100, 614_452 + 131_584),
        ("resnet56(drop=0.9)", 100, 614_452),
        ("resnet18", 10, 11_173_962),
        ("resnet18(norm=batch_stats)", 10, 11_173_962),
        ("resnet18(norm=group)", 10, 11_173_962),
        ("resnet18(norm=batch_stats, bias=False)", 10, 11_173_952),  # FedCONST's program with BatchNorm
        ("resnet18(norm=none, bias=False)", 10, 11_164_352),
        ("resnet18(norm=none, bias=False)", 100, 11_210_432),
        ("resnet18(stem=imagenet)", 200, 11_279_112),
        ("resnet18(stem=imagenet, projection=True)", 200, 11_279_112 + 512 * 513 + 512 * 256 + 256 - 256 * 200),
    ],
)
def test_parameter_counts(text: str, classes: int, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in build(text, classes).parameters()) == parameters


def test_names() -> None:
    """They are torchvision's, and MOON's for the projection, so that weights from elsewhere fit and old checkpoints stay readable."""
    net = build("resnet56(width=8, projection=True)")
    assert list(net.state_dict())[:4] == ["conv1.weight", "bn1.weight", "bn1.bias", "bn1.running_mean"]
    assert [n for n, _ in net.named_parameters() if n.startswith("layer2.0.")] == [
        *(f"layer2.0.{n}{k}.{p}" for k in (1, 2, 3) for n, ps in (("conv", ["weight"]), ("bn", ["weight", "bias"])) for p in ps),
        *("layer2.0.downsample.0.weight", "layer2.0.downsample.1.weight", "layer2.0.downsample.1.bias"),
    ]
    assert [n for n, _ in net.named_parameters()][-6:] == [f"{n}.{p}" for n in ("p1", "p2", "fc") for p in ("weight", "bias")]
    assert not any("downsample" in n for n in net.state_dict() if n.startswith("layer2.1."))
    assert list(build("resnet56(width=8, drop=0.5)").state_dict()) == list(build("resnet56(width=8)").state_dict())
    assert not [n for n in build("resnet18(width=8, norm=none)").state_dict() if "bn" in n]
    assert not [n for n, _ in build("resnet18(width=8, norm=batch_stats)").named_buffers()]


@pytest.mark.parametrize("text", ["resnet56(width=4)", "resnet56(width=4, projection=True)", "resnet18(width=8, stem=imagenet)"])
def test_head_features_and_stages(text: str) -> None:
    net = build(text)
    out = net(torch.randn(4, 3, 32, 32))
    assert head_of(net) == "fc" == list(net._modules)[-1]
    assert net.fc(out.features).equal(out.logits)
    assert net.stages == tuple(n for n, _ in net.named_children() if n.startswith("layer"))
    z = net.conv1(torch.randn(4, 3, 32, 32))
    for name in net.stages:
        z = net.get_submodule(name)(z)
    assert z.shape[1] == (net.fc if "projection" not in text else net.p1).in_features


def test_features_before_and_behind_the_projection() -> None:
    out = build("resnet56(width=4, projection=True)")(torch.randn(2, 3, 16, 16))
    assert out.features.shape == (2, 256)
    assert out.features.min() < 0
    assert build("resnet56(width=4)")(torch.randn(2, 3, 16, 16)).features.min() >= 0


@pytest.mark.parametrize("text", ["resnet56(width=4)", "resnet18(width=8, norm=group)", "resnet18(width=8, norm=none)"])
def test_memory_format_changes_no_number(text: str) -> None:
    net, x = build(text).double().eval(), torch.randn(3, 3, 16, 16, dtype=torch.float64)
    plain = net(x).logits
    last = net.to(memory_format=torch.channels_last)(x.to(memory_format=torch.channels_last)).logits  # type: ignore[call-overload]
    torch.testing.assert_close(last, plain, rtol=1e-9, atol=1e-12)


def test_batch_stats_answer_in_evaluation_as_in_training() -> None:
    net, x = build("resnet18(width=8, norm=batch_stats)"), torch.randn(4, 3, 16, 16)
    assert net.train()(x).logits.equal(net.eval()(x).logits)
    assert not net(x).logits[:2].allclose(net(x[:2]).logits, atol=1e-4)


def test_every_text_is_read_back() -> None:
    for text in ("resnet18", "resnet56(drop=0.9, norm=group, width=8)", "resnet18(stem=imagenet, init=he_out)"):
        assert read(repr(read(text, "model")), "model") == read(text, "model")
    with pytest.raises(ValueError, match="resnet56 reads images of at least 8x8 pixels"):
        build("resnet56", shape=(64,))


# --- first weights ---------------------------------------------------------------------------------------------------------------------


def test_sphere_rows_are_centred_and_of_one_norm() -> None:
    for text in ("resnet18(width=8, init=sphere)", "cnn(init=sphere)", "lenet5(init=sphere)"):
        for p in build(text).parameters():
            if p.dim() > 1:
                rows = p.detach().view(len(p), -1)
                torch.testing.assert_close(rows.norm(dim=1), torch.full((len(p),), math.sqrt(2)), rtol=1e-5, atol=0)
                assert rows.mean(1).abs().max() < 1e-6


def test_he_by_outputs_and_by_inputs() -> None:
    net = build("resnet56(width=16)")  # he_out is what FedAlign has
    assert float(net.layer3[0].conv2.weight.detach().std()) == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)
    assert float(net.layer3[1].conv1.weight.detach().std()) == pytest.approx((2 / 64) ** 0.5, rel=0.03)
    assert float(net.fc.weight.detach().abs().max()) <= 256**-0.5
    net = build("resnet56(width=16, init=he)")
    assert float(net.layer3[1].conv1.weight.detach().std()) == pytest.approx((2 / 256) ** 0.5, rel=0.03)
    assert not net.fc.bias.detach().any()


@pytest.mark.parametrize("norm", ["batch", "batch_stats", "group", "none"])
def test_other_models_take_the_norms(norm: str) -> None:
    for text in (f"cnn(norm={norm})", f"lenet5(norm={norm})"):
        net = build(text)
        assert net(torch.randn(3, 3, 32, 32)).logits.shape == (3, 10)
        assert head_of(net) == "head"
        kinds = {type(m) for m in net.modules()}
        assert (nn.GroupNorm in kinds, nn.BatchNorm2d in kinds) == (norm == "group", norm.startswith("batch"))


# --- stochastic depth ------------------------------------------------------------------------------------------------------------------


def test_the_authors_chances(golden: Path) -> None:
    known = case(golden, "stochdepth_eval")
    for name, wanted in known.arrays.items():
        if name.startswith("expected_prob_"):
            text, gamma = name.removeprefix("expected_prob_").split("_g")
            with torch.device("meta"):
                net = build(f"{text}(drop={gamma})")
            found = [m.survival for m in net.modules() if isinstance(m, Basic | Bottleneck)]
            assert found == pytest.approx(wanted.tolist(), rel=1e-12)
    assert survival(3, known.hyper["gamma_L"]) == pytest.approx(known.hyper["probabilities"])


def test_the_papers_chances() -> None:
    assert survival(18, 0.9, "paper") == pytest.approx([1 - k / 18 * 0.1 for k in range(1, 19)])
    assert survival(1, 0.5) == (1.0,)
    assert survival(1, 0.5, "paper") == (0.5,)
    assert "drop_rule='paper'" in repr(read("resnet56(drop=0.9, drop_rule=paper)", "model"))


def deep(*survivals: float) -> ResNet:
    torch.manual_seed(0)
    return ResNet(Basic, (1, 1, 1), 4, 3, 10, survivals=survivals).double()


X = torch.randn(4, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_in_evaluation_a_block_counts_by_its_chance() -> None:
    net = deep(1.0, 0.65, 0.3).eval()
    z = torch.relu(net.bn1(net.conv1(X)))
    for p, block in zip((1.0, 0.65, 0.3), (net.layer1[0], net.layer2[0], net.layer3[0]), strict=True):
        z = torch.relu(p * block.bn2(block.conv2(torch.relu(block.bn1(block.conv1(z))))) + block.downsample(z))
    torch.testing.assert_close(net(X).logits, net.fc(z.mean((2, 3))), rtol=1e-12, atol=1e-12)


def test_in_training_a_block_is_there_or_not() -> None:
    """What is dropped leaves its statistics and gradients alone; the way past it is always taken."""
    net, plain = deep(1.0, 1.0, 0.0), deep()
    out = net(X)
    z = plain.layer2(plain.layer1(torch.relu(plain.bn1(plain.conv1(X)))))
    torch.testing.assert_close(out.features, torch.relu(plain.layer3[0].downsample(z)).mean((2, 3)), rtol=1e-12, atol=1e-12)
    out.logits.sum().backward()
    last = net.layer3[0]
    assert last.conv1.weight.grad is None
    assert last.downsample[0].weight.grad is not None
    assert int(last.bn1.num_batches_tracked) == 0
    assert int(last.downsample[1].num_batches_tracked) == 1


def test_draws_are_one_a_block_and_batch_from_torchs_stream() -> None:
    net = deep(1.0, 0.65, 0.3)
    kept = torch.zeros(3)
    torch.manual_seed(5)
    for _ in range(300):
        before = [int(layer[0].bn1.num_batches_tracked) for layer in (net.layer1, net.layer2, net.layer3)]
        net(X[:2, :, :8, :8])
        kept += torch.tensor(
            [int(a[0].bn1.num_batches_tracked) - b for a, b in zip((net.layer1, net.layer2, net.layer3), before, strict=True)]
        )
    assert kept[0] == 300
    assert abs(float(kept[1]) / 300 - 0.65) < 0.1
    assert abs(float(kept[2]) / 300 - 0.3) < 0.1
    state = torch.get_rng_state()
    deep().train()(X)
    torch.manual_seed(5)
    deep(1.0, 0.65, 0.3).eval()(X)
    torch.set_rng_state(state)
    plain = torch.get_rng_state()
    build("resnet56(width=4)")
    torch.set_rng_state(plain)
    net.eval()(X)
    assert torch.get_rng_state().equal(plain)  # nothing is drawn in evaluation


def images(count: int = 24) -> accord.Federation:
    x, y = torch.randn(count, 8, 8, 3, generator=torch.Generator().manual_seed(2)), torch.arange(count) % 4
    pool, shards = Pool(x, y), Shards.of([list(range(k, count, 3)) for k in range(3)])
    return accord.Federation(pool, shards, 3, 4, pool, pool, shards)


def test_engines_agree_on_stochastic_depth() -> None:
    net, data = build("resnet56(width=2, drop=0.5)", 4, (3, 8, 8)), images()
    algorithm = accord.fedavg() + accord.sgd(batch=4, epochs=1)
    job = Train(algorithm, Flat(net).w.clone(), Flat(net).b.clone())
    with Process(net, data) as one:
        wanted = dict(one.map(job, [0, 1, 2]))
    assert not wanted[0].w.equal(job.w)
    with Processes(net, data, workers=2) as two:
        for client, reply in two.map(job, [2, 0, 1]):
            assert reply.w.equal(wanted[client].w)
            assert reply.b.equal(wanted[client].b)
    with Threads(net, data, workers=2) as three, pytest.raises(ValueError, match="draws random numbers of its own"):
        list(three.map(job, [0, 1, 2]))


# --- under every algorithm -------------------------------------------------------------------------------------------------------------

NAMES = [e.name for e in entries("algorithm") if e.make.__module__ == "accord.algorithms"]
TINY = {
    "bottleneck": lambda: ResNet(Bottleneck, (1, 1, 1), 4, 3, 4),
    "stochastic depth": lambda: ResNet(Basic, (1, 1, 1), 4, 3, 4, survivals=(1.0, 0.7, 0.4), projection=True),
    "no norm": lambda: ResNet(Basic, (1, 1), 4, 3, 4, norm="none", bias=False),
    "group": lambda: ResNet(Basic, (1, 1), 4, 3, 4, norm="group"),
}


@pytest.mark.parametrize("model", list(TINY))
@pytest.mark.parametrize("name", sorted(set(NAMES) - {"fedsr"}))  # fedsr needs a stochastic model and says so
def test_trains_under_every_algorithm(name: str, model: str) -> None:
    torch.manual_seed(0)
    net, data = TINY[model](), images()
    algorithm = read(name) + accord.sgd(lr=0.01, batch=4, epochs=1)
    deal = [tuple(data.train.gather(torch.arange(k, k + 6))) for k in (0, 6)]
    w = Flat(net).w.clone()
    reply = accord.local_round(algorithm, net, deal, data=tuple(data.train.gather(torch.arange(12))))
    assert reply.steps == 2
    assert torch.isfinite(reply.w).all()
    new, _ = accord.server_step(algorithm, w, [reply], state=first_state(algorithm, w), population=2)
    assert torch.isfinite(new).all()
