"""FedSR: a stochastic representation, its penalties, and the vectors that each client trains for itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from cases import case, close
from torch import nn

import accord
from accord.models.stochastic import StochasticNet
from small import batches


def part(l2r: float = 0.01, cmi: float = 0.001, trained: bool = True) -> accord.Part:
    from accord.parts.represent import Represent

    return Represent(l2r, cmi, trained)


def test_fedsr(golden: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = case(golden, "fedsr_official")
    h, fedsr = known.hyper, part()
    algorithm = accord.fedavg("uniform") + fedsr + accord.sgd(lr=h["lr"], momentum=0.9, decay=h["weight_decay"])
    order = ("r_mu", "r_sigma", "C")
    start = {fedsr: dict(zip("rsc", (known.arrays[f"init/{name}"] for name in order), strict=True))}
    for steps in range(1, 4):
        draws = iter(known.arrays["eps"])
        monkeypatch.setattr(StochasticNet, "draw", lambda module, mean, draws=draws: next(draws))
        module = StochasticNet(nn.Linear(12, 12), 6, 5).double()
        module.load_state_dict({name: t for name, t in known.group("init/").items() if "." in name})
        deal = [(known.arrays["x"][b], known.arrays["y"][b]) for b in h["batch_order"][:steps]]
        reply = accord.local_round(algorithm, module, deal, kept=start)
        found = {**accord.Flat(module).layout.named(reply.w), **dict(zip(order, reply.kept[fedsr].values(), strict=True))}
        wanted = known.group(f"expected/{steps}/")
        assert set(found) == set(wanted)
        for name, tensor in wanted.items():
            close(found[name], tensor, 1e-9)


def small() -> nn.Module:
    torch.manual_seed(0)
    return StochasticNet(nn.Linear(50, 6), 3, 4).double()


def test_the_clients_own_vectors_last_from_round_to_round_and_do_not_travel() -> None:
    fedsr, deal = part(), batches(3)
    first = accord.local_round(accord.fedavg() + fedsr, small(), deal)
    assert set(first.kept[fedsr]) == {"r", "s", "c"}
    assert fedsr not in first.up
    second = accord.local_round(accord.fedavg() + fedsr, small(), deal, kept=first.kept)
    assert not second.kept[fedsr]["r"].equal(first.kept[fedsr]["r"])
    fixed = accord.local_round(accord.fedavg() + part(trained=False), small(), deal).kept[part(trained=False)]
    assert float(fixed["r"].abs().max()) == 0.0


def test_without_strength_it_is_fedavg_bit_for_bit() -> None:
    deal = batches(3)
    found, plain = (accord.local_round(a, small(), deal) for a in (accord.fedavg() + part(0.0, 0.0), accord.fedavg()))
    assert found.w.equal(plain.w)


def test_a_model_without_a_distribution_is_refused_before_a_step() -> None:
    with pytest.raises(ValueError, match="represent reads a distribution of features, and Linear gives none"):
        accord.local_round(accord.fedavg() + part(), nn.Linear(50, 4).double(), batches(1))
    with pytest.raises(ValueError, match="represent reads a distribution"):
        accord.local_round(accord.fedavg() + part(), nn.Sequential(nn.Linear(50, 4)).double(), batches(1))


def test_answers_are_the_same_each_time_when_nothing_is_learned() -> None:
    module, x = small().eval(), batches(1)[0][0]
    close(module(x).logits.exp().sum(1), torch.ones(len(x), dtype=torch.float64), 1e-12)
    assert module(x).logits.equal(module(x).logits)


def test_the_direct_form_draws_for_the_penalty_alone() -> None:
    torch.manual_seed(0)
    module, x = StochasticNet(nn.Linear(50, 6), 3, 4, logits="direct").double(), batches(1)[0][0]
    one, two = module(x), module(x)
    assert one.logits.equal(two.logits)
    assert not one.features.equal(two.features)
    assert one.logits.shape == (5, 4)
