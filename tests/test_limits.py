"""What the papers claim, as properties: SCAFFOLD's variates and fixed point, FedCONST's orthogonality, FedSOL's first step."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import accord
import reference
from accord.flat import Flat
from accord.jobs import Train
from accord.part import Part
from accord.server import Server, rounds
from accord.store import Store
from small import batches, client_at, federation, net, train

# --- SCAFFOLD --------------------------------------------------------------------------------------------------------------------------


def variates(algorithm: accord.Algorithm, data: accord.Federation, module: nn.Module, count: int) -> tuple[Server, Store]:
    server, store = Server.start(algorithm, module), Store(algorithm.keys)
    for _ in rounds(algorithm, module, data, rounds=count, server=server, store=store):
        pass
    return server, store


@pytest.mark.parametrize("text", ["scaffold", "scaffold(divisor=plain)", "scaffold + constrain", "scaffold + fedsam + fedprox"])
def test_the_servers_variate_is_the_mean_of_the_clients(text: str) -> None:
    """Everybody from zero: c = (1 / N) sum c_i after every round, and with some of them only as well, the others staying at zero."""
    for select in (accord.all(), accord.uniform(3)):
        data = federation()
        algorithm = accord.read(text) + accord.sgd(lr=0.05, batch=4, decay=0.01) + select
        server, store = variates(algorithm, data, net(), 4)
        kept = [store.get(k).get(part(algorithm), {}).get("c", torch.zeros_like(server.w)) for k in range(data.population)]
        torch.testing.assert_close(server.state[part(algorithm)]["c"], sum(kept) / len(kept), rtol=1e-10, atol=1e-12)
        assert server.state[part(algorithm)]["c"].norm() > 1e-3


def part(algorithm: accord.Algorithm) -> accord.control:
    return next(p for p in algorithm.parts if isinstance(p, accord.control))


class Points(nn.Module):
    """A model whose output is its weights, for losses that are written down below."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.point = nn.Parameter(torch.full((size,), 3.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.point.expand(len(x), -1)


@dataclass(frozen=True, eq=False)
class Parabola(Part):
    """The loss (1 / 2) sum_j a_j (w_j - m_j)^2; a sample's first half is a, its second half m."""

    def loss(self, client: accord.Client, batch: accord.Batch, out: accord.Output) -> Tensor:
        a, m = batch.x.chunk(2, dim=1)
        return 0.5 * (a * (out.logits - m) ** 2).sum(1).mean()

    def sums(self, reply: accord.Reply) -> dict[str, tuple[float, Tensor]]:
        return {"delta": (1.0, reply.delta)}

    def aggregate(self, cohort: accord.Cohort, inner: accord.Step) -> Tensor:
        return cohort.mean(self, "delta")


A = torch.tensor([[1.0, 4.0], [9.0, 0.5], [2.0, 2.0]], dtype=torch.float64)
M = torch.tensor([[0.0, 1.0], [2.0, -3.0], [-1.0, 5.0]], dtype=torch.float64)


def parabolas() -> accord.Federation:
    data = federation((1, 1, 1))
    data.train.x.resize_(3, 4).copy_(torch.cat([A, M], dim=1))
    return data


ROUNDS = 120
OPTIMUM = (A * M).sum(0) / A.sum(0)


def fixed_point(lr: float, steps: int) -> Tensor:
    """Where FedAvg comes to rest: with r_k = (1 - lr a_k)^steps, w = sum (1 - r_k) m_k / sum (1 - r_k)."""
    r = (1 - lr * A) ** steps
    return ((1 - r) * M).sum(0) / (1 - r).sum(0)


@pytest.mark.parametrize(("lr", "steps"), [(0.05, 10), (0.1, 5)])
def test_scaffold_removes_the_drift_that_fedavg_keeps(lr: float, steps: int) -> None:
    """Three clients with different curvatures and minima: FedAvg rests at its own fixed point, SCAFFOLD at the true minimum."""
    rule = accord.sgd(lr=lr, momentum=0.0, steps=steps, batch=1)
    fedavg = train(accord.Algorithm((Parabola(),)) + rule, Points(2), parabolas(), ROUNDS)
    torch.testing.assert_close(fedavg.w, fixed_point(lr, steps), rtol=1e-9, atol=1e-9)
    assert (fedavg.w - OPTIMUM).abs().max() > 0.1
    for divisor in ("plain", "momentum"):
        algorithm = accord.Algorithm((Parabola(), accord.control(divisor))) + rule  # type: ignore[arg-type]
        server, store = variates(algorithm, parabolas(), Points(2), ROUNDS)
        torch.testing.assert_close(server.w, OPTIMUM, rtol=1e-7, atol=1e-7)
        for k in range(3):  # at rest c_i is the gradient of the client's own loss
            torch.testing.assert_close(store.get(k)[part(algorithm)]["c"], A[k] * (OPTIMUM - M[k]), rtol=1e-6, atol=1e-6)


def test_scaffold_with_momentum_removes_the_drift_only_with_its_divisor() -> None:
    """Momentum carries K equal gradients further than K steps; divided by K, the variates come out too large."""
    rule = accord.sgd(lr=0.01, momentum=0.9, steps=10, batch=1)
    algorithm = accord.Algorithm((Parabola(), accord.control("momentum"))) + rule
    server, store = variates(algorithm, parabolas(), Points(2), ROUNDS)
    torch.testing.assert_close(server.w, OPTIMUM, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(store.get(1)[part(algorithm)]["c"], A[1] * (OPTIMUM - M[1]), rtol=1e-5, atol=1e-5)
    plain = accord.Algorithm((Parabola(), accord.control("plain"))) + rule
    first, kept = variates(plain, parabolas(), Points(2), 1)
    right = variates(algorithm, parabolas(), Points(2), 1)[1]
    ratio = kept.get(0)[part(plain)]["c"] / right.get(0)[part(algorithm)]["c"]
    torch.testing.assert_close(ratio, torch.full((2,), rule.reach(10) / 10, dtype=torch.float64))
    assert torch.isfinite(first.w).all()


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("steps", [1, 2, 7, 50])
def test_reach_is_what_the_recursion_adds_up_to(momentum: float, steps: int) -> None:
    v = total = 0.0
    for _ in range(steps):
        v = momentum * v + 1
        total += v
    assert accord.sgd(momentum=momentum).reach(steps) == pytest.approx(total, rel=1e-10)


# --- FedCONST --------------------------------------------------------------------------------------------------------------------------


def relative_products(w0: Tensor, dw: Tensor, module: nn.Module) -> tuple[float, float]:
    """The largest |w0 . dw| and |1 . dw| of any row, relative to the lengths of both vectors."""
    layout = Flat(module).layout
    along = across = 0.0
    for base, step in zip(layout.rows(w0), layout.rows(dw), strict=True):
        alive = step.norm(dim=1) > 1e-9 * step.norm()  # a row of a unit that never fires does not move
        assert alive.any()
        base, step = base[alive], step[alive]
        length = step.norm(dim=1)
        along = max(along, float(((base * step).sum(1).abs() / (base.norm(dim=1) * length)).max()))
        across = max(across, float((step.sum(1).abs() / (length * base.shape[1] ** 0.5)).max()))
    return along, across


ONIONS = ["fedavg", "fedprox(mu=0.5)", "fedsam(rho=0.5)", "fedsol", "scaffold", "fedprox(mu=0.5) + control + perturb(rho=0.2)"]


@pytest.mark.parametrize("text", ONIONS)
@given(
    momentum=st.sampled_from([0.0, 0.9]),
    decay=st.sampled_from([0.0, 0.1]),
    nesterov=st.booleans(),
    count=st.integers(1, 3),
)
@settings(max_examples=6)
def test_every_row_moves_at_right_angles_to_its_global_weights(
    text: str, momentum: float, decay: float, nesterov: bool, count: int
) -> None:
    """Joint order: w0 . dw = 0 and 1 . dw = 0 for each row, of each client and of the mean, with momentum and decay on."""
    rule = accord.sgd(lr=0.1, momentum=momentum, decay=decay, nesterov=nesterov and momentum > 0, batch=4, epochs=2)
    algorithm = accord.read(text) + accord.constrain(order="joint") + rule
    data, module = federation(), net()
    server, store = Server.start(algorithm, module), Store(algorithm.keys)
    for _ in range(count):
        w0, down, b, at = server.w, server.down, server.b, server.round
        for k in (0, 3):
            reply = Train(algorithm, w0, b, at, 0, down).run(accord.jobs.Worker(net(), data), k, store.get(k))
            assert max(relative_products(w0, reply.w - w0, net())) < 1e-6
        for _ in rounds(algorithm, module, data, rounds=at + 1, server=server, store=store):
            pass
        assert max(relative_products(w0, server.w - w0, net())) < 1e-6


def test_the_row_norms_of_a_constrained_model_only_grow_by_the_square_of_the_step() -> None:
    algorithm = accord.fedavg() + accord.constrain() + accord.sgd(lr=0.1, momentum=0.9, decay=0.1)
    w0 = Flat(net()).w.clone()
    w = accord.local_round(algorithm, net(), batches(5)).w
    for before, after in zip(Flat(net()).layout.rows(w0), Flat(net()).layout.rows(w), strict=True):
        torch.testing.assert_close(after.norm(dim=1) ** 2, before.norm(dim=1) ** 2 + (after - before).norm(dim=1) ** 2)


def test_the_orders_differ_as_the_paper_leaves_open() -> None:
    """As printed, w0 . dw = 0 is exact and 1 . dw = 0 is not; without the projection it is the other way round; joint has both."""
    found = {}
    for text in (
        "constrain",
        "constrain(center=False)",
        "constrain(orthogonal=False)",
        "constrain(order=joint)",
        "constrain(decay=outside)",
    ):
        algorithm = accord.fedavg() + accord.read(text, "part") + accord.sgd(lr=0.1, momentum=0.9, decay=0.1)
        w0 = Flat(net()).w.clone()
        found[text] = relative_products(w0, accord.local_round(algorithm, net(), batches(5)).w - w0, net())
    assert found["constrain"][0] < 1e-12 < 1e-3 < found["constrain"][1]
    assert found["constrain(center=False)"][0] < 1e-12 < 1e-3 < found["constrain(center=False)"][1]
    assert found["constrain(orthogonal=False)"][1] < 1e-12 < 1e-3 < found["constrain(orthogonal=False)"][0]
    assert max(found["constrain(order=joint)"]) < 1e-12
    assert found["constrain(decay=outside)"][0] > 1e-6


def test_centred_weights_make_both_orders_one() -> None:
    module = net()
    with torch.no_grad():
        for p in module.parameters():
            if p.dim() > 1:
                p.sub_(p.flatten(1).mean(1).view(-1, *[1] * (p.dim() - 1)))
    replies = [
        accord.local_round(accord.fedavg() + accord.constrain(order=order) + accord.sgd(decay=0.1), module, batches(4))  # type: ignore[arg-type]
        for order in ("sequential", "joint")
    ]
    torch.testing.assert_close(replies[0].w, replies[1].w, rtol=1e-12, atol=1e-12)


def test_the_directions_are_those_of_the_global_weights_wherever_the_client_is() -> None:
    w0, w = Flat(net()).w, Flat(net(seed=4)).w
    client = client_at(accord.fedavg() + accord.constrain(order="joint") + accord.sgd(lr=0.1, decay=0.1), net(), w0, w)
    client.train(accord.Batch(x, y) for x, y in batches(3))
    assert max(relative_products(w0, client.w - w, net())) < 1e-12


def test_a_row_of_equal_weights_has_no_direction_but_round_off() -> None:
    """In single precision its deviations from its mean are the last bits of its numbers; they must not count as a direction."""
    noise = torch.randn(40, 12, generator=torch.Generator().manual_seed(1))
    rows = 0.1 + 1e-8 * noise
    assert (rows - rows.mean(dim=1, keepdim=True)).any(dim=1).all()
    model = nn.Sequential(nn.Linear(12, 40, bias=False), nn.Tanh(), nn.Linear(40, 3, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(rows)
    rule = accord.sgd(lr=1.0, momentum=0.0)
    deal = [(torch.randn(8, 12, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 3)]
    free, tied = (accord.local_round(a + rule, model, deal).w for a in (accord.fedavg(), accord.fedavg() + accord.constrain(order="joint")))
    layout = Flat(copy.deepcopy(model)).layout
    change, found = (layout.named(w)["0.weight"] - rows for w in (free, tied))
    torch.testing.assert_close(found, change - change.mean(dim=1, keepdim=True), rtol=1e-4, atol=1e-6)


def test_biases_move_freely() -> None:
    algorithm = accord.fedavg() + accord.constrain() + accord.sgd(lr=0.1, momentum=0.0)
    free, tied = (accord.local_round(a, net(), batches(1)) for a in (accord.fedavg() + algorithm.rule, algorithm))
    layout = Flat(net()).layout
    for name, moved in layout.named(tied.w).items():
        alike = torch.allclose(moved, layout.named(free.w)[name], rtol=1e-12, atol=1e-12)
        assert alike == name.endswith("bias"), name


# --- FedSOL ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["fedsol", "fedsol(on=all)", "fedsol(on=body, scale=layer)", "fedsol(by=proximal(mu=1))", "fedsol(by=control)"]
)
def test_the_first_step_of_a_round_is_a_plain_one(text: str) -> None:
    """At w = w0 nothing has drifted: Lambda = 0, so e = 0."""
    rule = accord.sgd(lr=0.1, momentum=0.9, decay=0.01)
    one = [accord.local_round(accord.read(t) + rule, net(), batches(1)).w for t in ("fedavg", text)]
    assert one[0].equal(one[1])
    if "control" in text:
        return  # its variates are zero in a first round, so that there is no direction at any step
    three = [accord.local_round(accord.read(t) + rule, net(), batches(3)).w for t in ("fedavg", text)]
    assert not three[0].equal(three[1])


@dataclass(frozen=True, eq=False)
class Watch(Part):
    """Notes where the gradient is taken, as a part that stands inside another."""

    seen: list[Tensor] = field(default_factory=list)

    def gradient(self, client: accord.Client, batch: accord.Batch, inner: accord.Gradient) -> None:
        self.seen.append(client.w.clone())
        inner(batch)


@pytest.mark.parametrize("on", ["head", "body", "all"])
@pytest.mark.parametrize("adaptive", ["none", "drift", "drift-tensor", "weight"])
def test_the_perturbation_is_as_long_as_it_says_and_nowhere_else(on: Any, adaptive: Any) -> None:
    """e = rho Lambda . p / ||p||, with p from autograd on the distillation loss written out."""
    w0, w, watch = Flat(net()).w, Flat(net(seed=4)).w, Watch()
    x, y = batches(1)[0]
    part = accord.perturb(by=accord.distil(tau=3), rho=0.7, on=on, adaptive=adaptive)
    client = client_at(accord.Algorithm((accord.task(), watch, part)), net(), w0, w)
    client.train([accord.Batch(x, y)])
    e = watch.seen[0] - w
    model = net(seed=4)
    loss = reference.divergence(net(), dict(net().named_parameters()), x, 3.0)
    p = Flat(net()).layout.pack(reference.gradient(loss, {n: t.detach() for n, t in model.named_parameters()}))
    inside = torch.zeros_like(e, dtype=torch.bool)
    for span in Flat(net()).layout.spans(on):
        inside[span] = True
    p[~inside] = 0.0
    assert not e[~inside].any()
    layout, drift = Flat(net()).layout, (w - w0).abs()
    if adaptive == "none":
        assert float(e.norm()) == pytest.approx(0.7, rel=1e-9)
        wanted = 0.7 * p / p.norm()
    elif adaptive == "weight":
        wanted = 0.7 * w**2 * p / (w.abs() * p).norm()
    else:
        scale = [d / (d.norm(dim=0) if adaptive == "drift" else d.norm()) for d in layout.views(drift)]
        wanted = 0.7 * torch.cat([s.flatten() for s in scale]) * p / p.norm()
    torch.testing.assert_close(e, wanted, rtol=1e-8, atol=1e-12)


def test_perturbed_weights_come_back_exactly() -> None:
    client = client_at(accord.fedsam(), net(), Flat(net()).w, Flat(net(seed=4)).w)
    before = client.w.clone()
    block = client.shifted(torch.randn_like(before) * 1e6)
    block.__enter__()
    assert not client.w.equal(before)
    assert not block.__exit__(None, None, None)
    assert client.w.equal(before)
