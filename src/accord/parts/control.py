"""Control variates: each client's gradient is corrected by how it usually differs from the others'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from accord.client import Batch, Client
from accord.cohort import Cohort, Reply
from accord.part import Gradient, Part, State, Step
from accord.recipe import named


@named
class Control(Part):
    """g + c - c_i, with a variate c_i kept by each client and their mean c by the server. SCAFFOLD: Karimireddy et al., 2020.

    After K steps (option II): c_i <- c_i - c + (w0 - w) / (K lr). With local momentum K equal gradients carry the weights further
    than K steps; `divisor="momentum"` divides by that distance, `"plain"` by K as printed. The server adds the mean change of the
    participants, times their share of all clients, to c.
    """

    divisor: Literal["momentum", "plain"] = "momentum"
    sends: ClassVar[tuple[str, ...]] = ("c",)

    def server_state(self, w: Tensor) -> State:
        return {"c": torch.zeros_like(w)}

    def client_state(self, w: Tensor) -> State:
        return {"c": torch.zeros_like(w)}

    def begin(self, client: Client) -> None:
        client.memo[self] = client.down[self]["c"] - client.kept[self]["c"]

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        client.g.add_(client.memo[self])

    def end(self, client: Client) -> None:
        if client.step == 0:
            client.up[self] = {"change": torch.zeros_like(client.w)}
            return
        steps = client.rule.reach(client.step) if self.divisor == "momentum" else float(client.step)
        change = (client.w0 - client.w).div_(steps * client.lr).sub_(client.down[self]["c"])
        client.kept[self] = {"c": client.kept[self]["c"] + change}
        client.up[self] = {"change": change}

    def sums(self, reply: Reply) -> Mapping[str, tuple[float, Tensor]]:
        return {"change": (1.0, reply.up[self]["change"])}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        c = cohort.state[self]["c"]
        cohort.state[self] = {"c": c.add(cohort.sum(self, "change"), alpha=1 / cohort.population)}
        return inner(cohort)
