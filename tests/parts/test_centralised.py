"""The upper bound: one client that holds all training data, whatever the federation and the selection say, and nothing sent."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import accord
from accord.experiment import Experiment
from accord.flat import Flat
from accord.pooled import pooled
from accord.run import run
from small import federation, net, train


@pytest.mark.parametrize("text", ["centralised + uniform(4)", "fedavg"])
def test_is_plain_training_on_everything(text: str) -> None:
    """And so is FedAvg with a lasting momentum on the pooled data, round boundaries or not."""
    data = federation() if "centralised" in text else pooled(federation())
    rule = accord.sgd(lr=0.05, momentum=0.9, batch=65, epochs=1, persist=True)
    server = train(accord.read(text) + rule, net(), data, 5)
    model, (x, y) = net(), data.train.gather(torch.arange(65))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(5):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x).logits, y).backward()
        optimiser.step()
    torch.testing.assert_close(server.w, Flat(model).w.detach(), rtol=1e-10, atol=1e-10)


def test_pooled_clients_are_one_client() -> None:
    data = pooled(federation())
    assert (data.population, len(data.clients), len(data.clients[0])) == (1, 7, 65)
    assert data.clients[0].tolist() == list(range(65))


@pytest.mark.parametrize("engine", ["process", "threads", "processes"])
def test_neither_split_nor_selection_nor_engine_changes_it(tmp_path: Path, engine: str) -> None:
    asked = [("iid", 20, 10), ("dirichlet(0.05)", 7, 1), ("shards(2)", 10, None)]
    results = []
    for k, (split, clients, share) in enumerate(asked):
        e = Experiment(algorithm="centralised", split=split, clients=clients, per_round=share, rounds=2, engine=engine, workers=2)  # type: ignore[arg-type]
        results.append(run(e, tmp_path / str(k)))
    assert len({r["digest"] for r in results}) == 1
    assert {(r["bytes_up"], r["bytes_down"]) for r in results} == {(0, 0)}


def test_its_clients_are_tested_and_tuned_as_they_are(tmp_path: Path) -> None:
    common = {"split": "dirichlet(0.3)", "clients": 6, "per_round": 3, "rounds": 3, "local_test": 0.3, "engine": "process"}
    ours, plain = (
        run(Experiment.of({**common, "algorithm": f"{text} + finetune(epochs=2)"}), tmp_path / text) for text in ("centralised", "fedavg")
    )
    for kind in ("local", "personal"):
        assert ours["evaluation"][kind]["clients"] == plain["evaluation"][kind]["clients"] == 6
    assert ours["fingerprint"] == plain["fingerprint"]
    assert ours["evaluation"]["personal"] != ours["evaluation"]["local"]
    assert ours["bytes_up"] == ours["bytes_down"] == 0 < plain["bytes_up"]


def test_is_an_upper_bound_for_clients_that_disagree(tmp_path: Path) -> None:
    common = {"split": "dirichlet(0.05)", "clients": 20, "per_round": 5, "rounds": 15, "engine": "process"}
    ours, plain = (run(Experiment.of({**common, "algorithm": text}), tmp_path / text)["accuracy"] for text in ("centralised", "fedavg"))
    assert ours > plain + 0.02


def test_momentum_goes_on_from_round_to_round() -> None:
    assert accord.centralised().rule.persist
    once = train(accord.centralised() + accord.sgd(batch=65, epochs=1), net(), federation(), 3)
    going_on = train(accord.centralised() + accord.sgd(batch=65, epochs=1, persist=True), net(), federation(), 3)
    assert not once.w.equal(going_on.w)
