"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from torch import Tensor

from accord.check import Count, Fraction, Whole
from accord.recipe import named
from accord.seeds import numpy_stream


@dataclass(frozen=True)
class Draw:
    """What a selection may look at: how many clients there are, their sample counts, and their losses on request."""

    population: int
    sizes: Tensor
    rng: np.random.Generator
    losses: Callable[[Sequence[int]], list[float]]  # of the present global model, on all of a client's data


class Select:
    """A way to choose the clients of a round."""

    kind: ClassVar[str] = "select"
    name: str

    def choose(self, draw: Draw) -> list[int]:
        """The clients of this round, each at most once."""
        return list(range(draw.population))

    def taking(self, count: int) -> Select:
        """The same way to choose, of so many clients a round; uniform where it takes all."""
        return Uniform(count)


@named
class All(Select):
    """Every client takes part in every round."""


@named
class Uniform(Select):
    """`count` clients a round, drawn without replacement, each equally likely."""

    count: Count

    def choose(self, draw: Draw) -> list[int]:
        if self.count > draw.population:
            raise ValueError(f"uniform({self.count}) asks for more clients than the {draw.population} there are")
        return sorted(int(k) for k in draw.rng.choice(draw.population, self.count, replace=False))


@named
class PowerOfChoice(Select):
    """Of `d` clients drawn in proportion to their samples, the `m` whose data the global model fits worst. Cho et al., 2022.

    Each of the d receives the model and answers with its loss over all its data, in order of which they are taken, ties as drawn.
    `reading="table6"` is how FedOptz's Table 6 can be meant, whose d is not above its 10 clients a round: draw `m` clients uniformly
    and train the `d` with the highest losses. The authors average what comes back without weights (`fedavg(uniform)`).
    """

    m: Count
    d: Count
    reading: Literal["authors", "table6"] = "authors"

    def __post_init__(self) -> None:
        few, many = (self.m, self.d) if self.reading == "authors" else (self.d, self.m)
        if few > many:
            raise ValueError(f"{self!r} keeps {few} of {many} clients: the number drawn must be at least the number kept")

    def choose(self, draw: Draw) -> list[int]:
        authors = self.reading == "authors"
        drawn, kept = (self.d, self.m) if authors else (self.m, self.d)
        able = int((draw.sizes > 0).sum()) if authors else draw.population
        if drawn > able:
            raise ValueError(f"{self!r} draws more clients than the {able} there are with samples")
        shares = draw.sizes.double().numpy() / float(draw.sizes.sum()) if authors else None
        candidates = [int(k) for k in draw.rng.choice(draw.population, drawn, replace=False, p=shares)]
        order = np.argsort([-loss for loss in draw.losses(candidates)], kind="stable")
        return [candidates[i] for i in order[:kept]]

    def taking(self, count: int) -> Select:
        return replace(self, m=count)


@named
class Groups(Select):
    """A fixed group, a `share` of all clients, has the total `probability` at each of `count` draws in a round. FedOptz, Table 5.

    Inside the group a client has probability / (share N), outside (1 - probability) / ((1 - share) N); drawn without replacement.
    The paper has no program for this; who is in the group follows from `seed` alone and does not change.
    """

    share: Fraction = 0.1
    probability: Fraction = 0.5
    count: Count = 10
    seed: Whole = 0

    def members(self, population: int) -> list[int]:
        """The clients of the group.

        >>> len(Groups(share=0.3).members(50))
        15
        """
        size = round(self.share * population)
        return sorted(int(k) for k in numpy_stream(self.seed, "groups").permutation(population)[:size])

    def choose(self, draw: Draw) -> list[int]:
        inside = np.zeros(draw.population, dtype=bool)
        inside[self.members(draw.population)] = True
        p = np.where(inside, self.probability / max(inside.sum(), 1), (1 - self.probability) / max((~inside).sum(), 1))
        if np.count_nonzero(p) < self.count:
            raise ValueError(f"{self!r} asks for {self.count} clients, and only {np.count_nonzero(p)} of {draw.population} can be drawn")
        return sorted(int(k) for k in draw.rng.choice(draw.population, self.count, replace=False, p=p / p.sum()))

    def taking(self, count: int) -> Select:
        return replace(self, count=count)
