"""FedSOL's toy with two weights (Appendix L of its paper): what methods do to one client's path, computed and not trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from accord.check import Positive
from accord.client import Batch, Client, local_round
from accord.experiment import Experiment
from accord.flat import Output
from accord.part import Gradient, Part
from accord.parts.task import Task
from accord.recipe import named
from accord.reports.picture import GREY, Picture, figure, label, line
from accord.reproduce.measures import Measure

if TYPE_CHECKING:
    from accord.reproduce.study import Study

Path: TypeAlias = "tuple[tuple[float, float], ...]"


class Two(nn.Module):
    """A model that is its two weights, both zero."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.point = nn.Parameter(torch.zeros(2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Output:
        return Output(self.point.expand(len(x), -1), None)


@dataclass(frozen=True, eq=False)
class Bowl(Part):
    """The loss (1/2) (u - 1)^2 + (delta/2) (v - 1)^2, whose minimum (1, 1) is the client's own."""

    delta: float

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        steep = torch.tensor([1.0, self.delta], dtype=torch.float64)
        return 0.5 * (steep * (out.logits - 1) ** 2).sum(1).mean()


@dataclass(frozen=True, eq=False)
class Watch(Part):
    """Notes where the weights are at each step."""

    seen: list[tuple[float, float]]

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        self.end(client)
        inner(batch)

    def end(self, client: Client) -> None:
        u, v = client.w.tolist()
        self.seen.append((u, v))


@named
class Toy(Measure):
    """Where the client of FedSOL's toy ends: its u, its v, or the angle of (u, v) in degrees; its own minimum (1, 1) lies at 45.

    The experiment's algorithm is followed for all of its steps from the server's weights (0, 0), with `bowl` for the task's loss.
    """

    trained: ClassVar[bool] = False

    entry: Literal["u", "v", "angle"]
    delta: Positive = 0.1

    @property
    def unit(self) -> str:  # type: ignore[override]
        """Degrees for the angle."""
        return "degrees" if self.entry == "angle" else ""

    def known(self, experiment: Experiment) -> float:
        u, v = path(experiment, self.delta)[-1]
        return {"u": u, "v": v, "angle": math.degrees(math.atan2(v, u))}[self.entry]


@cache
def path(experiment: Experiment, delta: float) -> Path:
    """The weights before each step, and after the last.

    >>> plain = Experiment(algorithm="fedprox(mu=1.0)", steps=1000, lr=0.1, momentum=0.0)
    >>> [round(x, 4) for x in path(plain, 0.25)[-1]]
    [0.5, 0.2]
    """
    algorithm, watch = experiment.recipe(), Watch([])
    parts = [Bowl(delta) if isinstance(part, Task) else part for part in algorithm.parts]
    steps = experiment.steps if isinstance(experiment.steps, int) else 1
    batch = (torch.zeros(1, 1), torch.zeros(1, dtype=torch.long))
    local_round(replace(algorithm, parts=(*parts, watch)), Two(), [batch] * steps)
    return tuple(watch.seen)


def paths(study: Study) -> Sequence[Picture]:
    """Where each row of a study of the toy goes, beside the line from the server's weights to the client's minimum."""
    rows = {cell.row: (cell.experiment, cell.measure.delta) for cell in study.cells if isinstance(cell.measure, Toy)}
    if not rows:
        return []
    drawn = figure("u", "v", height=520)
    drawn.add_scatter(x=[0, 1], y=[0, 1], mode="lines+markers", line={"color": GREY, "dash": "dot"}, name="server to local minimum")
    for place, (row, (experiment, delta)) in enumerate(rows.items()):
        seen = path(experiment, delta)
        thin = [*seen[:: max(1, len(seen) // 200)], seen[-1]]
        drawn.add_scatter(x=[u for u, _ in thin], y=[v for _, v in thin], mode="lines", line=line(place), name=label(row))
    drawn.update_yaxes(scaleanchor="x", scaleratio=1)
    caption = "One client's weights from the server's (0, 0), over all steps. FedSOL should end on the dotted line, short of the minimum."
    return [Picture("toy", study.title, caption, drawn, wide=False)]
