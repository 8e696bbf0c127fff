"""Label skew by Dirichlet draws, in the forms of the four papers' programs."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from accord.check import Count, Positive, Whole
from accord.data.partition import Columns, Lists, Split, impossible, smallest
from accord.recipe import named


@named
class Dirichlet(Split):
    """Each class is dealt in proportions drawn from `Dir(alpha)`: the smaller alpha, the fewer classes a client has.

    Variants, which differ in details that change the lists (Hsu et al. 2019; Wang et al., FedMA, 2020):

    - `fedalign` (also FedML, MOON): a client that holds an equal share already gets nothing of later classes, and the draw is
      repeated until every client has `min_size` samples; then each list is shuffled.
    - `fedsol`: the same with the equal share rounded down, the class lists kept shuffled and the lists shuffled in every attempt.
    - `fedconst`: shares rounded to two decimals, no cap; a few samples that the rounding leaves over are not used.

    Without `min_size` a client has at least 10 samples, or a tenth of an equal share where that is less; should few draws
    give that much, the demand falls step by step to one sample as the attempts run out.

    >>> from accord.data.dirichlet import Dirichlet
    >>> labels = np.arange(1000) % 10
    >>> lists = Dirichlet(0.1).cut(labels, 20, np.random.RandomState(0), {})
    >>> sum(map(len, lists)), min(map(len, lists)) >= 5
    (1000, True)
    """

    alpha: Positive = 0.5
    min_size: Whole | None = None
    variant: Literal["fedalign", "fedsol", "fedconst"] = "fedalign"
    attempts: Count = 1000

    def cut(self, labels: NDArray[np.int64], clients: int, rng: np.random.RandomState, columns: Columns) -> Lists:
        least = smallest(self.min_size, len(labels), clients)
        with np.errstate(invalid="ignore"):  # the draws of a tiny alpha may be no numbers; such an attempt fails like any other
            if self.variant == "fedconst":
                return self.rounded(labels, clients, rng, least)
            return self.capped(labels, clients, rng, least)

    def capped(self, labels: NDArray[np.int64], clients: int, rng: np.random.RandomState, least: int) -> Lists:
        """The loop of Hsu et al. with the cap of FedMA."""
        inside = self.variant == "fedsol"
        full = len(labels) // clients if inside else len(labels) / clients
        kept = members(labels)
        for attempt in range(self.attempts):
            enough = self.enough(least, attempt)
            dealt: list[Lists] = [[] for _ in range(clients)]
            sizes = np.zeros(clients, dtype=np.int64)
            for own in kept if inside else members(labels):
                rng.shuffle(own)
                share = rng.dirichlet(np.repeat(self.alpha, clients))
                share = share * (sizes < full) if (share * (sizes < full)).any() else share
                share = share / share.sum()
                parts = np.split(own, (np.cumsum(share) * len(own)).astype(int)[:-1])
                for each, part in zip(dealt, parts, strict=True):
                    each.append(part)
                sizes += [len(part) for part in parts]
            lists = [np.concatenate(each) for each in dealt]
            if inside or sizes.min() >= enough:
                for one in lists:
                    rng.shuffle(one)
            if sizes.min() >= enough:
                return lists
        raise impossible(self, least, self.attempts)

    def rounded(self, labels: NDArray[np.int64], clients: int, rng: np.random.RandomState, least: int) -> Lists:
        """FedCONST's: one draw of all shares, rounded, counts rounded down, over-full classes cut off at the end."""
        of = members(labels)
        for attempt in range(self.attempts):
            shares = rng.dirichlet(np.full(clients, self.alpha), size=len(of)).round(2)
            counts = np.array([(len(own) * row).astype(int) for own, row in zip(of, shares, strict=True)])
            if (shares.sum(0) > 0).all() and counts.sum(0).min() >= self.enough(least, attempt):
                break
        else:
            raise impossible(self, least, self.attempts)
        parts = []
        for own, row in zip(of, counts, strict=True):
            rng.shuffle(own)
            parts.append(np.split(own, np.minimum(np.cumsum(row), len(own)))[:clients])
        lists = [np.concatenate(each) for each in zip(*parts, strict=True)]
        for one in lists:
            rng.shuffle(one)
        return lists

    def enough(self, least: int, attempt: int) -> int:
        """What the smallest client must have in this attempt."""
        return least if self.min_size is not None else max(1, least - least * attempt // self.attempts)


def members(labels: NDArray[np.int64]) -> Lists:
    """The samples of every class, classes in order."""
    if labels.ndim > 1:
        raise ValueError(
            f"these samples have {labels.shape[1]} labels each, and this split deals samples by their label: "
            "write iid, quantity or natural(column)"
        )
    return [np.flatnonzero(labels == label) for label in range(int(labels.max()) + 1)]
