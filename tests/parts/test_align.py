"""FedAlign: the authors' numbers, the singular value, where the gradient goes, what it costs, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from cases import case, close
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import accord
from accord.client import Client
from accord.flat import Flat
from accord.models import Bottleneck, ResNet, slimmed
from accord.models.slim import channels
from accord.parts.align import stretch, transmission
from small import batches, client_at
from tinyslim import check, tiny_slim, update

RULE = accord.sgd(lr=0.05, momentum=0.9, decay=0.01)
X = torch.randn(5, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 3, 1, 2, 3])


def small(**options: object) -> ResNet:
    torch.manual_seed(0)
    return ResNet(Bottleneck, (1, 1, 2), 8, 3, 4, **options).double()  # type: ignore[arg-type]


def at_start(algorithm: accord.Algorithm, module: nn.Module) -> Client:
    w = Flat(module).w.clone()
    return client_at(algorithm, module, w, w)


@pytest.mark.parametrize(
    ("name", "text"),
    [("fa_tinyslim_fedavg", "fedavg"), ("fedalign_tinyslim", "fedalign"), ("fedalign_tinyslim", "fedavg + align(eps=0)")],
)
def test_local_update(name: str, text: str, golden: Path) -> None:
    check(case(golden, name), text)


def test_the_authors_trace(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their singular values, their loss and the norm of their whole gradient, step by step."""
    known = case(golden, "fedalign_tinyslim")
    for step in range(len(known.hyper["batch_order"])):
        module, part = tiny_slim(known), accord.align(clip=None)
        if step:
            reply = update(known, "fedalign", step)
            flat = Flat(module)
            flat.load(reply.w, reply.b)
        client, seen = at_start(accord.fedavg() + part + known.rule(), module), []

        def spy(*given: object, seen: list[Tensor] = seen) -> Tensor:
            seen.append(stretch(*given))  # type: ignore[arg-type]
            return seen[-1]

        monkeypatch.setattr("accord.parts.align.stretch", spy)
        b = known.hyper["batch_order"][step]
        client.run([accord.Batch(known.arrays["x"][b], known.arrays["y"][b])])
        close(seen[0], known.arrays["trace/sigma_student"][step], 1e-7)
        close(seen[1], known.arrays["trace/sigma_teacher"][step], 1e-7)
        close(F.mse_loss(seen[0], seen[1]), known.arrays["trace/lip_raw"][step], 1e-7)
        close(client.g.norm(), known.arrays["trace/total_grad_norm_before_clip"][step], 1e-7)


@pytest.mark.parametrize("name", ["pooled", "equal", "slow"])
def test_pure_functions(name: str, golden: Path) -> None:
    known = case(golden, "fedalign_pure_functions")
    limits = {k: known.about["tolerance"][k] for k in ("rtol", "atol")}
    of = known.group(f"{name}/")
    a, b = of["fm1"], of["fm2"].clone().requires_grad_()
    left, right = transmission(a, b)
    matrix = left @ right
    torch.testing.assert_close(matrix, of["expected_TM"], **limits)
    torch.testing.assert_close(matrix @ matrix.mT, of["expected_K"], **limits)
    found = stretch(a, b)
    torch.testing.assert_close(found, of["expected_sigma"].flatten(), **limits)
    loss = F.mse_loss(found, of["target"].flatten())
    torch.testing.assert_close(loss, of["expected_loss"], **limits)
    loss.backward()
    torch.testing.assert_close(b.grad, of["expected_grad_fm2"], **limits)


@pytest.mark.parametrize(("places", "first", "second"), [(4, 6, 5), (16, 6, 9), (1, 7, 3)])
def test_many_iterations_give_the_largest_singular_value(places: int, first: int, second: int) -> None:
    """Both ways of going about it: over places where they are fewer than channels, over channels else; and its gradient."""
    rng = torch.Generator().manual_seed(3)
    a, b = (torch.rand(4, c, places, dtype=torch.float64, generator=rng).requires_grad_() for c in (first, second))
    found = stretch(a, b, 300)
    wanted = torch.linalg.svdvals(a @ b.mT / places)[:, 0]
    close(found, wanted, 1e-10)
    for one, two in zip(torch.autograd.grad(found.sum(), (a, b)), torch.autograd.grad(wanted.sum(), (a, b)), strict=True):
        close(one, two, 1e-8)


@pytest.mark.parametrize("places", [3, 9])
def test_ten_iterations_are_written_out(places: int) -> None:
    a, b = torch.randn(2, 5, places, dtype=torch.float64), torch.randn(2, 7, places, dtype=torch.float64)
    x = a @ b.mT / places
    v = torch.ones(2, 5, 1, dtype=torch.float64)
    for _ in range(10):
        m = x @ x.mT @ v
        norm = m.norm(dim=1, keepdim=True)
        v = m / norm
    close(stretch(a, b), norm.sqrt().flatten(), 1e-10)


def test_only_the_leading_channels_of_the_last_stage_move() -> None:
    net, part = small(), accord.align(width=0.5, clip=None)
    client = at_start(accord.fedavg() + part + RULE, net)
    client.pull(part, accord.Batch(X, Y), "all")
    moved = {n: t for n, t in client.layout.named(client.g).items() if t.any()}
    assert set(moved) == {n for n in client.layout.named(client.g) if n.startswith("layer3.")}
    for n, t in moved.items():
        assert not t[channels(len(t), 0.5) :].any(), n
        if t.dim() > 1:
            assert not t[:, channels(t.shape[1], 0.5) :].any(), n


def test_the_gradient_written_out() -> None:
    """CE and the scaled loss by hand, summed, then cut to a norm that is exceeded."""
    net, other = small(), small()
    client = at_start(accord.fedavg() + accord.align(width=0.5, clip=0.3) + RULE, net)
    accord.align(width=0.5, clip=0.3).gradient(client, accord.Batch(X, Y), lambda batch: client.descend(client.algorithm.parts, batch))
    seen: list[tuple[Tensor, Tensor]] = []
    hook = other.layer3.register_forward_hook(lambda m, given, out: seen.append((given[0].detach(), out.detach())))
    task = F.cross_entropy(other(X).logits, Y)
    task.backward()
    hook.remove()
    before, after = seen[0]
    with slimmed(other.layer3, 0.5, stage=True):
        narrow = other.layer3(before[:, : channels(before.shape[1], 0.5)])
    gap = F.mse_loss(stretch(before[:, : channels(before.shape[1], 0.5)], narrow), stretch(before, after))
    (0.45 * (task.item() / gap.item()) * gap).backward()
    norm = nn.utils.clip_grad_norm_(other.parameters(), 0.3)
    assert norm > 0.3
    for name, p in other.named_parameters():
        close(client.layout.named(client.g)[name], p.grad, 1e-9)


def test_one_more_pass_of_the_last_stage_and_no_statistics() -> None:
    plain, net = small(), small()
    deal = [(X, Y)]
    one, two = accord.local_round(accord.fedavg() + RULE, plain, deal), accord.local_round(accord.fedalign() + RULE, net, deal)
    assert one.b.equal(two.b)
    assert not one.w.equal(two.w)
    client, calls = at_start(accord.fedalign() + RULE, net), []
    for name in ("conv1", *net.stages, "fc"):
        net.get_submodule(name).register_forward_hook(lambda *_, name=name: calls.append(name))
    client.run([accord.Batch(X, Y)])
    assert calls == ["conv1", *net.stages, "fc", "layer3"]
    assert len(net.layer3._forward_hooks) == 1  # the test's own: the part's is gone


@pytest.mark.parametrize(
    "text", ["fedalign + perturb(on=head, rho=0.5)", "fedavg + perturb(on=head, rho=0.5) + align", "fedsol + align", "fedalign + fedsol"]
)
def test_a_pass_through_the_body_that_is_kept_for_the_head_changes_nothing(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = accord.local_round(accord.read(text) + RULE, small(), [(X, Y), (X, Y)])
    monkeypatch.setattr(Client, "forward_head", Client.forward)
    plain = accord.local_round(accord.read(text) + RULE, small(), [(X, Y), (X, Y)])
    torch.testing.assert_close(found.w, plain.w, rtol=1e-9, atol=1e-11)


def test_dead_features_make_no_nan() -> None:
    net = small()
    with torch.no_grad():
        for block in net.layer3:
            block.bn3.weight.zero_()
            block.bn3.bias.fill_(-1.0)
            if len(block.downsample):
                block.downsample[1].weight.zero_()
                block.downsample[1].bias.zero_()
    found = accord.local_round(accord.fedalign() + RULE, net, [(X, Y)])
    assert torch.isfinite(found.w).all()
    assert math.isfinite(found.loss)
    assert math.isnan(accord.local_round(accord.fedavg() + accord.align(eps=0) + RULE, net, [(X, Y)]).loss)


def test_channels_last_changes_no_number() -> None:
    plain = accord.local_round(accord.fedalign() + RULE, small(), [(X, Y)])
    x = X.to(memory_format=torch.channels_last)
    torch.testing.assert_close(accord.local_round(accord.fedalign() + RULE, small(), [(x, Y)]).w, plain.w, rtol=1e-8, atol=1e-10)


def test_without_strength_it_is_fedavg_bit_for_bit() -> None:
    found, plain = (accord.local_round(accord.read(t) + RULE, small(), [(X, Y)]) for t in ("fedalign(mu=0)", "fedavg"))
    assert found.w.equal(plain.w)
    assert found.b.equal(plain.b)


class Bare(nn.Module):
    """Says nothing about itself."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(50, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))


class Wrong(Bare):
    stages = ("one", "three")


def test_a_model_without_stages_is_refused_before_a_step() -> None:
    deal = batches(1, dtype=torch.float32)
    words = r"align runs the last stage of the model by itself, and Bare does not say .*stages = \(.*its children are 'one', 'two'\)"
    with pytest.raises(ValueError, match=words):
        accord.local_round(accord.fedalign(), Bare(), deal)
    with pytest.raises(ValueError, match="Wrong names 'three' as its last stage and has no such child"):
        accord.local_round(accord.fedalign(), Wrong(), deal)
    assert accord.local_round(accord.fedalign(mu=0), Bare(), deal).steps == 1


def flops(run: Callable[[], object]) -> float:
    """Multiply-adds, in millions a sample of four."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        run()
    return counter.get_total_flops() / 2 / 4e6


def test_what_it_costs() -> None:
    """FedAlign's Table 5: 87.3 million multiply-adds for a sample, 89.1 with FedAlign, both given to 0.05.

    What they count is the network: the narrow stage is 1.8 +- 0.1 of it. The norms, which they leave out, are kept below as much again.
    """
    net, x = accord.read("resnet56", "model").build((3, 32, 32), 100), torch.randn(4, 3, 32, 32)
    whole = flops(lambda: net(x))
    assert whole == pytest.approx(87.3, abs=0.1)
    before, after = torch.randn(4, 128, 16, 16), torch.randn(4, 256, 8, 8)
    with slimmed(net.layer3, 0.25, stage=True):
        stage = flops(lambda: net.layer3(before[:, :32]))
    assert stage == pytest.approx(1.8, abs=0.1)
    norms = flops(lambda: (stretch(before, after), stretch(before[:, :32], after[:, :64])))
    client = at_start(accord.fedalign() + RULE, net)
    client.backward = lambda loss, on="all": None  # type: ignore[method-assign]
    client.begin()
    with FlopCounterMode(display=False) as counter:
        client.run([accord.Batch(x, torch.zeros(4, dtype=torch.long))])
    assert counter.get_total_flops() / 8e6 == pytest.approx(whole + stage + norms, rel=1e-6)
    assert (whole + stage) / whole - 1 == pytest.approx(0.021, abs=0.001)
    assert norms < stage + 0.1
