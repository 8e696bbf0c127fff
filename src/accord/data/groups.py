"""Feature shift: groups of clients that see the same classes turned by different angles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accord.check import Count, Whole
from accord.data.augment import rotated
from accord.data.partition import Columns, Iid, Lists, Split
from accord.data.source import Loaded
from accord.recipe import named

CHUNK = 4096  # images turned at a time


@named
class Groups(Split):
    """Client `k` belongs to group `k % count`, whose images are turned by `(k % count) * angle` degrees.

    The samples are dealt by `within`. Images are turned once, when the federation is built; the test samples take the
    groups' angles in turn, so the global test set holds every rotation equally often.

    With `leave` the group of that number stays out: the clients belong to the others in turn, and all of the test samples are turned
    as that group would be (leave-one-domain-out).

    >>> from accord.data.groups import Groups
    >>> Groups(4).angles(6), Groups(4, leave=1).angles(4)
    ([0.0, 90.0, 180.0, 270.0, 0.0, 90.0], [0.0, 180.0, 270.0, 0.0])
    """

    count: Count = 4
    angle: float = 90.0
    within: Split = Iid()
    leave: Whole | None = None

    def __post_init__(self) -> None:
        if self.leave is not None and (self.leave >= self.count or self.count < 2):
            raise ValueError(f"groups(count={self.count}, leave={self.leave}): leave one of at least two groups, 0 to {self.count - 1}")

    def angles(self, clients: int) -> list[float]:
        """The angle of every client."""
        groups = [group for group in range(self.count) if group != self.leave]
        return [groups[k % len(groups)] * self.angle for k in range(clients)]

    def cut(self, labels: NDArray[np.int64], clients: int, rng: np.random.RandomState, columns: Columns) -> Lists:
        least = self.count - (self.leave is not None)
        if least > clients:
            raise ValueError(f"groups(count={self.count}) needs at least {least} clients, not {clients}: lower count")
        return self.within.cut(labels, clients, rng, columns)

    def shift(self, loaded: Loaded, lists: Lists, rng: np.random.RandomState) -> tuple[Loaded, str]:
        if loaded.x.ndim != 4:
            shape = tuple(loaded.x.shape[1:])
            raise ValueError(f"groups turns images, and these samples have the shape {shape}: choose image data or another split")
        angles = np.zeros(len(loaded.x))
        for own, angle in zip(lists, self.angles(len(lists)), strict=True):
            angles[own] = angle
        tests = np.full(len(loaded.test_x), (self.leave or 0) * self.angle)
        if self.leave is None:
            tests[rng.permutation(len(tests))] = self.angles(len(tests))
        turned = replace(loaded, x=turn(loaded.x, angles), test_x=turn(loaded.test_x, tests))
        without = "" if self.leave is None else f" without number {self.leave}, which the test samples are"
        return turned, f"{self.count} groups of {self.angle:g} degrees{without}"


def turn(images: Tensor, degrees: NDArray[np.float64]) -> Tensor:
    """A copy of the images, each turned by its angle; quarter turns of square images are exact."""
    out = images.clone()
    for angle in np.unique(degrees % 360):
        for part in torch.split(torch.from_numpy(np.flatnonzero(degrees % 360 == angle)), CHUNK):
            quarters, rest = divmod(angle, 90)
            if rest == 0 and (images.shape[1] == images.shape[2] or quarters % 2 == 0):
                out[part] = images[part].rot90(int(quarters), (1, 2))
            else:
                out[part] = rotated(images[part], torch.full((len(part),), float(angle)))
    return out
