"""Small models: parameter counts, features, heads, shapes that they refuse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from accord.flat import Output, head_of
from accord.models import Cnn, LeNet5, Mlp, Model
from accord.recipe import names, read


def count(model: Model, shape: tuple[int, ...], classes: int) -> int:
    with torch.device("meta"):
        return sum(p.numel() for p in model.build(shape, classes).parameters())


@pytest.mark.parametrize(
    ("text", "shape", "classes", "parameters"),
    [
        ("cnn", (3, 32, 32), 10, 2_156_490),
        ("cnn", (1, 28, 28), 10, 1_664_970),
        ("cnn", (3, 28, 28), 10, 1_664_970),
        ("cnn(padding=0, hidden=2048, rgb=False)", (1, 28, 28), 62, 2_278_334),
        ("femnist_cnn", (1, 28, 28), 62, 2_278_334),
        ("cnn(bias=False, projection=True)", (3, 32, 32), 10, 2_156_490 - (32 + 64 + 512 + 10) + 512 * (512 + 256) - 10 * 256),
        ("vgg11", (3, 32, 32), 10, 9_750_922),
        ("vgg11", (1, 28, 28), 10, 9_750_922),
        ("vgg11", (3, 64, 64), 10, 9_750_922 + 3 * 512 * 512),
        ("vgg11(norm=batch, bias=False)", (3, 32, 32), 10, 9_750_922 - 2752 - 1024 - 10 + 2 * 2752),
        ("vgg11(projection=True)", (3, 32, 32), 10, 9_750_922 + 512 * 513 + 512 * 256 + 256 - 2560),
        ("lenet5", (3, 32, 32), 10, 61_770),
        ("lenet5", (3, 32, 32), 100, 69_330),
        ("lenet5(bias=True)", (3, 32, 32), 10, 62_006),
        ("mlp", (64,), 10, 15_010),
        ("mlp(hidden=())", (60,), 10, 610),
        ("mlp((128, 32))", (1, 8, 8), 10, 64 * 128 + 128 + 128 * 32 + 32 + 330),
    ],
)
def test_parameter_counts(text: str, shape: tuple[int, ...], classes: int, parameters: int):
    assert count(read(text, "model"), shape, classes) == parameters


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (Cnn(projection=True), (3, 32, 32)),
        (LeNet5(projection=True), (3, 32, 32)),
        (Mlp(projection=True), (9,)),
        (Cnn(), (3, 32, 32)),
        (Cnn(), (1, 28, 28)),
        (LeNet5(), (3, 32, 32)),
        (Mlp(), (64,)),
        (Mlp(()), (1, 8, 8)),
    ],
)
def test_the_head_reads_the_features_and_is_the_last_child(model: Model, shape: tuple[int, ...]):
    net = model.build(shape, 7)
    name, head = list(net.named_children())[-1]
    out = net(torch.rand(4, *shape))
    assert name == "head" == head_of(net)
    assert isinstance(out, Output)
    assert torch.equal(head(out.features), out.logits)
    assert out.logits.shape == (4, 7)


def test_pooling_before_relu_changes_no_number():
    torch.manual_seed(0)
    net = Cnn().build((3, 32, 32), 10)
    x = torch.randn(2, 3, 32, 32)
    y = nn.functional.max_pool2d(nn.functional.relu(net.conv1(x)), 2)
    y = nn.functional.max_pool2d(nn.functional.relu(net.conv2(y)), 2)
    y = net.head(nn.functional.relu(net.hidden(y.flatten(1))))
    assert torch.equal(net(x).logits, y)


@pytest.mark.parametrize("text", ["lenet5", "cnn", "vgg11(width=8)", "vgg11(width=4, norm=batch)"])
def test_memory_format_changes_no_number(text: str):
    net = read(text, "model").build((3, 32, 32), 10)
    x = torch.randn(4, 3, 32, 32)
    other = net(x.to(memory_format=torch.channels_last)).logits
    assert torch.allclose(net(x).logits, other, atol=1e-5)


def test_grey_images_are_read_as_three_equal_channels():
    net = Cnn().build((1, 28, 28), 10)
    grey = torch.rand(2, 1, 28, 28)
    x = nn.functional.relu(nn.functional.max_pool2d(net.conv1(grey.repeat(1, 3, 1, 1)), 2))
    x = nn.functional.relu(nn.functional.max_pool2d(net.conv2(x), 2))
    assert torch.allclose(net(grey).features, nn.functional.relu(net.hidden(x.flatten(1))), atol=1e-6)


def vgg(shape: tuple[int, ...]) -> nn.Module:
    torch.manual_seed(0)
    return read("vgg11(width=4)", "model").build(shape, 10)


def test_vgg_by_hand():
    """Convolutions and poolings in the published order, grey images as three equal channels, small ones enlarged pixel by pixel."""
    net, x = vgg((1, 28, 28)), torch.rand(2, 1, 28, 28)
    z = nn.functional.interpolate(x.repeat(1, 3, 1, 1), 32)
    convolutions = iter([m for m in net.modules() if isinstance(m, nn.Conv2d)])
    for layer in "CPCPCCPCCPCCP":
        z = nn.functional.max_pool2d(z, 2) if layer == "P" else nn.functional.relu(next(convolutions)(z))
    z = nn.functional.relu(net.fc2(nn.functional.relu(net.fc1(z.flatten(1)))))
    assert torch.equal(net(x).features, z)
    assert torch.equal(net(x).logits, net.classifier(z))
    assert head_of(net) == "classifier"


def test_vgg_begins_as_published():
    net = read("vgg11", "model").build((3, 32, 32), 10)
    last = net.stage5[4]
    assert float(last.weight.detach().std()) == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert not last.bias.detach().any()
    assert net.fc1.bias.detach().any()


def test_vgg_reads_images_of_any_size():
    net, x = vgg((3, 32, 32)).eval(), torch.rand(2, 3, 32, 32)
    assert torch.equal(net(x).logits, net(nn.functional.interpolate(x, 64)).logits)
    assert vgg((3, 64, 64))(x).logits.shape == (2, 10)


def test_torch_seeds_the_weights():
    def weights(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return nn.utils.parameters_to_vector(LeNet5().build((3, 32, 32), 10).parameters())

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_he_initialisation():
    torch.manual_seed(0)
    net = LeNet5(bias=True, init="he").build((3, 32, 32), 10)
    assert float(net.fc1.weight.detach().std()) == pytest.approx((2 / 400) ** 0.5, rel=0.02)
    assert float(net.fc1.bias.detach().abs().max()) == 0


@pytest.mark.parametrize("text", ["lenet5", "cnn"])
@pytest.mark.parametrize("shape", [(64,), (3, 2, 2), (8, 8)])
def test_a_shape_that_does_not_fit_is_named(text: str, shape: tuple[int, ...]):
    smallest = 16 if text == "lenet5" else 4
    with pytest.raises(ValueError, match=rf"{text} reads images of at least {smallest}x{smallest} pixels.*{len(shape)}?"):
        read(text, "model").build(shape, 10)


def test_the_smallest_images_fit():
    for padding, side in ((0, 16), (1, 10), (2, 4), (3, 2)):
        assert Cnn(padding=padding).build((3, side, side), 10)(torch.rand(1, 3, side, side)).logits.shape == (1, 10)
    assert LeNet5().build((1, 16, 16), 10)(torch.rand(1, 1, 16, 16)).logits.shape == (1, 10)


def test_every_model_is_its_text():
    for name in ("cnn", "femnist_cnn", "lenet5", "mlp", "vgg11"):
        assert name in names("model")
        model = read(name, "model")
        assert read(repr(model), "model") == model
