"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from accord.check import Count
from accord.recipe import named


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
