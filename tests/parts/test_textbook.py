"""The methods with memory equal their textbook loops over several rounds with changing participants; and what follows from theory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import reference_rounds as textbook
import torch

import accord
from accord.part import Part
from small import federation, net
from test_reference import COUNT, SETTINGS, assert_equal, rule, run, served, weights

METHODS: dict[str, tuple[str, Callable[..., Any], dict[str, object]]] = {
    "fednova": ("fednova", textbook.fednova, {}),
    "feddyn": ("feddyn(alpha=0.3)", textbook.feddyn, {"alpha": 0.3}),
    "feddyn-weighted": ("feddyn(alpha=0.3, weights=samples)", textbook.feddyn, {"alpha": 0.3, "uniform": False}),
    "feddyn-scaled": ("feddyn(alpha=0.1, scale=samples)", textbook.feddyn, {"alpha": 0.1, "scaled": True}),
    "moon": ("moon(mu=0.8)", textbook.moon, {"mu": 0.8, "tau": 0.5}),
    "fedntd": ("fedntd(beta=0.7, tau=2)", textbook.fedntd, {"beta": 0.7, "tau": 2.0}),
    "adabest": ("adabest(mu=0.5, beta=0.6)", textbook.adabest, {"mu": 0.5, "beta": 0.6}),
}


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", METHODS)
def test_equals_its_textbook_loop(name: str, setting: str) -> None:
    text, loop, how = METHODS[name]
    data, module = federation(), net()
    algorithm = accord.read(text) + rule(SETTINGS[setting]) + accord.uniform(COUNT)
    server, asked, _ = run(algorithm, module, data)
    sizes = dict(enumerate(data.clients.sizes.tolist()))
    assert any(sum(k in a for a in asked) > 1 for k in sizes), "some client must take part twice for its memory to matter"
    wanted = loop(net(), weights(module), asked, served(algorithm, data), sizes, SETTINGS[setting], **how)
    assert_equal(server.w, wanted, net())
    plain, _, _ = run(accord.fedavg() + algorithm.rule + algorithm.select, module, data)
    assert (plain.w - server.w).abs().max() > 1e-4


@pytest.mark.parametrize("plain", [False, True])
def test_corrective_weights_equal_their_textbook_loop(plain: bool) -> None:
    data, module, setting = federation(), net(), SETTINGS["plain"]
    algorithm = accord.fedoptz(0.4, "plain" if plain else "weighted") + rule(setting) + accord.uniform(COUNT)
    server, asked, _ = run(algorithm, module, data)
    whole = {k: tuple(data.train.gather(index)) for k, index in enumerate(data.clients)}
    wanted = textbook.fedoptz(net(), weights(module), asked, served(algorithm, data), whole, setting, alpha=0.4, plain=plain)  # type: ignore[arg-type]
    assert_equal(server.w, wanted, net())


@pytest.mark.parametrize(
    ("text", "twin"),
    [
        ("feddyn(alpha=0)", "fedavg(uniform)"),
        ("adabest(mu=0, beta=0)", "fedavg(uniform)"),
        ("fedoptz(alpha=0)", "fedavg(uniform)"),
        ("moon(mu=0)", "fedavg"),
        ("fedntd(beta=0)", "fedavg"),
        ("mixup(gamma=0)", "fedavg"),
        ("fedavgm(beta=0)", "fedavg"),
        ("fedasam(rho=0)", "fedavg"),
        ("fedsol_a0", "fedavg"),
        ("fedsol_a1", "fedsol"),
    ],
)
def test_limits_are_their_twins_bit_for_bit_over_rounds(text: str, twin: str) -> None:
    made = []
    for name in (text, twin):
        algorithm = accord.read(name) + rule(SETTINGS["all"]) + accord.uniform(COUNT)
        made.append(run(algorithm, net(norm=True), federation())[0])
    assert made[0].w.equal(made[1].w)
    assert made[0].b.equal(made[1].b)


class Bowl(Part):
    """Client k's loss is (1/2) sum a_k (w - t_k)^2; the inputs carry k."""

    __dataclass_fields__: Mapping[str, Any] = {}

    def __init__(self, a: torch.Tensor, t: torch.Tensor) -> None:
        self.a, self.t = a, t

    def gradient(self, client: accord.Client, batch: accord.Batch, inner: accord.Gradient) -> None:
        k = int(batch.x[0, 0])
        client.g.copy_(self.a[k] * (client.w - self.t[k]))

    def sums(self, reply: accord.Reply) -> dict[str, tuple[float, torch.Tensor]]:
        return {"delta": (1.0, reply.delta)}

    def aggregate(self, cohort: accord.Cohort, inner: accord.Step) -> torch.Tensor:
        return cohort.mean(self, "delta")


def test_feddyn_reaches_the_optimum_of_the_sum_and_fedavg_does_not() -> None:
    """Quadratics of different curvature: w* = (sum a_k)^-1 sum a_k t_k, and h_k = grad f_k(w*) there. FedDyn's fixed point."""
    torch.manual_seed(0)
    a, t = torch.rand(3, 2, dtype=torch.float64) + 0.2, torch.randn(3, 2, dtype=torch.float64)
    best = (a * t).sum(0) / a.sum(0)
    bowl, part = Bowl(a, t), accord.dynamic(0.5)
    ends = []
    for parts in ((bowl,), (bowl, part)):
        algorithm = accord.Algorithm(parts) + accord.sgd(lr=0.3, momentum=0.0)
        w, state, kept = torch.zeros(2, dtype=torch.float64), None, {}
        for r in range(120):
            replies = []
            for k in range(3):
                deal = [(torch.full((1, 1), float(k), dtype=torch.float64), torch.zeros(1).long())] * 60
                module = torch.nn.Linear(1, 2, bias=False).double()
                replies.append(accord.local_round(algorithm, module, deal, w0=w, kept=kept.get(k), round=r))
                kept[k] = replies[-1].kept
            w, state = accord.server_step(algorithm, w, replies, state=state)
        ends.append(w)
    assert (ends[0] - best).abs().max() > 0.05
    torch.testing.assert_close(ends[1], best, rtol=1e-6, atol=1e-6)
    for k in range(3):
        torch.testing.assert_close(kept[k][part]["h"], a[k] * (best - t[k]), rtol=1e-5, atol=1e-5)
