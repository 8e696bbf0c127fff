"""Splits: exact cover, least sizes, determinism, the authors' own lists, and refusals in finite time."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.data import Dirichlet, Groups, Iid, Natural, Quantity, Sharding, Split, read_split
from accord.recipe import names, read


def cut(split: Split, labels: np.ndarray, clients: int, seed: int = 0, **columns: np.ndarray) -> list[np.ndarray]:
    return split.cut(labels, clients, np.random.RandomState(seed), columns)


def covers(lists: list[np.ndarray], samples: int) -> bool:
    return sorted(np.concatenate(lists).tolist()) == list(range(samples))


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int, int]:
    classes = draw(st.integers(1, 6))
    clients = draw(st.integers(1, 12))
    samples = draw(st.integers(clients * 20, 600))
    rng = np.random.RandomState(draw(st.integers(0, 999)))
    return rng.randint(classes, size=samples), clients, draw(st.integers(0, 999))


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from([0.3, 1.0, 100.0]), st.sampled_from(["fedalign", "fedsol"]))
def test_dirichlet_deals_every_sample_once(problem, alpha, variant):
    labels, clients, seed = problem
    lists = cut(Dirichlet(alpha, variant=variant), labels, clients, seed)
    assert len(lists) == clients
    assert covers(lists, len(labels))
    assert min(map(len, lists)) >= 1


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(1, 4))
def test_dirichlet_keeps_the_least_size_or_refuses(problem, least):
    labels, clients, seed = problem
    lists = []
    with contextlib.suppress(ValueError):
        lists = cut(Dirichlet(0.5, 5 * least, attempts=50), labels, clients, seed)
    assert all(len(each) >= 5 * least for each in lists)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_iid_and_quantity_deal_every_sample_once(problem):
    labels, clients, seed = problem
    equal = cut(Iid(), labels, clients, seed)
    assert covers(equal, len(labels))
    assert max(map(len, equal)) - min(map(len, equal)) <= 1
    unequal = cut(Quantity(1.0, 1), labels, clients, seed)
    assert covers(unequal, len(labels))
    assert min(map(len, unequal)) >= 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 9), st.integers(1, 20), st.integers(1, 4), st.integers(0, 99))
def test_shards_deal_every_sample_once_and_few_classes(classes, clients, per_client, seed):
    labels = np.random.RandomState(seed).permutation(np.arange(classes * 100) % classes)
    if clients * per_client < classes:
        with pytest.raises(ValueError, match="fewer than the"):
            cut(Sharding(per_client), labels, clients, seed)
        return
    lists = cut(Sharding(per_client), labels, clients, seed)
    assert covers(lists, len(labels))
    assert max(len(set(labels[each])) for each in lists) <= per_client
    assert min(map(len, lists)) >= 1


def test_shards_of_the_published_setting_that_repeats_clients_are_distinct():
    lists = cut(Sharding(2), np.arange(9000) % 9, 200)
    assert covers(lists, 9000)


@pytest.mark.parametrize(
    "text", ["iid", "dirichlet(0.1)", "dirichlet(0.1, variant=fedsol)", "dirichlet(0.5, variant=fedconst)", "shards(2)", "quantity(0.5)"]
)
def test_a_seed_fixes_the_lists(text):
    labels = np.arange(3000) % 10
    split = read_split(text)
    first, again, other = (cut(split, labels, 20, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_every_split_is_its_text():
    examples = {"natural": "natural(writer)", "groups": "groups(3, within=dirichlet(0.2))"}
    for name in names("split"):
        split = read_split(examples.get(name, name))
        assert read(repr(split), "split") == split
        assert hash(split) == hash(read(repr(split), "split"))


@pytest.mark.parametrize(
    ("case", "split", "seed"),
    [
        ("partition_fedsol_lda_a0.1_sorted", Dirichlet(0.1, 10, "fedsol"), 19940817),
        ("partition_fedml_a0.5", Dirichlet(0.5, 10, "fedalign"), 10),
        ("partition_fedsol_sharding_s2_sorted", Sharding(2), 19940817),
    ],
)
def test_lists_equal_those_of_the_authors_programs(golden: Path, case: str, split: Split, seed: int):
    stored = np.load(golden / case / "tensors.npz")
    rng = np.random.RandomState(seed)
    lists = split.cut(stored["labels"], len(stored["sizes"]), rng, {})
    assert [len(each) for each in lists] == stored["sizes"].tolist()
    assert np.array_equal(np.concatenate(lists), stored["indices"])
    assert rng.rand() == stored["rng_next_uniform_after"]


def test_fedconst_counts_equal_those_of_the_authors_program(golden: Path):
    counts = np.load(golden / "fedconst-partition-a0.5-n10-c10" / "tensors.npz")["counts"]
    labels = np.repeat(np.arange(10), 5000)
    lists = cut(Dirichlet(0.5, variant="fedconst"), labels, 10, 2023)
    assert np.array_equal([np.bincount(labels[each], minlength=10) for each in lists], counts)


def test_fedconst_deals_no_sample_twice():
    lists = cut(Dirichlet(0.2, 1, "fedconst"), np.arange(5000) % 10, 10)
    dealt = np.concatenate(lists)
    assert len(np.unique(dealt)) == len(dealt) <= 5000


@pytest.mark.parametrize(("clients", "samples"), [(20, 1437), (100, 1437), (10, 50_000), (100, 50_000)])
def test_the_default_dirichlet_split_succeeds(clients: int, samples: int):
    lists = cut(Dirichlet(0.1), np.arange(samples) % 10, clients, 3)
    assert covers(lists, samples)


def test_a_split_that_cannot_be_made_says_why():
    labels = np.arange(400) % 2
    with pytest.raises(
        ValueError, match=r"fewer than min_size=15 samples in 20 attempts: raise alpha, lower min_size or use fewer clients"
    ):
        cut(Dirichlet(0.01, 15, attempts=20), labels, 20)
    with pytest.raises(ValueError, match=r"20 clients with min_size=30 need 600 samples and there are 400"):
        cut(Dirichlet(1.0, 30), labels, 20)
    with pytest.raises(ValueError, match="raise alpha"):
        cut(Quantity(0.01, 15), labels, 20)
    with pytest.raises(ValueError, match="lower per_client"):
        cut(Sharding(50), labels, 20)
    with pytest.raises(ValueError, match="needs at least 4 clients"):
        cut(Groups(4), labels, 2)


def test_natural_clients_are_the_values_of_a_column():
    writers = np.array(["c", "a", "b", "a", "c", "c"])
    labels = np.zeros(6, int)
    assert [each.tolist() for each in cut(Natural("writer"), labels, 3, writer=writers)] == [[1, 3], [2], [0, 4, 5]]
    assert [each.tolist() for each in cut(Natural("writer", 2), labels, 2, writer=writers)] == [[1, 3], [0, 4, 5]]
    with pytest.raises(ValueError, match=r"has 2 clients, not 3: ask for at most 2"):
        cut(Natural("writer", 2), labels, 3, writer=writers)
    with pytest.raises(ValueError, match=r"no such column \(did you mean 'writer'\?\); write writer"):
        cut(Natural("writr"), labels, 3, writer=writers)
    with pytest.raises(ValueError, match="no columns beside"):
        cut(Natural("writer"), labels, 3)


@pytest.mark.parametrize(
    "text", ["dirichlet(-1)", "dirichlet(0)", "dirichlet(nan)", "shards(0)", "dirichlet(0.1, variant=fedslo)", "dirichlt(0.1)"]
)
def test_wrong_arguments_are_named(text):
    with pytest.raises(ValueError, match=r"alpha|per_client|fedsol|dirichlet"):
        read_split(text)
