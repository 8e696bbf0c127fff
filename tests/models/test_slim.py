"""A module at a reduced width: the authors' numbers, a narrow network built by hand, and what must not be touched."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import accord
from accord.models import Basic, Bottleneck, ResNet, slimmed
from accord.models.slim import channels, divisible
from test_golden import case
from tinyslim import inner, tiny_slim


def small(block: type = Bottleneck, **options: object) -> ResNet:
    torch.manual_seed(0)
    return ResNet(block, (1, 2, 1), 16, 3, 10, **options).double()  # type: ignore[arg-type]


X = torch.randn(6, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_divisible(golden: Path) -> None:
    known = case(golden, "fedalign_make_divisible").arrays
    table = [[divisible(c * w) for w in known["widths"].tolist()] for c in known["channels"].tolist()]
    assert table == known["expected_table"].tolist()
    assert [divisible(v) for v in known["v"].tolist()] == known["expected_v"].tolist()
    assert [divisible(v, 4) for v in known["v"].tolist()] == known["expected_v_div4"].tolist()


def test_the_authors_logits_and_statistics(golden: Path) -> None:
    known = case(golden, "fedalign_slim_forward")
    limits = {k: known.about["tolerance"][k] for k in ("rtol", "atol")}
    for k, width in enumerate(known.hyper["widths"]):
        module = tiny_slim(known).train()
        with slimmed(module, width):
            torch.testing.assert_close(module(known.arrays["x"]).logits, known.arrays[f"expected_logits/train/{k}"], **limits)
        after = known.group(f"message/after_forward_w{width}/")
        for name, wanted in after.items():
            torch.testing.assert_close(module.state_dict()[inner(name)], wanted, **limits)
        assert after or width != 0.4
    module = tiny_slim(known).eval()
    with slimmed(module, 1.0):
        torch.testing.assert_close(module(known.arrays["x"]).logits, known.arrays["expected_logits/eval/5"], **limits)


@pytest.mark.parametrize("width", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("block", [Basic, Bottleneck])
@pytest.mark.parametrize("norm", ["batch", "batch_stats", "none"])
def test_is_a_narrow_network_with_copied_slices(norm: str, block: type, width: float) -> None:
    """A network built with fewer channels, its tensors the leading blocks of the wide one's."""
    wide = small(block, norm=norm, projection=True)
    narrow = small(block, norm=norm, projection=True)
    for name, module in narrow.named_modules():
        if isinstance(module, nn.Conv2d):
            module.out_channels = channels(module.out_channels, width)
            module.in_channels = module.in_channels if name == "conv1" else channels(module.in_channels, width)
            module.weight = nn.Parameter(module.weight[: module.out_channels, : module.in_channels].clone())
        if isinstance(module, nn.BatchNorm2d):
            replaced = nn.BatchNorm2d(channels(module.num_features, width)).double()
            owner, _, leaf = name.rpartition(".")
            setattr(narrow.get_submodule(owner), leaf, replaced)
        if isinstance(module, nn.Linear):
            out = module.out_features if name == "fc" else channels(module.out_features, width)
            module.bias = nn.Parameter(module.bias[:out].clone())
            module.weight = nn.Parameter(module.weight[:out, : channels(module.in_features, width)].clone())
    with slimmed(wide, width):
        found = wide(X)
    wanted = narrow(X)
    torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.features, wanted.features, rtol=1e-10, atol=1e-10)


def test_gradients_arrive_in_the_leading_blocks_only() -> None:
    net = small()
    with slimmed(net, 0.5):
        net(X).logits.square().mean().backward()
    for name, p in net.named_parameters():
        n = len(p) if name.startswith("fc.") else channels(len(p), 0.5)
        assert p.grad is not None
        assert p.grad[:n].abs().max() > 0, name
        assert not p.grad[n:].any(), name
        if p.dim() > 1 and name != "conv1.weight":
            assert not p.grad[:, channels(p.shape[1], 0.5) :].any(), name


@pytest.mark.parametrize("train", [True, False])
def test_touches_nothing(train: bool) -> None:
    """Neither running statistics, nor the answers afterwards, nor the module's text and dictionary; also when the block fails."""
    net, twin = small().train(train), small().train(train)
    before, text, names = {n: t.clone() for n, t in net.state_dict().items()}, repr(net), list(net.state_dict())
    with slimmed(net, 0.95):
        net(X)
    with pytest.raises(RuntimeError, match="conv2d"), slimmed(net, 0.95):
        net(X[0, 0])
    assert all(torch.equal(t, before[n]) for n, t in net.state_dict().items())
    assert (repr(net), list(net.state_dict())) == (text, names)
    assert not any("forward" in module.__dict__ or module._forward_pre_hooks for module in net.modules())
    assert net(X).logits.equal(twin(X).logits)


def test_a_width_in_evaluation_uses_the_batch() -> None:
    net = small()
    with slimmed(net, 0.5):
        a, b = net.train()(X).logits, net.eval()(X).logits
    assert a.equal(b)


def test_blocks_within_blocks() -> None:
    net = small()
    with slimmed(net, 0.5):
        half = net(X).logits
        with slimmed(net, 0.25):
            quarter = net(X).logits
        assert net(X).logits.equal(half)
    with slimmed(net, 0.25):
        assert net(X).logits.equal(quarter)
    assert not half.equal(quarter)


def test_channels_last_changes_no_number() -> None:
    net = small()
    with slimmed(net, 0.5):
        plain = net(X).logits
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        torch.testing.assert_close(net(X.to(memory_format=torch.channels_last)).logits, plain, rtol=1e-9, atol=1e-9)


def test_a_stage_by_itself_reads_channels_that_were_cut_before() -> None:
    net = small()
    inputs = torch.randn(2, 128, 8, 8, dtype=torch.float64)
    with slimmed(net.layer3, 0.25, stage=True):
        assert net.layer3(inputs[:, :32]).shape == (2, 64, 4, 4)


def test_group_norm_keeps_its_number_of_groups_where_that_divides() -> None:
    net = small(norm="group")
    with slimmed(net, 0.25):
        assert torch.isfinite(net(X).logits).all()
    layer = nn.Sequential(nn.Conv2d(3, 32, 1), nn.GroupNorm(3, 30), nn.Conv2d(32, 4, 1))
    layer[0] = nn.Conv2d(3, 30, 1)
    layer[2] = nn.Conv2d(30, 4, 1)
    x = torch.randn(2, 3, 5, 5)
    with slimmed(layer, 0.25):  # 8 channels, of which no three equal groups can be made
        z = F.conv2d(x, layer[0].weight[:8], layer[0].bias[:8])
        wanted = F.conv2d(F.group_norm(z, 1), layer[2].weight[:, :8], layer[2].bias)
        assert torch.allclose(layer(x), wanted, atol=1e-6)


@pytest.mark.parametrize(
    "text",
    [
        "cnn",
        "cnn(norm=batch)",
        "lenet5(bias=True)",
        "lenet5(norm=group)",
        "mlp((64, 32))",
        "vgg11(width=8)",
        "vgg11(width=8, norm=batch, projection=True)",
    ],
)
def test_other_models_run_at_a_width(text: str) -> None:
    net = accord.read(text, "model").build((3, 32, 32), 7)
    x = torch.randn(3, 3, 32, 32)
    with slimmed(net, 0.5):
        out = net(x)
    assert out.logits.shape == (3, 7)
    assert out.features.shape[1] < net(x).features.shape[1] or "lenet5" in text  # 84 * 0.5 is rounded to 40 of 84
    assert not out.logits.equal(net(x).logits)


def test_the_channels_of_a_flattened_image_are_its_leading_features() -> None:
    torch.manual_seed(0)
    net = accord.read("cnn", "model").build((3, 32, 32), 10)
    x = torch.randn(2, 3, 32, 32)
    z = F.relu(F.max_pool2d(F.conv2d(x, net.conv1.weight[:16], net.conv1.bias[:16], padding=2), 2))
    z = F.relu(F.max_pool2d(F.conv2d(z, net.conv2.weight[:32, :16], net.conv2.bias[:32], padding=2), 2))
    z = F.relu(F.linear(z.flatten(1), net.hidden.weight[:256, : 32 * 64], net.hidden.bias[:256]))
    with slimmed(net, 0.5):
        assert torch.allclose(net(x).logits, F.linear(z, net.head.weight[:, :256], net.head.bias), atol=1e-6)


class Weird(nn.Module):
    """Holds a layer of a given kind."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.odd, self.head = layer, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.odd(x).flatten(1))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Conv2d(4, 4, 1, groups=2), "odd of Weird is a Conv2d with groups=2"),
        (nn.PReLU(), "odd of Weird is a PReLU, which cannot be run at a reduced width: the weights must lie in"),
        (nn.LayerNorm((2, 4)), r"odd of Weird is a LayerNorm over \(2, 4\), which cannot"),
        (nn.ParameterList([torch.zeros(2)]), "odd of Weird is a ParameterList"),
    ],
)
def test_what_cannot_be_narrowed_is_named(layer: nn.Module, words: str) -> None:
    with pytest.raises(ValueError, match=words), slimmed(Weird(layer), 0.5):
        pass


def test_images_of_another_size_are_refused_where_they_would_be_read_wrongly() -> None:
    net = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.Flatten(), nn.Linear(16 * 64, 4))
    with slimmed(net, 0.5):
        assert net(torch.zeros(1, 3, 8, 8)).shape == (1, 4)
        with pytest.raises(ValueError, match=r"given 288 features at width 0\.5, where 512 belong: it flattens images"):
            net(torch.zeros(1, 3, 6, 6))
        assert net(torch.zeros(1, 3, 8, 8)).shape == (1, 4)
