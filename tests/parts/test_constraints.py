"""FedCONST in all its published and programmed forms, and weights that are held."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import case, close, compare, local
from torch import Tensor

import accord
from small import batches, net
from test_golden import TinyNet


def test_the_programs_linear_form(golden: Path) -> None:
    """The displacement is constrained after each step of the optimiser; rows are not centred, so it is not Algorithm 1."""
    local(golden, "fedconst-fedavg-linear", "fedavg + constrain(apply=displacement)")
    with pytest.raises(AssertionError):
        local(golden, "fedconst-fedavg-linear", "fedconst")


def test_centred_rows_make_displacement_and_gradient_one(golden: Path) -> None:
    local(golden, "fedconst-alg1-wd-inside-centred", "fedavg + constrain(apply=displacement)")


def test_gradient_centralisation(golden: Path) -> None:
    local(golden, "gc_sgd", "fedavg + constrain(orthogonal=False)")


class To(accord.Part):
    """A part whose gradient leads a step of length one to given weights."""

    __dataclass_fields__: Mapping[str, Any] = {}

    def __init__(self, target: Tensor) -> None:
        self.target = target

    def gradient(self, client: accord.Client, batch: accord.Batch, inner: accord.Gradient) -> None:
        client.g.copy_(client.w).sub_(self.target)


def corrected(start: Tensor, target: Tensor, text: str) -> Tensor:
    """What the constraint makes of one step from `start` to `target`."""
    module = TinyNet().double()
    algorithm = accord.Algorithm((To(target), accord.read(text, "part"))) + accord.sgd(lr=1, momentum=0)
    return accord.local_round(algorithm, module, [(torch.zeros(1, 3, 8, 8).double(), torch.zeros(1).long())], w0=start).w


@pytest.mark.parametrize(
    ("prefix", "arguments"),
    [
        ("expected/", "apply=displacement"),
        ("expected_center/", "apply=displacement, orthogonal=False"),
        ("expected_orth/", "apply=displacement, center=False"),
        ("expected_none/", "apply=displacement, center=False, orthogonal=False"),
    ],
)
def test_strict(prefix: str, arguments: str, golden: Path) -> None:
    known = case(golden, "fedconst-fn-strict")
    layout = accord.Flat(TinyNet()).layout
    start, target = (layout.pack(known.group(p)) for p in ("original/", "current/"))
    compare(known, layout, corrected(start, target, f"constrain({arguments})"), prefix)


@pytest.mark.parametrize(
    ("prefix", "arguments"), [("expected/", ""), ("expected_center/", "orthogonal=False, "), ("expected_sphere/", "center=False, ")]
)
def test_sphere(prefix: str, arguments: str, golden: Path) -> None:
    known = case(golden, "fedconst-fn-sphere")
    layout = accord.Flat(TinyNet()).layout
    target = layout.pack(known.group("current/"))
    compare(known, layout, corrected(torch.ones_like(target), target, f"constrain({arguments}mode=sphere)"), prefix)


def layers(vector: Tensor, unit: str) -> list[Tensor]:
    layout = accord.Flat(TinyNet()).layout
    if unit == "model":
        return [vector]
    if unit == "tensor":
        return [t.flatten() for t in layout.views(vector)]
    return [row for t in layout.views(vector) if t.dim() > 1 for row in t.flatten(1)]


@pytest.mark.parametrize("apply", ["gradient", "displacement"])
@pytest.mark.parametrize("unit", ["row", "tensor", "model"])
def test_units_written_out(unit: str, apply: str) -> None:
    """One displacement, unit by unit: centred, then without its part along the weights."""
    torch.manual_seed(0)
    start, d = torch.randn(1106, dtype=torch.float64), torch.randn(1106, dtype=torch.float64)
    found = corrected(start, start + d, f"constrain(unit={unit}, apply={apply})") - start
    for new, old, w in zip(layers(found, unit), layers(d, unit), layers(start, unit), strict=True):
        wanted = old - old.mean()
        close(new, wanted - (wanted @ w) / (w @ w) * w, 1e-10)


def test_the_form_of_2023_removes_the_parallel_part_by_the_norm_before_centring() -> None:
    torch.manual_seed(0)
    start, d = torch.randn(1106, dtype=torch.float64), torch.randn(1106, dtype=torch.float64)
    found = corrected(start, start + d, "constrain(apply=displacement, parallel=uncentred)") - start
    for new, old, w in zip(layers(found, "row"), layers(d, "row"), layers(start, "row"), strict=True):
        c = old - old.mean()
        close(new, c - (c @ w) / (c.norm() * w.norm()) * old.norm() / w.norm() * w, 1e-10)


def test_linear_then_sphere() -> None:
    torch.manual_seed(0)
    start, d = torch.randn(1106, dtype=torch.float64), torch.randn(1106, dtype=torch.float64)
    linear = corrected(start, start + d, "constrain(apply=displacement)")
    both = corrected(start, start + d, "constrain(apply=displacement, mode=linear+sphere)".replace("linear+sphere", '"linear+sphere"'))
    for new, old in zip(layers(both, "row"), layers(linear, "row"), strict=True):
        c = old - old.mean()
        close(new, 2**0.5 * c / c.norm(), 1e-10)


@pytest.mark.parametrize("text", ["constrain", "constrain(order=joint)", "constrain(apply=displacement)", "constrain(mode=sphere)"])
def test_rows_of_zeros_give_no_nan(text: str) -> None:
    module = net()
    with torch.no_grad():
        module.hidden.weight[2] = 0.0
        module.head.weight.zero_()
    reply = accord.local_round(accord.fedavg() + accord.read(text, "part"), module, batches(3))
    assert torch.isfinite(reply.w).all()


def test_fedbabu(golden: Path) -> None:
    local(golden, "fedbabu", "fedbabu")
    local(golden, "fedbabu", "fedavg + hold(on=head)")


@pytest.mark.parametrize("on", ["head", "body"])
def test_what_is_held_does_not_move_by_a_bit(on: str) -> None:
    rule = accord.sgd(lr=0.1, momentum=0.9, decay=0.1, clip=0.5)
    module = net()
    before = accord.Flat(net()).w
    reply = accord.local_round(accord.fedavg() + accord.hold(on) + rule, module, batches(4))  # type: ignore[arg-type]
    layout = accord.Flat(net()).layout
    for span in layout.spans(on):  # type: ignore[arg-type]
        assert reply.w[span].equal(before[span])
    other = "body" if on == "head" else "head"
    rest = accord.local_round(accord.fedavg() + accord.sgd(lr=0.1, momentum=0.9, decay=0.1, on=other), module, batches(4))  # type: ignore[arg-type]
    free = accord.local_round(accord.fedavg() + accord.hold(on) + accord.sgd(lr=0.1, momentum=0.9, decay=0.1), module, batches(4))  # type: ignore[arg-type]
    close(free.w, rest.w, 1e-13)
