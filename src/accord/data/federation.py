"""A federation: training samples, whose they are, and what everyone is tested on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from accord.data.augment import Augment
from accord.data.pool import Batch, Pool
from accord.data.shards import Shards

if TYPE_CHECKING:
    from accord.data.arrays import Array
    from accord.data.partition import Split

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
        samples = len(index)
        a_pass = passes(samples, size, drop_last)
        left = steps if steps is not None else (epochs or 0) * a_pass
        while left > 0 and a_pass:
            now = min(left, a_pass)
            order = torch.randperm(samples, generator=rng)
            order = index.index_select(0, order if now * size >= samples else order[: now * size])
            yield from self.train.batches(order, size, rng)
            left -= now

    def steps(self, client: int, *, size: int, epochs: int, drop_last: bool = False) -> int:
        """How many batches `batches` yields in so many epochs."""
        return epochs * passes(len(self.clients[client]), size, drop_last)

    @classmethod
    def from_arrays(
        cls,
        x: Array | Sequence[tuple[Array, Array]],
        y: Array | None = None,
        *,
        split: Split | str = "iid",
        clients: int | None = None,
        test: tuple[Array, Array] | None = None,
        channels: Literal["first", "last"] | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        augment: tuple[Augment, ...] = (),
        columns: Mapping[str, NDArray[np.generic]] | None = None,
        seed: int = 0,
        local_test: float = 0.0,
        aligned_test: int = 0,
        held_out: int = 0,
    ) -> Federation:
        """A federation of your own arrays: all samples with a split, or one `(x, y)` per client, the held-out ones last.

        Arrays of four dimensions are images; say with `channels` where their channels are. uint8 pixels are divided by 255.
        Without `test` a tenth of every class is set aside.

        >>> x, y = np.random.rand(200, 8).astype("float32"), np.arange(200) % 4
        >>> federation = Federation.from_arrays(x, y, split="dirichlet(0.5)", clients=5)
        >>> len(federation.train), len(federation.test), federation.population
        (180, 20, 5)
        >>> federation = Federation.from_arrays([(x[:50], y[:50]), (x[50:], y[50:])], test=(x, y))
        >>> federation.clients.sizes.tolist()
        [50, 150]
        """
        from accord.data.arrays import from_arrays
        from accord.data.build import Plan, deal

        loaded, chosen = from_arrays(x, y, split, test, channels, (mean, std), augment, columns or {})
        return deal(loaded, Plan(chosen, clients, seed, local_test, aligned_test, held_out), "arrays")

    @property
    def label_counts(self) -> torch.Tensor:
        """How many training labels of each class each client has: `(clients, classes)`."""
        y = self.train.y[self.clients.order]
        at = (self.clients.owner.view(-1, *[1] * (y.dim() - 1)) * self.classes + y).flatten()
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
    def mean_size(self) -> float:
        """The mean number of training samples of the clients that take part."""
        return float(self.clients.starts[self.population]) / max(self.population, 1)

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
