"""What is measured, against sums by hand: on the global test set, on each client's own, after personalisation, and for new clients."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

import accord
from accord.data.federation import Federation
from accord.data.pool import Pool
from accord.data.shards import Shards
from accord.engines.process import Process
from accord.engines.threads import Threads
from accord.evaluation import evaluate, spread
from accord.flat import logits
from accord.jobs import CHUNK, Evaluate, Score
from accord.server import Server, rounds
from accord.store import Store
from small import Backwards, net, samples


def federation(tests: int = 40, held_out: int = 2) -> Federation:
    """Six clients, the last of them never in training, each with test data of its own; one has none."""
    x, y = samples(90, seed=1)
    pool, test = Pool(x, y), Pool(*samples(tests, seed=2)) if tests else Pool(x[:0], y[:0])
    train = Shards.of([list(range(12 * k, 12 * k + 8)) for k in range(6)])
    own = Shards.of([[] if k == 1 else list(range(12 * k + 8, 12 * k + 9 + k % 3)) for k in range(6)])
    return Federation(pool, train, 6 - held_out, 4, test, pool, own)


def by_hand(module: nn.Module, pool: Pool, index: Any) -> tuple[float, float]:
    x, y = pool.x[index], pool.y[index]
    with torch.no_grad():
        scores = logits(module.eval()(x))
    return float((scores.argmax(1) == y).double().mean()), float(cross_entropy(scores, y))


@pytest.fixture
def trained() -> tuple[Server, Federation]:
    data = federation()
    algorithm = accord.read("fedavg + finetune(2) + sgd(lr=0.1, batch=4)")
    server = Server.start(algorithm, net(norm=True))
    for _ in rounds(algorithm, net(norm=True), data, rounds=2, server=server):
        pass
    return server, data


def test_against_sums_by_hand(trained: tuple[Server, Federation]) -> None:
    server, data = trained
    module = server.model(net(norm=True))
    with Process(net(norm=True), data) as engine:
        found = evaluate(server, data, engine, personal=True)
    accuracy, loss = by_hand(module, data.test, torch.arange(40))
    assert set(found) == {"global", "local", "personal", "new"}
    assert found["global"]["accuracy"] == pytest.approx(accuracy, abs=1e-12)
    assert found["global"]["loss"] == pytest.approx(loss, rel=1e-9)
    with torch.no_grad():
        right = logits(module.eval()(data.test.x)).argmax(1) == data.test.y
    for label, share in enumerate(found["global"]["classes"]):
        mine = right[data.test.y == label]
        assert share == (pytest.approx(float(mine.double().mean())) if len(mine) else None)
    for kind, clients in (("local", [0, 2, 3]), ("new", [4, 5])):
        each = [by_hand(module, data.own, data.tests[k])[0] for k in clients]
        wanted = {"mean": np.mean(each), "spread": np.std(each), "worst": min(each)}
        assert {k: found[kind][k] for k in wanted} == pytest.approx(wanted, abs=1e-6)
        assert found[kind]["clients"] == len(clients)


def test_personal_models_are_fine_tuned_by_hand(trained: tuple[Server, Federation]) -> None:
    """Two epochs of plain descent on the client's own data, in the order that its stream of random numbers gives."""
    server, data = trained
    with Process(net(norm=True), data) as engine:
        found = evaluate(server, data, engine, personal=True)["personal"]
        job = Evaluate(server.algorithm, server.w, server.b, server.round, 0, of="personal")
        each = dict(engine.map(job, [0, 2, 3]))
    for client in (0, 2, 3):
        model = server.model(net(norm=True)).train()
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        rng = accord.seeds.stream(0, "client", server.round, client)  # type: ignore[attr-defined]
        for batch in data.batches(client, rng, size=4, epochs=2):
            optimiser.zero_grad()
            cross_entropy(logits(model(batch.x)), batch.y).backward()
            optimiser.step()
        accuracy, loss = by_hand(model, data.own, data.tests[client])
        assert each[client].accuracy == pytest.approx(accuracy)
        assert each[client].loss / each[client].samples == pytest.approx(loss, rel=1e-6)
    assert found["mean"] == pytest.approx(np.mean([s.accuracy for s in each.values()]), abs=1e-6)


def test_nothing_is_changed_by_looking(trained: tuple[Server, Federation]) -> None:
    server, data = trained
    before, state = server.w.clone(), copy.deepcopy(server.state)
    with Process(net(norm=True), data) as engine:
        first = evaluate(server, data, engine, personal=True)
        again = evaluate(server, data, engine, personal=True)
    assert first == again
    assert server.w.equal(before)
    assert server.state == state
    assert server.round == 2


@pytest.mark.parametrize("make", [Backwards, lambda m, d: Threads(m, d, workers=3)])
def test_engines_agree(make: Callable[..., Any], trained: tuple[Server, Federation]) -> None:
    server, data = trained
    with Process(net(norm=True), data) as here, make(net(norm=True), data) as other:
        assert evaluate(server, data, other, personal=True) == evaluate(server, data, here, personal=True)


@pytest.mark.parametrize("size", [1, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK + 7])
def test_a_test_set_of_any_size_is_looked_at_once(size: int) -> None:
    data = federation(size)
    server = Server.start(accord.fedavg(), net())
    with Process(net(), data) as engine:
        found = evaluate(server, data, engine)["global"]
    accuracy, loss = by_hand(net(), data.test, torch.arange(size))
    assert found["accuracy"] == pytest.approx(accuracy, abs=1e-12)
    assert found["loss"] == pytest.approx(loss, rel=1e-9)


def test_what_has_no_data_is_left_out() -> None:
    data = federation(0, 0)
    server = Server.start(accord.fedavg(), net())
    with Process(net(), data) as engine:
        assert set(evaluate(server, data, engine)) == {"local"}
        assert set(evaluate(server, data, engine, personal=True)) == {"local", "personal"}
    bare = Federation(data.train, data.clients, 6, 4, data.test, data.own, Shards.of([[]] * 6))
    with Process(net(), bare) as engine:
        assert evaluate(server, bare, engine, personal=True) == {}


def test_personal_is_measured_with_what_each_client_keeps() -> None:
    data = federation()
    algorithm = accord.read("local_only + sgd(lr=0.1, batch=4)")
    server, store = Server.start(algorithm, net()), Store(algorithm.keys)
    for _ in rounds(algorithm, net(), data, rounds=3, server=server, store=store):
        pass
    with Process(net(), data) as engine:
        found = evaluate(server, data, engine, kept=store.get, personal=True)
    each = []
    for client in (0, 2, 3):
        own = next(s["w"] for s in store.get(client).values() if "w" in s)
        model = net()
        torch.nn.utils.vector_to_parameters(own, model.parameters())
        each.append(by_hand(model, data.own, data.tests[client])[0])
    assert found["personal"]["mean"] == pytest.approx(np.mean(each), abs=1e-6)


def test_a_loss_that_is_not_finite_is_none() -> None:
    data = federation()
    server = Server.start(accord.fedavg(), net())
    server.w = server.w * 1e300
    with Process(net(), data) as engine:
        found = evaluate(server, data, engine)
    assert found["global"]["loss"] is None
    assert math.isfinite(found["global"]["accuracy"])
    json.dumps(found, allow_nan=False)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_mean_spread_and_worst_tenth(values: list[float]) -> None:
    found = spread(values)
    ordered = sorted(values)
    tenth = ordered[: max(1, len(values) // 10)]
    assert found["mean"] == pytest.approx(sum(values) / len(values), abs=1e-6)
    assert found["spread"] == pytest.approx((sum((v - sum(values) / len(values)) ** 2 for v in values) / len(values)) ** 0.5, abs=1e-6)
    assert found["worst"] == pytest.approx(sum(tenth) / len(tenth), abs=1e-6)
    assert found["clients"] == len(values)
    assert found["worst"] <= found["mean"] + 1e-6


def test_the_worst_tenth_of_thirty_are_three() -> None:
    assert spread([k / 100 for k in range(30)])["worst"] == pytest.approx(0.01)


def test_scores_add_up() -> None:
    a, b = (Score(torch.tensor([k, 0]), torch.tensor([2 * k, 1]), float(k)) for k in (1, 3))
    both = a + b
    assert (both.samples, both.accuracy, both.loss) == (10, 0.4, 4.0)
    assert math.isnan(Score(torch.zeros(2), torch.zeros(2), 0.0).accuracy)
