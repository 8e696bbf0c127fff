"""Parts that correct each client by what it remembers: FedNova, FedDyn, SCAFFOLD's variants, AdaBest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases import case, close, compare, local, run, vector

import accord
from test_golden import Case, tiny

STEPS = accord.sgd(lr=0.05, momentum=0.9, decay=0.001)


def test_fednova_client(golden: Path) -> None:
    reply, known = local(golden, "fednova", "fednova"), case(golden, "fednova")
    assert float(reply.up[accord.normalise()]["a"][0]) == pytest.approx(float(known.arrays["message/a_k"]), rel=1e-12)
    moving = local(golden, "fednova", "fedavg + normalise(variate=moving)")
    close(moving.kept[accord.normalise(variate="moving")]["d"], vector(known, "message/d_k/"), 1e-7)


def test_fednova_reach_is_the_programs_table(golden: Path) -> None:
    known = case(golden, "agg_nova_a_table")
    for rho, row in zip(known.arrays["rho"].tolist(), known.arrays["expected_table"], strict=True):
        for tau, a in zip(known.arrays["tau"].tolist(), row.tolist(), strict=True):
            assert accord.sgd(momentum=rho).reach(int(tau)) == pytest.approx(a, rel=1e-10)


def test_fednova_official_client_and_step(golden: Path) -> None:
    """The official optimiser's own average: one client of weight 0.25 in a cohort whose mean reach is 3.7."""
    known = case(golden, "fednova_official_mom0.9")
    h, module = known.hyper, tiny(known)
    algorithm = accord.fednova() + known.rule()
    deal = [(known.arrays["x"][b], known.arrays["y"][b]) for b in h["batch_order"]]
    reply = accord.local_round(algorithm, module, deal)
    layout = accord.Flat(tiny(known)).layout
    compare(known, layout, reply.w, "expected/local/")
    a = float(reply.up[accord.normalise()]["a"][0])
    assert a == pytest.approx(float(known.arrays["trace/a"][-1]), rel=1e-12)
    w0 = layout.pack(known.group("init/"))
    still = (h["tau_eff"] - h["weight"] * a) / (1 - h["weight"])  # the others' reach that makes the mean what the case was given
    other = accord.Reply(w0, samples=3, up={accord.normalise(): {"a": torch.tensor([still, 1.0], dtype=torch.float64)}})
    w, _ = accord.server_step(algorithm, w0, [accord.Reply(reply.w, samples=1, up=reply.up), other])
    compare(known, layout, w, "expected/after_average/1/")


def test_fednova_with_a_pull_is_the_official_proximal_optimiser() -> None:
    """Its program, line by line: d + mu (w - w0) goes into the buffer, and the normaliser shrinks by 1 - lr mu at each step."""
    torch.manual_seed(0)
    lr, momentum, decay, mu = 0.1, 0.9, 0.01, 0.5
    module = torch.nn.Linear(3, 2).double()
    deal = [(torch.randn(4, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0])) for _ in range(5)]
    reply = accord.local_round(accord.fednova(mu=mu) + accord.sgd(lr=lr, momentum=momentum, decay=decay), module, deal)
    start = [p.detach().clone() for p in module.parameters()]
    speeds = [torch.zeros_like(p) for p in start]
    counter = a = 0.0
    for x, y in deal:
        module.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        with torch.no_grad():
            for p, old, v in zip(module.parameters(), start, speeds, strict=True):
                assert p.grad is not None
                v.mul_(momentum).add_(p.grad + decay * p).add_(p - old, alpha=mu)
                p.sub_(v, alpha=lr)
        counter = counter * momentum + 1
        a = (a + counter) * (1 - lr * mu) + 1
    close(reply.w, torch.cat([p.detach().flatten() for p in module.parameters()]), 1e-12)
    assert float(reply.up[accord.normalise(mu=mu)]["a"][0]) == pytest.approx(a, rel=1e-12)
    assert accord.fednova(mu=0.0) == accord.fednova()
    assert accord.fednova(mu=mu).parts[1] == accord.proximal(mu)


def uploads(known: Case) -> tuple[accord.Layout, list[accord.Reply]]:
    layout = accord.Layout.of(known.group("global/"))
    replies = [accord.Reply(layout.pack(known.group(f"local/{k}/")), samples=n) for k, n in enumerate(known.hyper["n_k"])]
    return layout, replies


def test_fednova_server(golden: Path) -> None:
    known = case(golden, "agg_fednova")
    layout, replies = uploads(known)
    for reply, a in zip(replies, known.hyper["a_k"], strict=True):
        reply.up = {accord.normalise(): {"a": torch.tensor([a, 7.0], dtype=torch.float64)}}
    w, _ = accord.server_step(accord.fednova(), layout.pack(known.group("global/")), replies)
    compare(known, layout, w, "expected/")


def test_fednova_run(golden: Path) -> None:
    run(golden, "run_fednova", "fednova", {}, {})


def test_fednova_at_equal_steps_is_fedavg() -> None:
    rng = torch.Generator().manual_seed(0)
    w = torch.randn(20, generator=rng, dtype=torch.float64)
    up = {accord.normalise(): {"a": torch.tensor([13.1, 5.0], dtype=torch.float64)}}
    moved = [w + torch.randn(20, generator=rng, dtype=torch.float64) for _ in range(3)]
    nova = [accord.Reply(v, samples=k + 1, up=up) for k, v in enumerate(moved)]
    plain = [accord.Reply(v, samples=k + 1) for k, v in enumerate(moved)]
    close(accord.server_step(accord.fednova(), w, nova)[0], accord.server_step(accord.fedavg(), w, plain)[0], 1e-14)


def test_feddyn_client(golden: Path) -> None:
    known, part = case(golden, "feddyn_a0.1"), "dynamic(alpha=0.1)"
    reply = local(golden, "feddyn_a0.1", "feddyn(alpha=0.1)", kept={part: {"h": "h/"}})
    close(reply.kept[accord.dynamic(0.1)]["h"], vector(known, "message/h_plus/"), 1e-7)


@pytest.mark.parametrize("clip", ["10", "None"])
def test_feddyn_official_client(clip: str, golden: Path) -> None:
    """H = -h / alpha; alpha w is outside the clipping, which does not bite here."""
    known = case(golden, "feddyn_official_a0.01")
    part = accord.dynamic(0.01, clip=None if clip == "None" else 10.0)
    algorithm = accord.fedavg("uniform") + part + accord.sgd(lr=0.05, momentum=0.0, decay=0.001)
    deal = [(known.arrays["x"][b], known.arrays["y"][b]) for b in known.hyper["batch_order"]]
    start = {part: {"h": -0.01 * vector(known, "H/")}}
    layout = accord.Flat(tiny(known)).layout
    for steps in (1, 2, len(deal)):
        reply = accord.local_round(algorithm, tiny(known), deal[:steps], kept=start)
        compare(known, layout, reply.w, f"expected/{steps}/" if steps < len(deal) else "expected/")
    close(reply.kept[part]["h"] / -0.01, vector(known, "message/H_plus/"), 1e-7)


def test_feddyn_clip_bounds_all_but_alpha_w() -> None:
    """Written out: v = g - h - alpha w0 shortened to the clip, then alpha w."""
    torch.manual_seed(0)
    module, part = torch.nn.Linear(3, 2).double(), accord.dynamic(0.5, clip=0.1)
    x, y = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0])
    w = torch.cat([module.weight.detach().flatten(), module.bias.detach()])
    h = torch.randn(8, dtype=torch.float64)
    reply = accord.local_round(accord.fedavg() + part + accord.sgd(lr=1.0, momentum=0.0), module, [(x, y)], kept={part: {"h": h}})
    torch.nn.functional.cross_entropy(module(x), y).backward()
    assert module.weight.grad is not None
    assert module.bias.grad is not None
    v = torch.cat([module.weight.grad.flatten(), module.bias.grad]) - h - 0.5 * w
    close(reply.w, w - (v * 0.1 / (v.norm() + 1e-6) + 0.5 * w), 1e-12)


def test_feddyn_server(golden: Path) -> None:
    known, part = case(golden, "agg_feddyn"), accord.dynamic(0.1)
    layout, replies = uploads(known)
    state = {part: {"h": layout.pack(known.group("h/"))}}
    w, state = accord.server_step(
        accord.feddyn(0.1, "samples"), layout.pack(known.group("global/")), replies, state=state, population=known.hyper["n_clients"]
    )
    compare(known, layout, w, "expected/")
    compare(known, layout, state[part]["h"], "message/h_plus/")


def test_feddyn_run(golden: Path) -> None:
    part = "dynamic(alpha=0.1)"
    run(
        golden,
        "run_feddyn",
        "feddyn(0.1, samples)",
        {part: {"h": "message/{round}/h_server/"}},
        {part: {"h": "message/{round}/h/{client}/"}},
    )


def test_scaffold_after_the_step(golden: Path) -> None:
    """NIID-Bench: outside momentum, plain divisor."""
    part = "control(divisor=plain, apply=step)"
    named = {"down": {part: {"c": "c/"}}, "kept": {part: {"c": "c_i/"}}}
    reply, known = local(golden, "niid_scaffold", f"fedavg + {part}", **named), case(golden, "niid_scaffold")
    close(reply.kept[accord.read(part)]["c"], vector(known, "message/c_i_plus/"), 1e-7)
    close(reply.up[accord.read(part)]["change"], vector(known, "message/delta_c/"), 1e-7)


def test_scaffold_option_one_keeps_the_whole_gradient_at_the_global_weights() -> None:
    torch.manual_seed(0)
    module, part = torch.nn.Linear(3, 2).double(), accord.control(option="I")
    x, y = torch.randn(7, 3, dtype=torch.float64), torch.tensor([0, 1, 0, 1, 1, 0, 1])
    batches = list(zip(x.split(3), y.split(3), strict=True))
    reply = accord.local_round(accord.fedavg() + part + STEPS, module, batches)
    torch.nn.functional.cross_entropy(module(x), y).backward()
    assert module.weight.grad is not None
    assert module.bias.grad is not None
    close(reply.kept[part]["c"], torch.cat([module.weight.grad.flatten(), module.bias.grad]), 1e-12)


def test_feddyn_share_of_samples_divides_alpha() -> None:
    algorithm = accord.feddyn(0.4, scale="samples") + STEPS
    client = accord.Client.__new__(accord.Client)
    client.relative = 2.0
    assert algorithm.parts[-1].own(client) == pytest.approx(0.2)  # type: ignore[attr-defined]
