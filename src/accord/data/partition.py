"""Splits: which training samples each client gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from accord.check import Count, Positive, listed, nearest
from accord.recipe import named

if TYPE_CHECKING:
    from accord.data.source import Loaded

Lists = list[NDArray[np.int64]]
Columns = Mapping[str, NDArray[np.generic]]
ATTEMPTS = 1000  # draws before a random split says that it cannot be made


class Split:
    """A rule that deals training samples to clients, drawing from `rng` only."""

    kind: ClassVar[str] = "split"
    name: str

    def cut(self, labels: NDArray[np.int64], clients: int, rng: np.random.RandomState, columns: Columns) -> Lists:
        """One index list per client; `clients` is at least one and at most the number of samples."""
        raise TypeError(f"{type(self).__name__} does not say how it cuts")

    def shift(self, loaded: Loaded, lists: Lists, rng: np.random.RandomState) -> tuple[Loaded, str]:
        """The data as the clients see them and a text that says how they were changed, empty when they were not."""
        return loaded, ""


@named
class Iid(Split):
    """A random permutation cut into equal lists, whose sizes differ by one at most.

    >>> from accord.data.partition import Iid
    >>> [len(each) for each in Iid().cut(np.zeros(10, int), 3, np.random.RandomState(0), {})]
    [4, 3, 3]
    """

    def cut(self, labels: NDArray[np.int64], clients: int, rng: np.random.RandomState, columns: Columns) -> Lists:
        return [np.asarray(each, dtype=np.int64) for each in np.array_split(rng.permutation(len(labels)), clients)]


@named
class Quantity(Split):
    """Clients that differ in how much they have: sizes in proportion to a draw from `Dir(alpha)`, labels alike.

    >>> from accord.data.partition import Quantity
    >>> sizes = [len(each) for each in Quantity(0.5).cut(np.zeros(1000, int), 4, np.random.RandomState(0), {})]
    >>> sum(sizes), min(sizes) >= 10
    (1000, True)
    """

    alpha: Positive = 1.0
    min_size: Count | None = None

    def cut(self, labels: NDArray[np.int64], clients: int, rng: np.random.RandomState, columns: Columns) -> Lists:
        least = smallest(self.min_size, len(labels), clients)
        for _ in range(ATTEMPTS):
            at = np.nan_to_num(np.cumsum(rng.dirichlet(np.full(clients, self.alpha)))) * len(labels)  # a tiny alpha may draw no numbers
            lists = np.split(rng.permutation(len(labels)), np.floor(at[:-1] + 1e-9).astype(np.int64))
            if min(map(len, lists)) >= least:
                return lists
        raise impossible(self, least, ATTEMPTS)


@named
class Natural(Split):
    """The clients the data come with: one for every value of a column, such as the writer of a digit.

    With fewer clients than values, the clients are drawn at random among those with at least `min_size` samples.

    >>> from accord.data.partition import Natural
    >>> writers = {"writer": np.array(["ann", "bob", "ann", "cyd"])}
    >>> [each.tolist() for each in Natural("writer").cut(np.zeros(4, int), 3, np.random.RandomState(0), writers)]
    [[0, 2], [1], [3]]
    """

    column: str
    min_size: Count = 1

    def cut(self, labels: NDArray[np.int64], clients: int, rng: np.random.RandomState, columns: Columns) -> Lists:
        lists = self.groups(columns)
        if clients > len(lists):
            raise ValueError(
                f"natural({self.column!r}, min_size={self.min_size}) has {len(lists)} clients, not {clients}: "
                f"ask for at most {len(lists)} clients, or lower min_size"
            )
        return [lists[k] for k in np.sort(rng.permutation(len(lists))[:clients])]

    def groups(self, columns: Columns) -> Lists:
        """The samples of every value that has enough of them, values in order."""
        if not columns:
            raise ValueError(f"natural(column={self.column!r}): the data have no columns beside inputs and labels; use another split")
        if self.column not in columns:
            near = nearest(self.column, columns)
            raise ValueError(f"natural(column={self.column!r}): the data have no such column{near}; write {listed(columns)}")
        _, which = np.unique(columns[self.column], return_inverse=True)
        lists = np.split(np.argsort(which, kind="stable"), np.cumsum(np.bincount(which))[:-1])
        return [each for each in lists if len(each) >= self.min_size]


def smallest(asked: int | None, samples: int, clients: int) -> int:
    """The least a client may get: what was asked for, else 10, or a tenth of an equal share where that is less.

    >>> smallest(None, 50_000, 100), smallest(None, 1437, 20), smallest(25, 1437, 20)
    (10, 7, 25)
    """
    least = max(1, min(10, samples // (10 * clients))) if asked is None else asked
    if least * clients > samples:
        raise ValueError(
            f"{clients} clients with min_size={least} need {least * clients} samples and there are {samples}: "
            "lower min_size or use fewer clients"
        )
    return least


def impossible(split: Split, least: int, attempts: int) -> ValueError:
    """What a split says that was drawn too often without success."""
    return ValueError(
        f"{split!r} gave some client fewer than min_size={least} samples in {attempts} attempts: "
        "raise alpha, lower min_size or use fewer clients"
    )
