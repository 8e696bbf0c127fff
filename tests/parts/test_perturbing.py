"""Where a gradient is taken, and what is taken out of it: ASAM's forms, FedSOL by any part, its ablations, the projection."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases import case, close, compare
from torch import Tensor

import accord
from accord.algorithms import fedsol_a1, fedsol_a2, fedsol_a3, fedsol_a4, fedsol_a5, fedsol_a6
from reference import Weights, cross_entropy, divergence, gradient, norm
from small import batches, client_at, net
from test_golden import tiny

RULE = accord.sgd(lr=1.0, momentum=0.0)


def test_asam_of_its_authors(golden: Path) -> None:
    """eta = 0.2, and T = 1 where the name does not say weight."""
    known = case(golden, "asam_samsung_rho1_eta0.2")
    algorithm = accord.fedasam(1.0, 0.2, "weights") + known.rule()
    batch = accord.Batch(known.arrays["x"], known.arrays["y"])
    reply, layout = accord.local_round(algorithm, tiny(known), [batch]), accord.Flat(tiny(known)).layout
    compare(known, layout, reply.w, "expected/")
    w = accord.Flat(tiny(known)).w
    client = client_at(algorithm, tiny(known), w, w)
    client.pull(accord.task(), batch, "all")
    part = algorithm.parts[-1]
    assert isinstance(part, accord.perturb)
    compare(known, layout, part.direction(client), "message/e/")
    with pytest.raises(AssertionError):
        compare(known, layout, accord.local_round(accord.fedasam(1.0, 0.2) + known.rule(), tiny(known), [batch]).w, "expected/")


def named(w: Tensor) -> Weights:
    return {name: t.clone() for name, t in accord.Flat(net()).layout.named(w).items()}


def packed(w: Weights) -> Tensor:
    return accord.Flat(net()).layout.pack(w)


def at_a_distance() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Global weights, local weights away from them, and one batch."""
    w0 = accord.Flat(net(seed=0)).w.clone()
    (x, y), *_ = batches(1, size=6)
    return w0, w0 + 0.1 * accord.Flat(net(seed=1)).w, x, y


def one_gradient(algorithm: accord.Algorithm, w0: Tensor, w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The gradient that the algorithm hands to its rule, from the length of one step."""
    client = client_at(algorithm + RULE, net(), w0, w)
    client.train([accord.Batch(x, y)])
    return w - client.w


def uphill(w: Weights, w0: Weights, p: Weights, rho: float) -> Weights:
    """w + e for FedSOL's head-only adaptive perturbation."""
    head = [name for name in w if name.startswith("head")]
    length = norm(p, head) + 1e-12
    scale = {name: torch.nn.functional.normalize((w[name] - w0[name]).abs(), dim=0, eps=1e-12) for name in head}
    return {name: w[name] + rho * scale[name] * p[name] / length if name in head else w[name] for name in w}


@pytest.mark.parametrize("beta", [1.0, 0.3])
@pytest.mark.parametrize("row", ["A1", "A2", "A3", "A4", "A5", "A6"])
def test_ablations_of_fedsol(row: str, beta: float) -> None:
    flat0, flat, x, y = at_a_distance()
    w0, w, rho, model = named(flat0), named(flat), 2.0, net()
    task, pull = cross_entropy(model, x, y), divergence(model, w0, x, 3.0)
    p, g = gradient(pull, w), gradient(task, w)
    there = uphill(w, w0, p, rho)
    both = uphill(w, w0, {name: p[name] + g[name] for name in w}, rho)
    beta = 1.0 if row == "A5" else beta
    places = {
        "A1": (fedsol_a1(rho), there, None),
        "A2": (fedsol_a2(rho, beta), w, there),
        "A3": (fedsol_a3(rho, beta), there, there),
        "A4": (fedsol_a4(rho, beta), both, both),
        "A5": (fedsol_a5(), w, w),
        "A6": (fedsol_a6(rho, beta), there, w),
    }
    algorithm, at, beside = places[row]
    wanted = gradient(task, at)
    if beside is not None:
        extra = gradient(pull, beside)
        wanted = {name: wanted[name] + beta * extra[name] for name in w}
    close(one_gradient(algorithm, flat0, flat, x, y), packed(wanted), 1e-11)


def test_projection_written_out() -> None:
    flat0, flat, x, y = at_a_distance()
    model = net()
    g = packed(gradient(cross_entropy(model, x, y), named(flat)))
    p = packed(gradient(divergence(model, named(flat0), x, 3.0), named(flat)))
    for toward, part in ((p, accord.distil()), (flat - flat0, accord.proximal(0.3))):
        dot = float(g @ toward)
        wanted = g - dot / float(toward @ toward) * toward if dot < 0 else g
        close(one_gradient(accord.projection(part), flat0, flat, x, y), wanted, 1e-11)


def test_projection_takes_out_only_what_is_against() -> None:
    """A fixed direction, once against the gradient and once along it."""
    flat0, _, x, y = at_a_distance()
    g = one_gradient(accord.fedavg(), flat0, flat0, x, y)
    for sign in (1.0, -1.0):
        away = flat0 + sign * g  # the proximal gradient at this point is along sign g, and small
        found, plain = (
            one_gradient(a, flat0, flat0 + 1e-3 * (away - flat0), x, y) for a in (accord.projection(accord.proximal(1.0)), accord.fedavg())
        )
        if sign > 0:
            close(found, plain, 1e-12)
        else:
            assert float(found.norm()) < 0.1 * float(plain.norm())
            assert abs(float(found @ g)) < 1e-10
    close(one_gradient(accord.projection(accord.proximal(1.0)), flat0, flat0, x, y), g, 1e-15)  # nothing pulls at w0


@pytest.mark.parametrize("by", ["contrast", "control", "dynamic", "normalise(variate=moving)", "proximal", "distil", "not_true"])
def test_fedsol_by_any_part_runs_that_parts_server_side(by: str) -> None:
    """From the second round on there is a direction, its state moves, and the gradient itself is not corrected by it."""
    algorithm = accord.read(f"fedsol(by={by}, on=all)") + accord.sgd(lr=0.05)
    w, kept, state, found = accord.Flat(net()).w.clone(), {}, None, []
    for r in range(3):
        down = {p: {n: state[p][n] for n in p.sends} for p in algorithm.all_parts if p.sends} if state else None
        replies = [accord.local_round(algorithm, net(), batches(3, seed=k), w0=w, down=down, kept=kept.get(k), round=r) for k in range(2)]
        plain = accord.local_round(accord.fedavg() + accord.sgd(lr=0.05), net(), batches(3), w0=w)
        found.append(float((replies[0].w - plain.w).abs().max()))
        kept = {k: reply.kept for k, reply in enumerate(replies)}
        w, state = accord.server_step(algorithm, w, replies, state=state, population=3)
    assert found[-1] > 1e-5
    assert torch.isfinite(w).all()
    inner = accord.read(by, "part")
    assert all(t.abs().sum() > 0 for t in (state or {}).get(inner, {}).values())


def test_fedsol_by_fednova_has_a_direction() -> None:
    """Its plain form has no vector to go along; named as what FedSOL goes by, it brings its control variate."""
    assert accord.read("fedsol(by=normalise)") == accord.read("fedsol(by=normalise(variate=moving))")
    assert accord.read("fedsol(by=normalise(weights=uniform))").parts[-1].by.weights == "uniform"
    assert accord.read("fedsol(by=normalise(variate=frozen))").parts[-1].by.variate == "frozen"


def test_fedsol_by_scaffold_is_not_scaffold() -> None:
    names = [p.name for p in accord.read("scaffold + fedsol(by=control)").all_parts]
    assert names == ["task", "control", "perturb"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_floor_keeps_the_first_step_from_a_random_direction(dtype: torch.dtype) -> None:
    """At w = w0 the proximal gradient is round-off: with the floor the first step is FedAvg's."""
    deal = batches(1, dtype=dtype)
    module = net(dtype=dtype)
    plain = accord.local_round(accord.fedavg(), module, deal).w
    assert accord.local_round(accord.fedsol(adaptive=False), module, deal).w.equal(plain)
    if dtype == torch.float32:
        assert not accord.local_round(accord.fedsol(adaptive=False, floor=0.0), module, deal).w.equal(plain)


@pytest.mark.parametrize("text", ["fedsam(rho=0)", "fedasam(rho=0)", "fedsol(rho=0)", "fedsol_a6(rho=0, beta=0)", "fedsol_a2(beta=0)"])
def test_without_strength_it_is_fedavg_bit_for_bit(text: str) -> None:
    deal = batches(3)
    found, plain = (accord.local_round(accord.read(t), net(norm=True), deal) for t in (text, "fedavg"))
    assert found.w.equal(plain.w)
    assert found.b.equal(plain.b)


@pytest.mark.parametrize("text", ["fedsam", "fedsol", "fedsol(on=all)", "projection", "fedsol_a2", "fedsol_a6", "fedsol(by=proximal)"])
def test_statistics_move_once_a_step(text: str) -> None:
    """BatchNorm counts as many batches as there were steps, wherever the extra passes are."""
    module = net(norm=True)
    reply = accord.local_round(accord.read(text) + accord.sgd(lr=0.05), module, batches(3))
    counted = accord.Flat(module).statistics.named(reply.b)["norm.num_batches_tracked"]
    assert float(counted) == 3.0


def test_tasks_of_different_weights_stand_once() -> None:
    algorithm = accord.read("feddyn + fedsol(by=contrast)")
    assert [p.name for p in algorithm.parts] == ["task", "dynamic", "perturb"]
    assert algorithm.parts[0] == accord.task("uniform")
