"""The server goes on in the direction of its last steps."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from accord.check import Positive, Range
from accord.cohort import Cohort
from accord.part import Part, State, Step
from accord.recipe import named


@named
class Inertia(Part):
    """The step D inside becomes lr v, with v <- beta v + D. FedAvgM: Hsu et al., 2019.

    Three forms are in use: `heavy`, the above (FedNTD's program, beta = 0.7); `damped`, v <- beta v + (1 - beta) D (MOON's program);
    `nesterov`, v as in `heavy` and the step lr (D + beta v) (FL-bench). v starts at zero. Statistics (BatchNorm) have no inertia.
    """

    beta: Annotated[float, Range(0, 1)] = 0.7
    form: Literal["heavy", "damped", "nesterov"] = "heavy"
    lr: Positive = 1.0

    def server_state(self, w: Tensor) -> State:
        return {"v": torch.zeros_like(w)}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        d = inner(cohort)
        v = (cohort.state[self]["v"] * self.beta).add_(d, alpha=1 - self.beta if self.form == "damped" else 1.0)
        cohort.state[self] = {"v": v}
        return self.lr * (d.add(v, alpha=self.beta) if self.form == "nesterov" else v)
