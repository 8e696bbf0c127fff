"""Index lists of many clients in two tensors, so that 100,000 clients cost as little as ten."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Shards:
    """`order[starts[k]:starts[k + 1]]` is the list of client `k`.

    >>> lists = Shards.of([[4, 2], [], [0]])
    >>> len(lists), lists[0].tolist(), lists[2].tolist(), lists.sizes.tolist()
    (3, [4, 2], [0], [2, 0, 1])
    """

    order: Tensor
    starts: Tensor

    @classmethod
    def of(cls, lists: Sequence[NDArray[np.int64] | Sequence[int] | Tensor]) -> Shards:
        """The lists of clients 0, 1, 2, ..., copied into one tensor."""
        arrays = [np.asarray(each, dtype=np.int64) for each in lists]
        order = np.concatenate([np.empty(0, dtype=np.int64), *arrays])
        starts = np.concatenate([[0], np.cumsum([len(each) for each in arrays], dtype=np.int64)]).astype(np.int64)
        return cls(torch.from_numpy(order), torch.from_numpy(starts))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, client: int) -> Tensor:
        bounds = self.bounds
        if not 0 <= client < len(bounds) - 1:
            raise IndexError(f"there is no client {client}: they are numbered 0 to {len(self) - 1}")
        return self.order[bounds[client] : bounds[client + 1]]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[client] for client in range(len(self)))

    @cached_property
    def bounds(self) -> list[int]:
        """`starts` as plain numbers, which are quicker to read one by one."""
        return self.starts.tolist()

    @cached_property
    def sizes(self) -> Tensor:
        """How many indices each client has."""
        return self.starts.diff()

    @property
    def owner(self) -> Tensor:
        """The client of each entry of `order`."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)
