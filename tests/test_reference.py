"""Every algorithm equals its textbook loop, in double precision, after several rounds with changing participants."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import accord
import reference
from accord.data.federation import Federation
from accord.flat import Flat
from accord.jobs import Train
from accord.server import Server, rounds
from accord.store import Store
from reference import Setting, Weights
from small import batches, client_at, federation, net

ROUNDS, COUNT, SEED = 4, 3, 5
SETTINGS = {
    "plain": Setting(lr=0.1, momentum=0.0),
    "momentum": Setting(lr=0.05, momentum=0.9),
    "all": Setting(lr=0.05, momentum=0.8, nesterov=True, decay=0.02, lr_decay=0.7),
}

CLIENT: dict[str, tuple[str, dict[str, object]]] = {
    "fedavg": ("fedavg", {}),
    "fedavg-uniform": ("fedavg(uniform)", {"uniform": True}),
    "fedprox": ("fedprox(mu=0.7)", {"mu": 0.7}),
    "fedsam": ("fedsam(rho=0.3)", {"compute": reference.sam(0.3)}),
    "fedsam-uniform": ("fedavg(uniform) + perturb(rho=0.3)", {"compute": reference.sam(0.3), "uniform": True}),
    "fedasam": ("fedavg + perturb(rho=0.8, adaptive=weight)", {"compute": reference.sam(0.8, adaptive=True)}),
    "fedsol": ("fedsol", {"compute": reference.sol(2.0, 3.0, "head", "head", "rows")}),
    "fedsol-layer": ("fedsol(rho=1.5, scale=layer)", {"compute": reference.sol(1.5, 3.0, "head", "head", "layer")}),
    "fedsol-body": ("fedsol(rho=1.5, tau=2, on=body)", {"compute": reference.sol(1.5, 2.0, "body", "head", "rows")}),
    "fedsol-all": ("fedsol(on=all)", {"compute": reference.sol(2.0, 3.0, "all", "head", "rows")}),
    "fedsol-all-layer": ("fedsol(on=all, scale=layer)", {"compute": reference.sol(2.0, 3.0, "all", "head", "layer")}),
    "distil": ("fedavg + distil(beta=2, tau=1.5)", {"compute": reference.distilled(2.0, 1.5)}),
    "distil+const": ("fedavg + distil(beta=2) + constrain", {"compute": reference.distilled(2.0, 3.0), "const": "sequential"}),
    "fedconst": ("fedavg + constrain", {"const": "sequential"}),
    "fedconst-joint": ("fedavg + constrain(order=joint)", {"const": "joint"}),
    "fedconst-outside": ("fedavg + constrain(decay=outside)", {"const": "sequential", "inside": False}),
    "fedconst-joint-outside": ("fedavg + constrain(order=joint, decay=outside)", {"const": "joint", "inside": False}),
    "fedprox+const": ("fedprox(mu=0.7) + constrain", {"mu": 0.7, "const": "sequential"}),
    "fedsam+const": ("fedsam(rho=0.3) + constrain", {"compute": reference.sam(0.3), "const": "sequential"}),
    "fedsol+const": ("fedsol + constrain(order=joint)", {"compute": reference.sol(2.0, 3.0, "head", "head", "rows"), "const": "joint"}),
}

SCAFFOLD: dict[str, tuple[str, dict[str, object]]] = {
    "scaffold": ("scaffold", {}),
    "scaffold-plain": ("scaffold(divisor=plain)", {"divisor": "plain"}),
    "scaffold+const": ("scaffold + constrain", {"const": "sequential"}),
    "scaffold+const-joint": ("scaffold + constrain(order=joint)", {"const": "joint"}),
    "scaffold+fedprox": ("scaffold + proximal(mu=0.4)", {"mu": 0.4}),
    "scaffold+sam": ("fedsam(rho=0.3) + control", {"compute": reference.sam(0.3)}),
    "fedsol-by-scaffold": ("fedavg + perturb(by=control, rho=0.5)", {"perturb_by_control": 0.5}),
}


def rule(setting: Setting) -> accord.sgd:
    return accord.sgd(
        lr=setting.lr,
        momentum=setting.momentum,
        nesterov=setting.nesterov,
        decay=setting.decay,
        lr_decay=setting.lr_decay,
        batch=5,
        epochs=2,
    )


def run(algorithm: accord.Algorithm, module: nn.Module, data: Federation) -> tuple[Server, list[list[int]], Store]:
    server, store, asked = Server.start(algorithm, module), Store(algorithm.keys), []
    for cohort in rounds(algorithm, module, data, rounds=ROUNDS, seed=SEED, server=server, store=store):
        asked.append(cohort.accepted)
    return server, asked, store


def served(algorithm: accord.Algorithm, data: Federation) -> Callable[[int, int], list[tuple[Tensor, Tensor]]]:
    """The batches that a client trains on in a round, as the library deals them."""
    nothing = torch.empty(0)
    return lambda r, k: [(b.x, b.y) for b in Train(algorithm, nothing, nothing, r, SEED).batches(data, k)]


def weights(module: nn.Module) -> Weights:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def assert_equal(found: Tensor, wanted: Weights, module: nn.Module) -> None:
    named = Flat(module).layout.named(found)
    for name, tensor in wanted.items():
        torch.testing.assert_close(named[name], tensor, rtol=1e-9, atol=1e-9, msg=lambda why, name=name: f"{name}: {why}")


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", CLIENT)
def test_equals_its_textbook_loop(name: str, setting: str) -> None:
    text, how = CLIENT[name]
    data, module = federation(), net()
    algorithm = accord.read(text) + rule(SETTINGS[setting]) + accord.uniform(COUNT)
    server, asked, _ = run(algorithm, module, data)
    assert len({tuple(a) for a in asked}) > 1
    assert all(len(a) == COUNT for a in asked)
    sizes = dict(enumerate(data.clients.sizes.tolist()))
    wanted = reference.fedavg(net(), weights(module), asked, served(algorithm, data), sizes, SETTINGS[setting], **how)
    assert_equal(server.w, wanted, net())
    start = Server.start(algorithm, module).w
    assert float((server.w - start).norm()) > 0.05  # the rounds did something


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", SCAFFOLD)
def test_scaffold_equals_its_textbook_loop(name: str, setting: str) -> None:
    text, how = SCAFFOLD[name]
    data, module = federation(), net()
    algorithm = accord.read(text) + rule(SETTINGS[setting]) + accord.uniform(COUNT)
    server, asked, store = run(algorithm, module, data)
    sizes = dict(enumerate(data.clients.sizes.tolist()))
    w, c, own = reference.scaffold(net(), weights(module), asked, served(algorithm, data), sizes, SETTINGS[setting], **how)
    assert_equal(server.w, w, net())
    part = next(p for p in algorithm.all_parts if isinstance(p, accord.control))
    assert_equal(server.state[part]["c"], c, net())
    again = [k for k in sizes if sum(k in a for a in asked) > 1]
    assert again, "some client must take part twice for its variate to matter"
    for k in sizes:
        kept = store.get(k)
        assert_equal(kept[part]["c"] if kept else torch.zeros_like(server.w), own[k], net())


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedsam", "fedsol", "fedconst"])
def test_the_public_pieces_equal_the_textbook_loop(name: str) -> None:
    text, how = CLIENT[name]
    data, module, setting = federation(), net(), SETTINGS["all"]
    algorithm = accord.read(text) + rule(setting)
    w, state = Flat(net()).w.clone(), None
    asked = [[4, 1], [0, 2, 3]]
    deal = served(algorithm, data)
    for r, participants in enumerate(asked):
        replies = [accord.local_round(algorithm, module, deal(r, k), w0=w, round=r) for k in participants]
        w, state = accord.server_step(algorithm, w, replies, state=state, population=data.population)
    sizes = {k: len(data.clients[k]) for k in range(data.population)}
    assert_equal(w, reference.fedavg(net(), weights(module), asked, deal, sizes, setting, **how), net())


@pytest.mark.parametrize("scale", ["rows", "layer", "off"])
@pytest.mark.parametrize("on", ["head", "body", "all"])
def test_fedsol_equals_its_textbook_loop_away_from_the_global_weights(on: str, scale: str) -> None:
    """Unlike at w = w0, where the direction of the fixed variant is round-off, nothing is degenerate here."""
    text = f"fedsol(rho=1.5, on={on}, adaptive={scale != 'off'}, scale={'rows' if scale == 'off' else scale})"
    setting = SETTINGS["all"]
    algorithm, w0, w = accord.read(text) + rule(setting), Flat(net()).w, Flat(net(seed=8)).w
    deal = batches(4)
    client = client_at(algorithm, net(), w0, w)
    client.train(accord.Batch(x, y) for x, y in deal)
    how = reference.sol(1.5, 3.0, on, "head", scale)
    wanted = reference.client(net(), weights(net()), deal, setting, setting.lr, compute=how, start=weights(net(seed=8)))
    assert_equal(client.w, wanted.w, net())


def test_local_training_that_moves_the_head_only_leaves_the_body() -> None:
    algorithm, module = accord.fedavg() + accord.sgd(on="head", decay=0.1), net()
    reply = accord.local_round(algorithm, module, [(torch.ones(3, 50, dtype=torch.float64), torch.tensor([0, 1, 2]))])
    moved = {n: bool((v != weights(module)[n]).any()) for n, v in Flat(net()).layout.named(reply.w).items()}
    assert moved == {n: n.startswith("head.") for n in moved}


def test_unequal_steps_reach_the_control_variates() -> None:
    """A client that takes fewer steps divides by fewer."""
    data = federation((5, 20))
    algorithm = accord.scaffold(divisor="plain") + accord.sgd(lr=0.1, momentum=0.0, batch=5, epochs=1)
    store, server = Store(algorithm.keys), Server.start(algorithm, net())
    w0 = server.w
    list(rounds(algorithm, net(), data, rounds=1, server=server, store=store))
    for k, steps in ((0, 1), (1, 4)):
        reply = Train(algorithm, w0, server.b, 0, 0, Server.start(algorithm, net()).down).run(_worker(data), k, {})
        assert reply.steps == steps
        torch.testing.assert_close(store.get(k)[algorithm.parts[1]]["c"], (w0 - reply.w) / (steps * 0.1), rtol=1e-12, atol=1e-12)


def _worker(data: Federation) -> accord.jobs.Worker:
    return accord.jobs.Worker(net(), data)
