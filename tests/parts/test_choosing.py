"""Who takes part, and what clients predict with: power of choice, groups, fine-tuning, neighbours, local models, Per-FedAvg."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import case, close, compare

import accord
from accord.select import Draw
from small import batches, client_at, federation, net, train
from test_golden import tiny


def draw(population: int, rng: object, losses: Sequence[float], sizes: Sequence[int] | None = None, asked: list[int] | None = None) -> Draw:
    def look(clients: Sequence[int]) -> list[float]:
        if asked is not None:
            asked.extend(clients)
        return [losses[k] for k in clients]

    return Draw(population, torch.tensor(sizes or [1] * population), rng, look)  # type: ignore[arg-type]


def test_power_of_choice_is_the_authors(golden: Path) -> None:
    known = case(golden, "selection_pow_d")
    h, losses, sizes = known.hyper, known.arrays["loss"].tolist(), known.arrays["n_k"].tolist()
    for r, wanted in enumerate(known.arrays["expected_pow-d/selected"].tolist()):
        asked: list[int] = []
        rng = np.random.RandomState(100 + r)
        chosen = accord.power_of_choice(h["m"], h["d"]).choose(draw(h["clients"], rng, losses, sizes, asked))
        assert chosen == wanted
        assert asked == known.arrays["expected_pow-d/candidates"][r].tolist()


def test_uniform_sampling_is_fedsols(golden: Path) -> None:
    """Its program draws with numpy's old generator, seeded by the round: the same clients from the same stream."""
    known = case(golden, "client_sampling")
    for name, wanted in known.arrays.items():
        if name.startswith("expected_fedsol/"):
            population, ratio = (part[1:] for part in name.removeprefix("expected_fedsol/").split("_"))
            for r, clients in enumerate(wanted.tolist()):
                select = accord.uniform(max(int(int(population) * float(ratio)), 1))
                assert select.choose(draw(int(population), np.random.RandomState(r), [])) == sorted(clients)


def test_table_six_trains_the_worst_of_a_uniform_draw() -> None:
    losses = [float(k % 7) for k in range(40)]
    rng, same = np.random.default_rng(3), np.random.default_rng(3)
    chosen = accord.power_of_choice(10, 2, "table6").choose(draw(40, rng, losses))
    drawn = [int(k) for k in same.choice(40, 10, replace=False)]
    assert len(chosen) == 2
    assert set(chosen) <= set(drawn)
    assert min(losses[k] for k in chosen) >= max(losses[k] for k in drawn if k not in chosen)
    everyone = accord.power_of_choice(10, 10, "table6").choose(draw(40, np.random.default_rng(3), losses))
    assert sorted(everyone) == sorted(drawn)  # d = 10 is FedAvg


@pytest.mark.parametrize("text", ["power_of_choice(5, 3)", "power_of_choice(3, 5, table6)"])
def test_power_of_choice_refuses_to_keep_more_than_it_draws(text: str) -> None:
    with pytest.raises(ValueError, match="the number drawn must be at least the number kept"):
        accord.read(text)


def test_power_of_choice_refuses_what_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="draws more clients than the 2 there are with samples"):
        accord.power_of_choice(1, 3).choose(draw(4, np.random.default_rng(0), [0.0] * 4, [5, 0, 0, 7]))


def test_groups_come_in_their_share() -> None:
    select = accord.groups(share=0.1, probability=0.5)
    inside = set(select.members(100))
    assert len(inside) == 10
    assert inside == set(accord.groups(share=0.1, probability=0.9, count=3).members(100))
    assert inside != set(accord.groups(share=0.1, seed=1).members(100))
    firsts = [accord.groups(0.1, 0.5, 1).choose(draw(100, np.random.default_rng(r), []))[0] for r in range(2000)]
    assert abs(np.mean([k in inside for k in firsts]) - 0.5) < 0.05
    rare = [accord.groups(0.3, 0.0001).choose(draw(100, np.random.default_rng(r), [])) for r in range(50)]
    assert not set(accord.groups(0.3).members(100)) & {k for chosen in rare for k in chosen}
    assert all(len(set(chosen)) == 10 for chosen in rare)


def test_groups_refuse_what_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="only 2 of 20 can be drawn"):
        accord.groups(share=0.1, probability=1.0, count=5).choose(draw(20, np.random.default_rng(0), []))


# --- personal models -------------------------------------------------------------------------------------------------------------------


def test_knnper(golden: Path) -> None:
    """FedSOL's form: fine-tuned first, then half the vote and half the logits."""
    known = case(golden, "knnper_fedsol")
    h, x, y = known.hyper, known.arrays["x"], known.arrays["y"]
    algorithm = accord.knnper(h["k"], h["weight"], epochs=h["ft_epochs"]) + known.rule()
    flat = accord.Flat(tiny(known))
    own = [accord.Batch(x[b], y[b]) for b in h["batch_order"][: len(h["batch_order"]) // h["epochs"]]]
    client = client_at(algorithm, tiny(known), flat.w.clone(), flat.w.clone())
    client._data = lambda size: iter(own)
    predict = algorithm.personal.fit(client, lambda epochs: own * epochs)
    compare(known, flat.layout, client.w, "expected/")
    with torch.no_grad():
        scores = torch.cat([predict(x[b]) for b in h["test_batches"]])
    limits = known.about["tolerance"]
    torch.testing.assert_close(scores, known.arrays["message/output"], rtol=limits["rtol"], atol=limits["atol"])


@pytest.mark.parametrize("mix", ["logits", "probs"])
def test_knnper_without_weight_is_the_model(mix: str) -> None:
    algorithm = accord.fedavg() + accord.knn_per(weight=0.0, epochs=0, mix=mix)  # type: ignore[arg-type]
    w = accord.Flat(net()).w.clone()
    client, own = client_at(algorithm, net(), w, w), [accord.Batch(*b) for b in batches(2)]
    client._data = lambda size: iter(own)
    predict, x = algorithm.personal.fit(client, lambda epochs: own), batches(1, seed=5)[0][0]
    with torch.no_grad():
        found, wanted = predict(x), net().eval()(x).logits
    close(found, wanted if mix == "logits" else wanted.log_softmax(-1), 1e-12)


def test_knnper_votes_with_probabilities_and_remembers_no_more_than_it_may() -> None:
    algorithm = accord.fedavg() + accord.knn_per(k=50, weight=1.0, epochs=0, mix="probs", capacity=3)
    w = accord.Flat(net()).w.clone()
    client, own = client_at(algorithm, net(), w, w), [accord.Batch(*b) for b in batches(4)]
    client._data, client.rng = lambda size: iter(own), torch.Generator().manual_seed(0)
    with torch.no_grad():
        p = algorithm.personal.fit(client, lambda epochs: own)(batches(1, seed=5)[0][0]).exp()
    close(p.sum(1), torch.ones(len(p), dtype=torch.float64), 1e-9)
    assert int((p > 1e-12).sum(1).max()) <= 3


def test_perfedavg(golden: Path) -> None:
    known = case(golden, "perfedavg")
    deal = [(known.arrays["x"][b], known.arrays["y"][b]) for pair in known.hyper["pairs"] for b in pair]
    layout = accord.Flat(tiny(known)).layout
    for pairs in (1, 2, len(deal) // 2):
        reply = accord.local_round(accord.perfedavg(0.01) + known.rule(), tiny(known), deal[: 2 * pairs])
        prefix = f"expected/{pairs}/" if 2 * pairs < len(deal) else "expected/"
        compare(known, layout, reply.w, prefix)
    odd = accord.local_round(accord.perfedavg(0.01) + known.rule(), tiny(known), deal[:3])
    compare(known, layout, odd.w, "expected/1/")  # a batch without a partner moves nothing


def test_finetuning_keeps_the_algorithms_parts_when_asked() -> None:
    algorithm = accord.perfedavg() + accord.sgd(lr=0.1, momentum=0.0)
    w, own = accord.Flat(net()).w.clone(), [accord.Batch(*b) for b in batches(2)]
    client = client_at(algorithm, net(), w, w)
    algorithm.personal.fit(client, lambda epochs: own)
    wanted = accord.local_round(algorithm, net(), [(b.x, b.y) for b in own], w0=w)
    assert client.w.equal(wanted.w)


def test_local_models_go_on_from_where_they_stopped() -> None:
    """Two rounds alone are two epochs of plain training with a fresh momentum in between; the global model stands still."""
    algorithm = accord.local_only() + accord.sgd(lr=0.1)
    deal = batches(3)
    first = accord.local_round(algorithm, net(), deal)
    second = accord.local_round(algorithm, net(), deal, kept=first.kept, round=1)
    plain = accord.fedavg() + accord.sgd(lr=0.1)
    wanted = accord.local_round(plain, net(), deal, w0=accord.local_round(plain, net(), deal).w)
    assert second.w.equal(wanted.w)
    w = accord.Flat(net()).w.clone()
    assert accord.server_step(algorithm, w, [first, second])[0].equal(w)


def test_local_models_in_a_run() -> None:
    data, module = federation(), net()
    server = train(accord.local_only() + accord.sgd(lr=0.1, batch=5), module, data, 2)
    assert server.w.equal(accord.Flat(net()).w)


def test_own_says_when_nobody_has_a_model_of_their_own() -> None:
    algorithm = accord.fedavg() + accord.own()
    w = accord.Flat(net()).w.clone()
    with pytest.raises(ValueError, match="add `alone`"):
        algorithm.personal.fit(client_at(algorithm, net(), w, w), lambda epochs: [])


def test_fedbabu_tunes_the_whole_model() -> None:
    algorithm = accord.fedbabu(epochs=1) + accord.sgd(lr=0.1)
    w = accord.Flat(net()).w.clone()
    client = client_at(algorithm, net(), w, w)
    algorithm.personal.fit(client, lambda epochs: [accord.Batch(*b) for b in batches(2)])
    for span in client.layout.spans("head"):
        assert not client.w[span].equal(w[span])
