"""SL-ViT: parameter counts, shifted patches and attention written out by hand, stochastic depth, and reduced widths."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from accord.flat import Flat, head_of
from accord.models import ViT, slimmed, survival
from accord.models.attention import Block, LocalAttention
from accord.models.slim import channels
from accord.models.vit import ShiftedPatches
from accord.recipe import read

TINY = "vit_small(width=16, depth=3, heads=2, dim_head=8, hidden=24)"


def build(text: str, shape: tuple[int, ...] = (3, 16, 16), classes: int = 5) -> ViT:
    torch.manual_seed(0)
    return read(text, "model").build(shape, classes)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("text", "shape", "classes", "parameters"),
    [
        ("vit_small", (3, 32, 32), 10, 6_176_275),
        ("vit_small", (3, 28, 28), 9, 6_132_432),
        ("vit_small", (1, 28, 28), 9, 6_132_432),
        ("sl_vit", (3, 32, 32), 10, 2_729_878),
        ("vit_small(patch=4, dim_head=16, hidden=384, temperature=heads)", (3, 32, 32), 10, 2_729_878),
        ("vit_small(temperature=heads)", (3, 32, 32), 10, 6_176_275 + 9 * 11),
        ("vit_small(bias=False)", (3, 32, 32), 10, 6_176_275 - 192 - 9 * 3 * 192 - 10),
        ("vit_small(projection=True)", (3, 32, 32), 10, 6_176_275 + 192 * 193 + 193 * 256 + 2 * (256 - 192) + 10 * (256 - 192)),
    ],
)
def test_parameter_counts(text: str, shape: tuple[int, ...], classes: int, parameters: int) -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in build(text, shape, classes).parameters()) == parameters


@pytest.mark.parametrize("shifts", ["pixel", "diagonal"])
def test_patches_pixel_by_pixel(shifts: str) -> None:
    """Each number of a patch is looked up in the image at the place that the shift points to, zero outside."""
    tokens, x, p = ShiftedPatches(2, 4, 6, shifts), torch.randn(1, 2, 8, 12), 4  # type: ignore[arg-type]
    with torch.no_grad():
        tokens.linear.weight.copy_(torch.randn_like(tokens.linear.weight))
    from_ = [(0, 0)] + ([(0, -1), (0, 1), (-1, 0), (1, 0)] if shifts == "pixel" else [(-2, -2), (-2, 2), (2, -2), (2, 2)])
    rows = []
    for top in (0, 4):
        for left in (0, 4, 8):
            values = []
            for i in range(p):
                for j in range(p):
                    for down, right in from_:
                        a, b = top + i + down, left + j + right
                        values += [float(x[0, c, a, b]) if 0 <= a < 8 and 0 <= b < 12 else 0.0 for c in range(2)]
            rows.append(values)
    patches = torch.tensor(rows)
    patches = (patches - patches.mean(1, keepdim=True)) / (patches.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
    wanted = patches @ tokens.linear.weight.T + tokens.linear.bias
    torch.testing.assert_close(tokens(x)[0], wanted, rtol=1e-4, atol=1e-5)


def attended(layer: LocalAttention, x: Tensor, heads: int) -> Tensor:
    """Attention of one sample, one pair of tokens at a time."""
    d, places = layer.dim_head, len(x)
    q, k, v = layer.qkv.weight.view(3, heads, d, -1).matmul(x.T).mT
    answer = torch.zeros(places, heads * d, dtype=x.dtype)
    for h in range(heads):
        t = layer.temperature.exp() if layer.temperature.dim() == 0 else layer.temperature[h].item()
        for i in range(places):
            scores = {j: float(t * q[h, i] @ k[h, j]) for j in range(places) if j != i}
            total = sum(math.exp(s) for s in scores.values())
            answer[i, h * d : (h + 1) * d] = sum(math.exp(s) / total * v[h, j] for j, s in scores.items())
    return layer.out(answer)  # type: ignore[no-any-return]


@pytest.mark.parametrize("temperature", ["one", "heads"])
def test_attention_by_hand(temperature: str) -> None:
    layer, x = LocalAttention(6, 3, 4, temperature).double(), torch.randn(2, 5, 6, dtype=torch.float64)  # type: ignore[arg-type]
    with torch.no_grad():
        layer.temperature.add_(torch.randn_like(layer.temperature))
        for k in range(2):
            torch.testing.assert_close(layer(x)[k], attended(layer, x[k], 3), rtol=1e-9, atol=1e-12)


def test_the_temperature_begins_as_in_ordinary_attention() -> None:
    assert LocalAttention(8, 2, 16, "one").temperature.exp().item() == pytest.approx(0.25)
    assert LocalAttention(8, 2, 16, "heads").temperature.flatten().tolist() == [0.25, 0.25]


def test_the_whole_network_is_its_pieces() -> None:
    net, x = build(TINY, (1, 16, 16)), torch.randn(2, 1, 16, 16)
    z = net.tokens(x.repeat(1, 3, 1, 1))
    z = torch.cat([net.first.expand(2, 1, 16), z], 1) + net.position
    for block in (m for m in net.modules() if isinstance(m, Block)):
        z = z + block.attention(block.norm1(z))
        z = z + block.down(F.gelu(block.up(block.norm2(z))))
    out = net(x)
    torch.testing.assert_close(out.features, z[:, 0])
    assert net.head(out.features).equal(out.logits)
    assert head_of(net) == "head"
    assert net.stages == ("stage1", "stage2", "stage3")


def test_stages_share_the_blocks() -> None:
    with torch.device("meta"):
        assert [len(build("vit_small").get_submodule(s).blocks) for s in ("stage1", "stage2", "stage3")] == [3, 3, 3]  # type: ignore[arg-type]
        assert [len(build("vit_small(depth=5)").get_submodule(s).blocks) for s in ("stage1", "stage2", "stage3")] == [1, 2, 2]  # type: ignore[arg-type]
        assert build("vit_small(depth=1)").stages == ("stage1",)


def test_the_head_is_the_norm_and_the_layer_behind_it() -> None:
    flat = Flat(build(TINY))
    (span,) = flat.layout.spans("head")
    assert span.stop - span.start == 2 * 16 + 16 * 5 + 5


def test_stochastic_depth_leaves_out_branches_of_samples() -> None:
    assert survival(9, 0.9, "even") == (0.9,) * 9
    net, plain = build(TINY), build(TINY)
    for block in (m for m in net.modules() if isinstance(m, Block)):
        block.survival = 0.5
    x = torch.randn(6, 3, 16, 16)
    assert net.eval()(x).logits.equal(plain(x).logits)
    block, z = next(m for m in net.train().modules() if isinstance(m, Block)), torch.ones(4000, 2, 3)
    kept = block.kept(z)
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert (kept == kept[:, :1, :1]).all()
    assert float(kept.mean()) == pytest.approx(1.0, abs=0.06)


def test_xavier() -> None:
    net = build("sl_vit", (3, 32, 32), 10)
    attention = net.stage1.blocks[0].attention
    assert float(attention.qkv.weight.detach().std()) == pytest.approx((2 / (192 + 576)) ** 0.5, rel=0.02)
    assert not attention.out.bias.detach().any()
    assert [b.survival for b in net.modules() if isinstance(b, Block)] == [0.9] * 9


@pytest.mark.parametrize("width", [0.25, 0.5, 0.8])
@pytest.mark.parametrize("temperature", ["one", "heads"])
def test_a_reduced_width_is_a_narrow_network_with_copied_slices(width: float, temperature: str) -> None:
    sizes = {"width": 32, "dim_head": 16, "hidden": 48}
    text = "vit_small(width={}, depth=2, heads={}, dim_head={}, hidden={}, temperature=" + temperature + ", projection=True)"
    wide = build(text.format(sizes["width"], 4, sizes["dim_head"], sizes["hidden"])).double()
    n, inner, hidden = channels(32, width), channels(64, width), channels(48, width)
    narrow = build(text.format(n, 1, inner, hidden)).double()
    for name, p in narrow.named_parameters():
        source = dict(wide.named_parameters())[name].detach()
        if name.endswith("qkv.weight"):
            source = torch.cat([part[:inner] for part in source.chunk(3)])
        if name.startswith(("project.2.", "head.0.")):
            source = source[: channels(256, width)]
        elif name.endswith("temperature"):
            p.data = source.clone()
            continue
        shape = [channels(256, width) if s == 256 else s for s in p.shape]
        p.data = source[tuple(slice(0, s) for s in shape)].clone()
    narrow.head[0].normalized_shape = (channels(256, width),)
    for narrowed, original in zip(
        [m for m in narrow.modules() if isinstance(m, LocalAttention)],
        [m for m in wide.modules() if isinstance(m, LocalAttention)],
        strict=True,
    ):
        narrowed.forward = lambda x, a=narrowed, o=original: by_heads(a, o.dim_head, x)  # type: ignore[method-assign]
    x = torch.randn(3, 3, 16, 16, dtype=torch.float64)
    with slimmed(wide, width):
        found = wide(x)
    wanted = narrow(x)
    torch.testing.assert_close(found.logits, wanted.logits, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(found.features, wanted.features, rtol=1e-10, atol=1e-10)


def by_heads(layer: LocalAttention, d: int, x: Tensor) -> Tensor:
    """Attention whose dimensions are cut into heads of `d`, the last one perhaps smaller."""
    q, k, v = layer.qkv(x).chunk(3, dim=-1)
    answers = []
    for h, (a, b, c) in enumerate(zip(q.split(d, -1), k.split(d, -1), v.split(d, -1), strict=True)):
        t = layer.temperature.exp() if layer.temperature.dim() == 0 else layer.temperature[h]
        dots = (a @ b.mT * t).masked_fill(torch.eye(x.shape[1], dtype=torch.bool), -math.inf)
        answers.append(dots.softmax(-1) @ c)
    return layer.out(torch.cat(answers, -1))  # type: ignore[no-any-return]


def test_one_stage_at_a_reduced_width() -> None:
    net, x = build(TINY), torch.randn(2, 8, 7)
    with slimmed(net.stage3, 0.5, stage=True):
        assert net.stage3(x).shape == (2, 8, 7)


@pytest.mark.parametrize(
    ("text", "shape", "words"),
    [
        ("vit_small", (64,), "vit_small reads images of at least 4x4 pixels"),
        ("vit_small", (3, 30, 30), "patches of 7x7 pixels, a quarter of the side, and these have 30x30"),
        ("sl_vit", (3, 30, 30), "patches of 4x4 pixels and these have 30x30: write patch= a divisor of both sides"),
    ],
)
def test_images_that_do_not_fit_are_named(text: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(text, shape)


def test_its_text_is_read_back() -> None:
    for text in ("vit_small", "sl_vit(drop=1)"):
        assert read(repr(read(text, "model")), "model") == read(text, "model")


def test_all_weights_are_trained() -> None:
    net = build(TINY)
    net(torch.randn(3, 3, 16, 16)).logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in net.parameters())
