"""What a client predicts with after the last round."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import ClassVar, TypeAlias

from torch import Tensor

from accord.check import Count, Positive
from accord.client import Batch, Client
from accord.flat import On
from accord.parts.task import Task
from accord.recipe import named

Predict: TypeAlias = Callable[[Tensor], Tensor]


class Personal:
    """A way to make a client's own model from the global one."""

    kind: ClassVar[str] = "personal"
    name: str

    def fit(self, client: Client, batches: Callable[[int], Iterable[Batch]]) -> Predict:
        """The function from inputs to scores that this client uses; `batches(epochs)` are its own training data."""
        return lambda x: client.forward(x).logits


@named
class Shared(Personal):
    """Every client predicts with the global model."""


@named
class Finetune(Personal):
    """The global model trained for some epochs on the client's data by the plain task loss; FedSOL-FT is FedSOL with this.

    The learning rate is that of the round after the last (`lr * lr_decay ** rounds`) unless one is given.
    """

    epochs: Count = 1
    on: On = "all"
    lr: Positive | None = None

    def fit(self, client: Client, batches: Callable[[int], Iterable[Batch]]) -> Predict:
        rule = dataclasses.replace(client.rule, on=self.on, lr=self.lr or client.lr, lr_decay=1.0)
        plain = dataclasses.replace(client.algorithm, parts=(Task(),), rule=rule)
        Client(plain, client.model, client.w0, down={}, kept={}, rng=client.rng).train(batches(self.epochs))
        return lambda x: client.forward(x).logits
