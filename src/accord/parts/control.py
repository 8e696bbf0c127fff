"""Control variates: each client's gradient is corrected by how it usually differs from the others'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from accord.client import Batch, Client
from accord.cohort import Cohort, Reply
from accord.part import Gradient, Part, State, Step
from accord.parts.task import Task
from accord.recipe import named


@named
class Control(Part):
    """g + c - c_i, with a variate c_i kept by each client and their mean c by the server. SCAFFOLD: Karimireddy et al., 2020.

    After K steps (option II): c_i <- c_i - c + (w0 - w) / (K lr). With local momentum K equal gradients carry the weights further
    than K steps; `divisor="momentum"` divides by that distance, `"plain"` by K as printed. Option I: c_i is the gradient of the whole
    local loss at w0. The server adds the mean change of the participants, times their share of all clients, to c. The correction is
    part of the gradient, so it enters momentum; NIID-Bench adds it after each step of the optimiser (`apply="step"`).
    """

    divisor: Literal["momentum", "plain"] = "momentum"
    option: Literal["I", "II"] = "II"
    apply: Literal["gradient", "step"] = "gradient"
    sends: ClassVar[tuple[str, ...]] = ("c",)

    def server_state(self, w: Tensor) -> State:
        return {"c": torch.zeros_like(w)}

    def client_state(self, w: Tensor) -> State:
        return {"c": torch.zeros_like(w)}

    def begin(self, client: Client) -> None:
        client.memo[self] = client.down[self]["c"] - client.kept[self]["c"]
        if self.option == "I":
            client.memo[self, "c"] = client.whole_gradient((Task(),))[0]

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        if self.apply == "gradient":
            client.g.add_(client.memo[self])

    def moved(self, client: Client) -> None:
        if self.apply == "step":
            for span in client.layout.spans(client.rule.on):
                client.w[span].sub_(client.memo[self][span], alpha=client.lr)

    def end(self, client: Client) -> None:
        del client.memo[self]
        change = self.change(client)
        client.kept[self] = {"c": client.kept[self]["c"] + change}
        client.up[self] = {"change": change}

    def change(self, client: Client) -> Tensor:
        """What this round adds to c_i."""
        if self.option == "I":
            return client.memo[self, "c"] - client.kept[self]["c"]  # type: ignore[no-any-return]
        if client.step == 0:
            return torch.zeros_like(client.w)
        steps = client.rule.reach(client.step) if self.divisor == "momentum" else float(client.step)
        return (client.w0 - client.w).div_(steps * client.lr).sub_(client.down[self]["c"])

    def sums(self, reply: Reply) -> Mapping[str, tuple[float, Tensor]]:
        return {"change": (1.0, reply.up[self]["change"])}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        c = cohort.state[self]["c"]
        cohort.state[self] = {"c": c.add(cohort.sum(self, "change"), alpha=1 / cohort.population)}
        return inner(cohort)
