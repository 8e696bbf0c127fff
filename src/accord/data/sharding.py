"""Label skew by shards: each client gets the same number of equal pieces of single classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from accord.check import Count
from accord.data.dirichlet import members
from accord.data.partition import Columns, Lists, Split
from accord.recipe import named


class Sharding(Split):
    """Every class is cut into equal shards and every client gets `per_client` of them, so at most that many classes.

    McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017, in FedBABU's form.
    Where the classes do not divide the shards evenly, the largest classes are cut into one shard more, so that every
    sample is dealt exactly once.

    >>> from accord.data.sharding import Sharding
    >>> labels = np.arange(200) % 10
    >>> lists = Sharding(2).cut(labels, 20, np.random.RandomState(0), {})
    >>> {len(each) for each in lists}, max(len(set(labels[each])) for each in lists)
    ({10}, 2)
    """

    per_client: Count = 2

    def cut(self, labels: NDArray[np.int64], clients: int, rng: np.random.RandomState, columns: Columns) -> Lists:
        shards = self.shards([own for own in members(labels) if len(own)], clients)
        turns = np.repeat(np.arange(len(shards)), [len(of) for of in shards])
        rng.shuffle(turns)
        drawn = [[shards[c].pop(rng.choice(len(shards[c]), replace=False)) for c in mine] for mine in turns.reshape(clients, -1)]
        return [np.concatenate(each) for each in drawn]

    def shards(self, classes: Lists, clients: int) -> list[Lists]:
        """The pieces of every class: `clients * per_client` in all."""
        each, more = divmod(clients * self.per_client, len(classes))
        if not each:
            raise ValueError(
                f"shards(per_client={self.per_client}) deals {clients * self.per_client} shards to {clients} clients, "
                f"fewer than the {len(classes)} classes: raise per_client or use more clients"
            )
        count = np.full(len(classes), each)
        count[np.argsort([-len(own) for own in classes], kind="stable")[:more]] += 1
        short = next((own for own, n in zip(classes, count, strict=True) if len(own) < n), None)
        if short is not None:
            raise ValueError(
                f"shards(per_client={self.per_client}) for {clients} clients cuts a class of {len(short)} samples into "
                f"{count.max()} shards: lower per_client or use fewer clients"
            )
        return [np.array_split(own, n) for own, n in zip(classes, count, strict=True)]


named(Sharding, "shards")
