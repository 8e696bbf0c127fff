"""Building a federation: load, split, set test data aside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from accord.data.federation import Federation
from accord.data.partition import Lists, Natural, Split
from accord.data.read import read_data, read_split
from accord.data.shards import Shards
from accord.data.source import Loaded, Source


def federate(
    source: Source | str,
    split: Split | str,
    clients: int | None = None,
    *,
    seed: int = 0,
    local_test: float = 0.0,
    aligned_test: int = 0,
    held_out: int = 0,
    data_dir: Path | str | None = None,
) -> Federation:
    """Load a data set and deal it to clients.

    `clients` take part in training and `held_out` more never do; `natural` splits have as many as the data when `clients` is
    None. Every client keeps `local_test` of its own samples for testing (at least one, and at least one stays for training), or is
    tested on about `aligned_test` samples of the global test set drawn with the client's own label distribution (FedSOL). All
    that a held-out client has is its test data when `local_test` is 0.

    >>> federation = federate("digits", "shards(2)", 10, seed=3, local_test=0.2, held_out=2)
    >>> len(federation.clients), federation.population, len(federation.clients[0]), len(federation.tests[0])
    (12, 10, 96, 24)
    """
    source = read_data(source) if isinstance(source, str) else source
    split = read_split(split) if isinstance(split, str) else split
    loaded = source.load(None if data_dir is None else Path(data_dir))
    return deal(
        loaded, split, clients, about={"data": repr(source)}, seed=seed, local_test=local_test, aligned_test=aligned_test, held_out=held_out
    )


def deal(
    loaded: Loaded,
    split: Split,
    clients: int | None,
    *,
    about: dict[str, Any],
    seed: int,
    local_test: float,
    aligned_test: int,
    held_out: int,
) -> Federation:
    """A data set in memory, dealt to clients."""
    population = wanted(loaded, split, clients, held_out)
    check_tests(local_test, aligned_test)
    rng = np.random.RandomState(seed)
    lists = split.cut(loaded.y.numpy(), population + held_out, rng, loaded.columns)
    loaded, shift = split.shift(loaded, lists, rng)
    pool, test = loaded.train(), loaded.test()
    if aligned_test:
        own, lists, tests = test, lists, aligned(loaded, lists, aligned_test, rng)
    else:
        own = replace(pool, augment=())
        lists, tests = set_aside(lists, local_test, population, rng)
    about = {**about, "split": repr(split), "seed": seed, "clients": population, "held_out": held_out, "shift": shift}
    about |= {"local_test": local_test, "aligned_test": aligned_test}
    return Federation(pool, Shards.of(lists), population, loaded.classes, test, own, Shards.of(tests), about)


def wanted(loaded: Loaded, split: Split, clients: int | None, held_out: int) -> int:
    """How many clients take part, once the numbers are seen to fit the data."""
    if held_out < 0:
        raise ValueError(f"held_out is {held_out}; it must be a whole number of clients, at least 0")
    if clients is None:
        if not isinstance(split, Natural):
            raise ValueError(f"{split!r} needs a number of clients; only natural(column) brings its own")
        clients = len(split.groups(loaded.columns)) - held_out
    if clients < 1:
        raise ValueError(f"clients is {clients}; there must be at least one that takes part in training")
    if clients + held_out > len(loaded.y):
        raise ValueError(f"{clients + held_out} clients cannot share {len(loaded.y)} samples: use at most {len(loaded.y)} clients")
    return clients


def check_tests(local_test: float, aligned_test: int) -> None:
    """Refuse fractions that are none, and both kinds of own test data at once."""
    if not 0 <= local_test < 1:
        raise ValueError(f"local_test is {local_test!r}; it must be a fraction from 0 to below 1")
    if aligned_test < 0:
        raise ValueError(f"aligned_test is {aligned_test!r}; it must be a whole number of samples, at least 0")
    if local_test and aligned_test:
        raise ValueError(f"local_test={local_test} and aligned_test={aligned_test} exclude each other: set one of them to 0")


def set_aside(lists: Lists, fraction: float, population: int, rng: np.random.RandomState) -> tuple[Lists, Lists]:
    """Training and test lists of every client."""
    train, test = [], []
    for client, own in enumerate(lists):
        size = min(max(1, int(fraction * len(own))), len(own) - 1) if fraction and len(own) else 0
        if client >= population and not fraction:
            size = len(own)
        mixed = rng.permutation(own) if 0 < size < len(own) else own
        train.append(mixed[: len(own) - size])
        test.append(mixed[len(own) - size :])
    return train, test


def aligned(loaded: Loaded, lists: Lists, size: int, rng: np.random.RandomState) -> Lists:
    """For each client about `size` test samples in its own label proportions; clients may share them."""
    labels, tests = loaded.y.numpy(), loaded.test_y.numpy()
    of = [np.flatnonzero(tests == label) for label in range(loaded.classes)]
    drawn = []
    for own in lists:
        share = np.bincount(labels[own], minlength=loaded.classes) / max(len(own), 1)
        counts = [min(len(each), int(size * p)) for each, p in zip(of, share, strict=True)]
        parts = [rng.choice(each, n, replace=False) for each, n in zip(of, counts, strict=True) if n]
        drawn.append(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
    return drawn
