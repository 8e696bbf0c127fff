"""Building a federation: load, split, set test data aside."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from accord.data.federation import Federation
from accord.data.partition import Lists, Natural, Split
from accord.data.read import read_data, read_split
from accord.data.shards import Shards
from accord.data.source import Loaded, Source
from accord.seeds import numpy_stream


def federate(
    source: Source | str,
    split: Split | str,
    clients: int | None = None,
    *,
    seed: int = 0,
    local_test: float = 0.0,
    aligned_test: int = 0,
    held_out: int = 0,
    fraction: float = 1.0,
    data_dir: Path | str | None = None,
) -> Federation:
    """Load a data set and deal it to clients.

    `clients` take part in training and `held_out` more never do; `natural` splits have as many as the data when `clients` is
    None. Every client keeps `local_test` of its own samples for testing (at least one, and at least one stays for training), or is
    tested on about `aligned_test` samples of the global test set drawn with the client's own label distribution (FedSOL). All
    that a held-out client has is its test data when `local_test` is 0. With `fraction` only that share of the training samples is
    used, drawn by the same seed.

    >>> federation = federate("digits", "shards(2)", 10, seed=3, local_test=0.2, held_out=2)
    >>> len(federation.clients), federation.population, len(federation.clients[0]), len(federation.tests[0])
    (12, 10, 97, 24)
    """
    source = read_data(source) if isinstance(source, str) else source
    split = read_split(split) if isinstance(split, str) else split
    plan = Plan(split, clients, seed, local_test, aligned_test, held_out)
    loaded = source.load(None if data_dir is None else Path(data_dir))
    return deal(share(loaded, fraction, seed), plan, repr(source))


def share(loaded: Loaded, fraction: float, seed: int) -> Loaded:
    """A share of the training samples in their order, at least one; all of them when the fraction is 1."""
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction is {fraction!r}; it must be a number above 0 to 1")
    if fraction == 1:
        return loaded
    count = max(1, round(fraction * len(loaded.y)))
    kept = np.sort(numpy_stream(seed, "fraction").permutation(len(loaded.y))[:count])
    columns = {name: column[kept] for name, column in loaded.columns.items()}
    index = torch.from_numpy(kept)
    return replace(loaded, x=loaded.x[index], y=loaded.y[index], columns=columns)


@dataclass(frozen=True)
class Plan:
    """How a data set is dealt to clients."""

    split: Split
    clients: int | None
    seed: int
    local_test: float
    aligned_test: int
    held_out: int

    def __post_init__(self) -> None:
        if not 0 <= self.local_test < 1:
            raise ValueError(f"local_test is {self.local_test!r}; it must be a fraction from 0 to below 1")
        for name in ("aligned_test", "held_out", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be a whole number, at least 0")
        if self.local_test and self.aligned_test:
            raise ValueError(f"local_test={self.local_test} and aligned_test={self.aligned_test} exclude each other: set one of them to 0")

    def population(self, loaded: Loaded) -> int:
        """How many clients take part, once the numbers are seen to fit the data."""
        clients = self.clients
        if clients is None:
            if not isinstance(self.split, Natural):
                raise ValueError(f"{self.split!r} needs a number of clients; only natural(column) brings its own")
            clients = len(self.split.groups(loaded.columns)) - self.held_out
        if clients < 1:
            raise ValueError(f"clients is {clients}; there must be at least one that takes part in training")
        if clients + self.held_out > len(loaded.y):
            raise ValueError(f"{clients + self.held_out} clients cannot share {len(loaded.y)} samples: use at most {len(loaded.y)} clients")
        return clients


def deal(loaded: Loaded, plan: Plan, name: str) -> Federation:
    """A data set in memory, dealt to clients."""
    population = plan.population(loaded)
    rng = np.random.RandomState(plan.seed)
    lists = plan.split.cut(loaded.y.numpy(), population + plan.held_out, rng, loaded.columns)
    loaded, shift = plan.split.shift(loaded, lists, rng)
    pool, test = loaded.train(), loaded.test()
    if plan.aligned_test:
        own, tests = test, aligned(loaded, lists, plan.aligned_test, rng)
    else:
        own = replace(pool, augment=())
        lists, tests = set_aside(lists, plan.local_test, population, rng)
    about = {"data": name, "split": repr(plan.split), "seed": plan.seed, "clients": population, "held_out": plan.held_out}
    about |= {"local_test": plan.local_test, "aligned_test": plan.aligned_test, "shift": shift}
    return Federation(pool, Shards.of(lists), population, loaded.classes, test, own, Shards.of(tests), about)


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
    if labels.ndim > 1:
        raise ValueError(f"aligned_test={size} draws samples by their label, and these have {labels.shape[1]} each: write local_test")
    of = [np.flatnonzero(tests == label) for label in range(loaded.classes)]
    drawn = []
    for own in lists:
        share = np.bincount(labels[own], minlength=loaded.classes).astype(np.float32) / np.float32(max(len(own), 1))
        counts = [min(len(each), int(np.float32(size) * p)) for each, p in zip(of, share, strict=True)]
        parts = [rng.choice(each, n, replace=False) for each, n in zip(of, counts, strict=True) if len(each)]
        drawn.append(np.concatenate([np.empty(0, dtype=np.int64), *parts]))
    return drawn
