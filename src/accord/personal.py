"""What a client predicts with after the last round."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from accord.check import Count, Fraction, Positive, Whole
from accord.client import Batch, Client
from accord.flat import On, Output
from accord.parts.alone import Alone
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

    def remembers(self, module: nn.Module, x: Tensor) -> int:
        """How many numbers a client has to keep in order to predict, besides a model; `x` are some inputs of the model."""
        return 0


@named
class Shared(Personal):
    """Every client predicts with the global model."""


@named
class Finetune(Personal):
    """The global model trained for some epochs on the client's data by the plain task loss; FedSOL-FT is FedSOL with this.

    The learning rate is that of the round after the last (`lr * lr_decay ** rounds`) unless one is given. With `plain=False` the
    algorithm's own parts go on working, as Per-FedAvg's do in FedSOL's program.
    """

    epochs: Count = 1
    on: On = "all"
    lr: Positive | None = None
    plain: bool = True

    def fit(self, client: Client, batches: Callable[[int], Iterable[Batch]]) -> Predict:
        rule = dataclasses.replace(client.rule, on=self.on, lr=self.lr or client.lr, lr_decay=1.0, persist=False)
        parts = (Task(),) if self.plain else client.algorithm.parts
        tuned = dataclasses.replace(client.algorithm, parts=parts, rule=rule)
        client.again(tuned).train(batches(self.epochs))
        return lambda x: client.forward(x).logits


@named
class Own(Personal):
    """Every client predicts with the weights it ended its last round with: for algorithms with `alone`."""

    def fit(self, client: Client, batches: Callable[[int], Iterable[Batch]]) -> Predict:
        own = client.kept.get(Alone())
        if own is None:
            raise ValueError("own: no client of this algorithm keeps weights of its own; add `alone`, or choose shared or finetune")
        client.model.load(own["w"], own.get("b"))
        return lambda x: client.forward(x).logits


@named
class KnnPer(Personal):
    """weight p(y) + (1 - weight) f(x): the model beside a vote of the k nearest of the client's samples. kNN-Per: Marfoq et al., 2022.

    Neighbours are nearest by squared distance d of their features and count exp(-d / (dimension scale)). f(x) are the model's logits,
    as FedSOL's program mixes them, after `epochs` of fine-tuning; its authors mix probabilities (`mix="probs"`) of the untuned
    model (`epochs=0`) and sweep weight and capacity. At most `capacity` samples are remembered, drawn at random, without
    augmentation (FedSOL's program remembers augmented ones).
    """

    k: Count = 5
    weight: Fraction = 0.5
    mix: Literal["logits", "probs"] = "logits"
    scale: Positive = 1.0
    capacity: Count = 500
    epochs: Whole = 1
    lr: Positive | None = None

    def fit(self, client: Client, batches: Callable[[int], Iterable[Batch]]) -> Predict:
        if self.epochs:
            Finetune(self.epochs, lr=self.lr).fit(client, batches)
        client.model.mode(False)
        with torch.no_grad():
            seen = [(self.features(client, batch.x), batch.y.flatten()) for batch in client.all_batches()]
        if not seen:
            return lambda x: client.forward(x).logits
        z, y = torch.cat([z for z, _ in seen]), torch.cat([y for _, y in seen])
        if len(y) > self.capacity:
            some = torch.randperm(len(y), generator=client.rng)[: self.capacity].to(y.device)
            z, y = z[some], y[some]
        return lambda x: self.scores(client, x, z, y)

    def remembers(self, module: nn.Module, x: Tensor) -> int:
        with torch.no_grad():
            out = copy.deepcopy(module).eval()(x)
        return self.capacity * (self.read(out).shape[1] + 1)

    def features(self, client: Client, x: Tensor) -> Tensor:
        """The features of some inputs, one row for each prediction."""
        return self.read(client.forward(x))

    def read(self, out: Output) -> Tensor:
        """The features of an answer, one row for each prediction."""
        if out.features is None:
            raise ValueError("knn_per compares features, and this model returns logits only: return accord.Output(logits, features)")
        return out.features.flatten(0, out.logits.dim() - 2).flatten(1)

    def scores(self, client: Client, x: Tensor, z: Tensor, y: Tensor) -> Tensor:
        """The mixed scores of some inputs, given the remembered features and labels."""
        out = client.forward(x)
        f = out.logits.flatten(0, -2)
        apart, near = torch.cdist(self.read(out), z).square().topk(min(self.k, len(y)), dim=1, largest=False)
        votes = torch.softmax(-apart / (z.shape[1] * self.scale), dim=1).unsqueeze(-1)
        p = (votes * one_hot(y[near], f.shape[-1])).sum(dim=1)
        if self.mix == "logits":
            mixed = self.weight * p + (1 - self.weight) * f
        else:
            mixed = (self.weight * p + (1 - self.weight) * f.softmax(-1)).clamp(min=1e-30).log()
        return mixed.view(out.logits.shape)
