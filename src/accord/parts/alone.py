"""Every client goes its own way: nothing is shared."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from accord.client import Client
from accord.cohort import Cohort
from accord.part import Part, State, Step
from accord.recipe import named


@named
class Alone(Part):
    """Each client starts a round from the weights and statistics it ended its last with; the global model never moves.

    The reference of FedSOL's Table 9: 200 rounds of one epoch, lr 0.01 times 0.99 each. Nothing travels.
    """

    stays: ClassVar[bool] = True

    def client_state(self, w: Tensor) -> State:
        return {"w": w.clone()}

    def begin(self, client: Client) -> None:
        own = client.kept[self]
        client.model.load(own["w"], own.get("b"))

    def end(self, client: Client) -> None:
        b = client.model.read_statistics()
        client.kept[self] = {"w": client.copied(), "b": b} if b.numel() else {"w": client.copied()}
        client.model.load_statistics(client.b0)

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        return torch.zeros_like(inner(cohort))
