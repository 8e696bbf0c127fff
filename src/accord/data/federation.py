"""A federation: training samples, whose they are, and what everyone is tested on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from accord.data.pool import Batch, Pool
from accord.data.shards import Shards

__all__ = ["Batch", "Federation", "Pool", "Shards"]


@dataclass(frozen=True, eq=False)
class Federation:
    """The data of all clients, in a few tensors that nobody writes to.

    >>> from accord.data import federate
    >>> digits = federate("digits", "dirichlet(0.1)", 20, seed=1)
    >>> len(digits.clients), len(digits.train), len(digits.test), digits.classes, digits.train.shape
    (20, 1437, 360, 10, (64,))
    >>> batch = next(digits.batches(3, torch.Generator().manual_seed(0), size=10, epochs=1))
    >>> batch.x.shape[1:], batch.y.dtype
    (torch.Size([64]), torch.int64)
    """

    train: Pool
    clients: Shards
    population: int
    classes: int
    test: Pool
    own: Pool
    tests: Shards
    about: Mapping[str, Any] = field(default_factory=dict)

    def batches(
        self,
        client: int,
        rng: torch.Generator,
        *,
        size: int,
        epochs: int | None = None,
        steps: int | None = None,
        drop_last: bool = False,
    ) -> Iterator[Batch]:
        """A client's training batches: `epochs` passes, or exactly `steps` batches, in an order drawn anew for each pass.

        With `drop_last` an incomplete last batch is left out, unless it is all that the client has.
        A client without samples has no batches.
        """
        index = self.clients[client]
        a_pass = passes(len(index), size, drop_last)
        left = steps if steps is not None else (epochs or 0) * a_pass
        changes = rng if self.train.augment else None
        while left > 0 and a_pass:
            now = min(left, a_pass)
            order = index[torch.randperm(len(index), generator=rng).to(index.device)]
            yield from self.train.batches(order[: now * size], size, changes)
            left -= now

    def steps(self, client: int, *, size: int, epochs: int, drop_last: bool = False) -> int:
        """How many batches `batches` yields in so many epochs."""
        start, end = self.clients.starts[client : client + 2].tolist()
        return epochs * passes(end - start, size, drop_last)

    @cached_property
    def label_counts(self) -> torch.Tensor:
        """How many training samples of each class each client has: `(clients, classes)`."""
        at = self.clients.owner * self.classes + self.train.y[self.clients.order]
        return torch.bincount(at, minlength=len(self.clients) * self.classes).reshape(len(self.clients), self.classes)

    @cached_property
    def heterogeneity(self) -> float:
        r"""How far the clients' label distributions lie from the pooled one: $\frac1N\sum_k \frac12\|p_k-p\|_1$, 0 for alike."""
        counts = self.label_counts[: self.population].double()
        held = counts[counts.sum(1) > 0]
        if not len(held):
            return 0.0
        pooled = held.sum(0) / held.sum()
        return float((held / held.sum(1, keepdim=True) - pooled).abs().sum(1).mean() / 2)

    @cached_property
    def fingerprint(self) -> str:
        """A short text that two federations share if and only if their samples are split alike."""
        digest = hashlib.sha256(f"{self.population} {self.classes} {self.about.get('shift', '')}".encode())
        for tensor in (self.clients.order, self.clients.starts, self.tests.order, self.tests.starts, self.train.y, self.test.y):
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes() + b"|")
        return digest.hexdigest()[:12]


def passes(samples: int, size: int, drop_last: bool) -> int:
    """The number of batches in one pass.

    >>> passes(25, 10, False), passes(25, 10, True), passes(5, 10, True), passes(0, 10, False)
    (3, 2, 1, 0)
    """
    return max(samples // size, min(samples, 1)) if drop_last else -(-samples // size)
