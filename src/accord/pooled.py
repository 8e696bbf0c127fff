"""The reference without federation: all clients' samples in one place."""

from __future__ import annotations

from dataclasses import replace

import torch

from accord.data.federation import Federation
from accord.data.shards import Shards


def pooled(federation: Federation) -> Federation:
    """The same samples with all clients that train joined into client 0, for an upper bound; no tensor is copied but the bounds.

    FedAvg on it is training on the pooled data, with `sgd(persist=True)` without an interruption between rounds. Clients that only
    test keep their data and follow as clients 1, 2, ....

    >>> import accord
    >>> from accord.pooled import pooled
    >>> one = pooled(accord.federate("digits", "dirichlet(0.1)", 20, held_out=2))
    >>> one.population, len(one.clients), len(one.clients[0])
    (1, 3, 1437)
    """
    several = federation.population
    return replace(federation, population=1, clients=joined(federation.clients, several), tests=joined(federation.tests, several))


def joined(shards: Shards, several: int) -> Shards:
    """The first so many lists as one."""
    return Shards(shards.order, torch.cat((shards.starts[:1], shards.starts[several:])))
