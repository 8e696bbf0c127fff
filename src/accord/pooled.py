"""The reference without federation: all clients' samples in one place."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from accord.data.federation import Federation
from accord.data.shards import Shards


def pooled(federation: Federation) -> Federation:
    """The same samples, all those to train on with client 0, in an order that does not depend on the split.

    The other clients have nothing left to train on; what each is tested on, and clients that only test, stay as they are.

    >>> import accord
    >>> from accord.pooled import pooled
    >>> one = pooled(accord.federate("digits", "dirichlet(0.1)", 20, held_out=2))
    >>> one.population, len(one.clients), one.clients.sizes[:3].tolist()
    (1, 22, [1360, 0, 0])
    """
    several = federation.population
    return replace(federation, population=1, clients=joined(federation.clients, several)) if several > 1 else federation


def joined(shards: Shards, several: int) -> Shards:
    """The first so many lists as one, in ascending order, and empty ones in their place."""
    starts: Tensor = shards.starts.clone()
    end = int(starts[several])
    starts[1:several] = end
    return Shards(torch.cat((shards.order[:end].sort().values, shards.order[end:])), starts)
