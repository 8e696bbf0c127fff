"""The server steps further where its steps have been small."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from accord.check import Positive, Range
from accord.cohort import Cohort
from accord.part import Part, State, Step
from accord.recipe import named


@named
class Adapt(Part):
    """The step D inside becomes lr m / (sqrt(v) + tau), m <- beta1 m + (1 - beta1) D, v by `second`. FedOpt: Reddi et al., 2021.

    `adam`: v <- beta2 v + (1 - beta2) D^2; `yogi`: v <- v - (1 - beta2) D^2 sign(v - D^2); `adagrad`: v <- v + D^2. m and v start at
    zero and nothing corrects for that, as in the paper; `corrected` divides m and v by 1 - beta^t, which torch's Adam on the server
    does (as FedASAM's program runs it, with beta2 = 0.99 and tau = 0.1). Statistics (BatchNorm) are averaged, never adapted.
    """

    second: Literal["adam", "yogi", "adagrad"] = "adam"
    lr: Positive = 0.1
    beta1: Annotated[float, Range(0, 0.999999)] = 0.9
    beta2: Annotated[float, Range(0, 0.999999)] = 0.99
    tau: Positive = 0.001
    corrected: bool = False

    def server_state(self, w: Tensor) -> State:
        return {"m": torch.zeros_like(w), "v": torch.zeros_like(w), "t": torch.zeros((), dtype=torch.float64)}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        d, state = inner(cohort), cohort.state[self]
        m = (state["m"] * self.beta1).add_(d, alpha=1 - self.beta1)
        v, t = self.squares(state["v"], d * d), state["t"] + 1
        cohort.state[self] = {"m": m, "v": v, "t": t}
        if self.corrected:
            m, v = m / (1 - self.beta1 ** float(t)), v / (1 - self.beta2 ** float(t)) if self.second == "adam" else v
        return m.div(v.sqrt().add_(self.tau)).mul_(self.lr)

    def squares(self, v: Tensor, dd: Tensor) -> Tensor:
        """The next v."""
        if self.second == "adam":
            return (v * self.beta2).add_(dd, alpha=1 - self.beta2)
        if self.second == "yogi":
            return v.sub((v - dd).sign_().mul_(dd), alpha=1 - self.beta2)
        return v + dd
