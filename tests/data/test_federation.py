"""Federations: batches, own test data, held-out clients, fingerprints, and many clients."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from accord.data import Crop, Federation, Flip, Shards, SyntheticImages, federate
from accord.data import pool as pools


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def digits() -> Federation:
    return federate("digits", "dirichlet(0.1)", 20, seed=1)


def test_a_pass_holds_every_sample_once(digits: Federation):
    for client in range(20):
        batches = list(digits.batches(client, generator(), size=10, epochs=1))
        rows = torch.cat([x for x, _ in batches])
        assert torch.equal(rows.sum(0), digits.train.x[digits.clients[client]].sum(0)) or torch.allclose(
            rows.sort(0).values, digits.train.x[digits.clients[client]].sort(0).values
        )
        assert [len(y) for _, y in batches[:-1]] == [10] * (len(batches) - 1)
        assert len(batches) == digits.steps(client, size=10, epochs=1, drop_last=False)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 7, 10, 64, 5000])
def test_steps_counts_what_batches_yields(digits: Federation, size: int, drop_last: bool):
    for client in (0, 5, 19):
        found = [len(y) for _, y in digits.batches(client, generator(), size=size, epochs=3, drop_last=drop_last)]
        assert len(found) == digits.steps(client, size=size, epochs=3, drop_last=drop_last)
        if drop_last and len(digits.clients[client]) >= size:
            assert set(found) == {size}
        else:
            assert sum(found) == 3 * len(digits.clients[client])


@pytest.mark.parametrize("steps", [0, 1, 3, 50])
def test_exactly_so_many_steps(digits: Federation, steps: int):
    found = [y for _, y in digits.batches(2, generator(), size=16, steps=steps)]
    assert len(found) == steps
    by_epochs = [y for _, y in digits.batches(2, generator(), size=16, epochs=50)]
    assert all(torch.equal(a, b) for a, b in zip(found, by_epochs, strict=False))


def test_the_generator_decides_the_order(digits: Federation):
    first, again, other = (torch.cat([x for x, _ in digits.batches(0, generator(s), size=8, epochs=2)]) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_images_come_channels_last_as_views_of_one_chunk(monkeypatch: pytest.MonkeyPatch):
    federation = federate(SyntheticImages(300, (3, 16, 16), 5), "iid", 3)
    whole = list(federation.batches(1, generator(), size=16, epochs=1))
    assert all(x.is_contiguous(memory_format=torch.channels_last) and x.dtype == torch.float32 for x, _ in whole)
    assert whole[0].x.untyped_storage().data_ptr() == whole[1].x.untyped_storage().data_ptr()
    monkeypatch.setattr(pools, "CHUNK", 1)
    small = list(federation.batches(1, generator(), size=16, epochs=1))
    assert all(torch.equal(a.x, b.x) and torch.equal(a.y, b.y) for a, b in zip(whole, small, strict=True))


def test_a_client_without_samples_has_no_batches(digits: Federation):
    empty = replace(digits, clients=Shards.of([[], [1, 2]]), population=2)
    assert list(empty.batches(0, generator(), size=4, epochs=2)) == []
    assert list(empty.batches(0, generator(), size=4, steps=5)) == []
    assert empty.steps(0, size=4, epochs=2, drop_last=False) == 0


def test_own_test_data_are_apart_from_training_data():
    federation = federate("digits", "dirichlet(0.3)", 15, seed=2, local_test=0.2, held_out=3)
    assert (len(federation.clients), federation.population) == (18, 15)
    seen: set[int] = set()
    for train, test in zip(federation.clients, federation.tests, strict=True):
        assert len(train) >= 1
        assert len(test) == max(1, int(0.2 * (len(train) + len(test))))
        both = {*train.tolist(), *test.tolist()}
        assert len(both) == len(train) + len(test)
        assert not both & seen
        seen |= both
    assert seen == set(range(1437))
    assert federation.own.augment == ()


def test_held_out_clients_are_all_test_data_without_a_fraction():
    federation = federate("digits", "iid", 10, held_out=2)
    assert federation.clients.sizes.tolist()[10:] == [0, 0]
    assert min(federation.tests.sizes.tolist()[10:]) > 100
    assert federation.tests.sizes.tolist()[:10] == [0] * 10


def test_aligned_tests_follow_the_clients_labels():
    federation = federate("digits", "shards(2)", 10, aligned_test=100)
    assert federation.own is federation.test
    for train, test in zip(federation.clients, federation.tests, strict=True):
        mine, drawn = (set(y.tolist()) for y in (federation.train.y[train], federation.test.y[test]))
        assert drawn == mine
        assert 50 <= len(test) <= 100
        assert len(set(test.tolist())) == len(test)


def test_the_fingerprint_tells_splits_apart(digits: Federation):
    again = federate("digits", "dirichlet(0.1)", 20, seed=1)
    assert again.fingerprint == digits.fingerprint
    others = [
        federate("digits", "dirichlet(0.1)", 20, seed=2),
        federate("digits", "dirichlet(0.1)", 20, seed=1, local_test=0.1),
        federate("digits", "dirichlet(0.1)", 19, seed=1, held_out=1),
        federate("digits(seed=5)", "dirichlet(0.1)", 20, seed=1),
    ]
    assert len({digits.fingerprint, *(each.fingerprint for each in others)}) == 5


def test_heterogeneity_grows_as_alpha_falls():
    found = [federate("digits", split, 20).heterogeneity for split in ("iid", "dirichlet(1.0)", "dirichlet(0.1)", "shards(1)")]
    assert found == sorted(found)
    assert found[0] < 0.2
    assert 0.85 < found[3] <= 1


def test_groups_turn_their_images():
    plain = federate("digits(image=True)", "iid", 8, seed=4)
    turned = federate("digits(image=True)", "groups(4)", 8, seed=4)
    for client in range(8):
        index = turned.clients[client]
        assert torch.equal(index, plain.clients[client])
        assert torch.equal(turned.train.x[index], plain.train.x[index].rot90(client % 4, (1, 2)))
    angles = [torch.stack([(t == p.rot90(k, (0, 1))).all() for t, p in zip(turned.test.x, plain.test.x, strict=True)]) for k in range(4)]
    assert [int(a.sum()) for a in angles] == [90] * 4
    assert turned.fingerprint != plain.fingerprint
    with pytest.raises(ValueError, match=r"groups turns images.*\(64,\)"):
        federate("digits", "groups(4)", 8)


def test_a_group_that_is_left_out_is_what_the_others_are_tested_on():
    plain = federate("digits(image=True)", "iid", 6, seed=4)
    turned = federate("digits(image=True)", "groups(4, leave=1)", 6, seed=4)
    for client, quarters in enumerate((0, 2, 3, 0, 2, 3)):
        index = turned.clients[client]
        assert torch.equal(turned.train.x[index], plain.train.x[index].rot90(quarters, (1, 2)))
    assert torch.equal(turned.test.x, plain.test.x.rot90(1, (1, 2)))
    assert turned.fingerprint != federate("digits(image=True)", "groups(4, leave=2)", 6, seed=4).fingerprint
    for wrong in ("groups(4, leave=4)", "groups(1, leave=0)"):
        with pytest.raises(ValueError, match="leave one of at least two groups"):
            federate("digits(image=True)", wrong, 6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"clients": 2000}, r"2000 clients cannot share 1437 samples: use at most 1437"),
        ({"clients": 0}, "at least one"),
        ({"clients": None}, "needs a number of clients"),
        ({"clients": 5, "local_test": 1.0}, "fraction from 0 to below 1"),
        ({"clients": 5, "held_out": -1}, "held_out is -1"),
        ({"clients": 5, "local_test": 0.1, "aligned_test": 10}, "exclude each other"),
    ],
)
def test_wrong_numbers_are_refused(arguments: dict, said: str):
    with pytest.raises(ValueError, match=said):
        federate("digits", "iid", **arguments)


def test_natural_clients_of_fedprox_data():
    federation = federate("synthetic(1, 1, clients=12)", "natural(client)")
    assert federation.population == 12
    assert federation.heterogeneity > federate("synthetic(0, 0, clients=12, iid=True)", "natural(client)").heterogeneity


def test_a_hundred_thousand_clients_are_cheap():
    x, y = torch.zeros(300_000, 4), torch.arange(300_000) % 10
    start = time.perf_counter()
    federation = Federation.from_arrays(x, y, clients=100_000, test=(x[:10], y[:10]))
    assert federation.heterogeneity > 0
    assert federation.steps(99_999, size=2, epochs=1, drop_last=False) == 2
    seconds = time.perf_counter() - start
    held = io.BytesIO()
    torch.save(federation, held)
    assert held.tell() < 16_000_000
    assert seconds < 20


def test_a_federation_survives_being_sent():
    federation = federate(SyntheticImages(40, (3, 8, 8), 4, augment=(Crop(1), Flip())), "iid", 4)
    next(federation.batches(0, generator(), size=4, epochs=1))
    held = io.BytesIO()
    torch.save(federation, held)
    held.seek(0)
    sent = torch.load(held, weights_only=False)
    assert sent.fingerprint == federation.fingerprint
    for a, b in zip(federation.batches(2, generator(), size=4, epochs=2), sent.batches(2, generator(), size=4, epochs=2), strict=True):
        assert torch.equal(a.x, b.x)


def test_arrays_with_channels_first_or_last():
    x = np.random.RandomState(0).randint(256, size=(40, 3, 6, 5)).astype(np.uint8)
    y = np.arange(40) % 4
    first = Federation.from_arrays(x, y, clients=2, channels="first")
    last = Federation.from_arrays(x.transpose(0, 2, 3, 1), y, clients=2, channels="last")
    assert first.train.shape == last.train.shape == (3, 6, 5)
    assert torch.equal(first.train.gather(torch.arange(5)).x, last.train.gather(torch.arange(5)).x)
    with pytest.raises(ValueError, match="channels='first' or 'last'"):
        Federation.from_arrays(x, y, clients=2)


def test_arrays_per_client_keep_their_owners():
    pairs = [(np.full((n, 3), float(n), np.float32), np.arange(n) % 2) for n in (4, 7, 5)]
    federation = Federation.from_arrays(pairs, test=pairs[0], held_out=1)
    assert federation.population == 2
    assert federation.clients.sizes.tolist() == [4, 7, 0]
    assert federation.tests.sizes.tolist() == [0, 0, 5]
    assert all(float(x.min()) == float(x.max()) == 7 for x, _ in federation.batches(1, generator(), size=3, epochs=1))


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.zeros((10, 2)), np.zeros(9, int), "10 inputs and 9 labels"),
        (np.zeros((10, 2)), np.linspace(0, 1, 10), "must be whole numbers from 0"),
        (np.zeros((10, 2)), np.full(10, -1), "must be whole numbers from 0, and there is -1"),
        (np.full((10, 2), np.nan), np.zeros(10, int), "NaN or infinity"),
        (np.zeros((10, 2)), None, "give the labels as y"),
    ],
)
def test_wrong_arrays_are_named(x: np.ndarray, y: np.ndarray | None, said: str):
    with pytest.raises(ValueError, match=said):
        Federation.from_arrays(x, y, clients=2)
