"""A recurrent network that predicts the next character at every place of a text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, TypeAlias

from torch import Tensor, nn

from accord.check import Count
from accord.flat import Output
from accord.models.model import Model
from accord.models.project import project
from accord.recipe import named

Cell: TypeAlias = Literal["lstm", "gru"]


class Recurrent(nn.Module):
    """One recurrent layer from zeros. Between stages the places of a text are those of an image: (N, channels, places)."""

    def __init__(self, inputs: int, hidden: int, cell: Cell, bias: bool = True) -> None:
        nn.Module.__init__(self)
        self.layer = (nn.LSTM if cell == "lstm" else nn.GRU)(inputs, hidden, bias=bias, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.layer(x.mT)[0]
        return answer.mT


class RecurrentNet(nn.Module):
    """An embedding of each symbol, recurrent layers, and a head on each place.

    >>> import torch
    >>> out = RecurrentNet(65, 65, 8, 32, 2, "lstm")(torch.zeros(4, 20, dtype=torch.long))
    >>> out.logits.shape, out.features.shape
    (torch.Size([4, 20, 65]), torch.Size([4, 20, 32]))
    """

    def __init__(
        self,
        symbols: int,
        classes: int,
        embed: int,
        hidden: int,
        layers: int,
        cell: Cell,
        bias: bool = True,
        projection: bool = False,
    ) -> None:
        nn.Module.__init__(self)
        self.embed = nn.Embedding(symbols, embed)
        self.stages = tuple(f"layer{k}" for k in range(1, layers + 1))
        for k, name in enumerate(self.stages):
            self.add_module(name, Recurrent(hidden if k else embed, hidden, cell, bias))
        self.project, features = project(projection, hidden, bias)
        self.head = nn.Linear(features, classes, bias)

    def forward(self, x: Tensor) -> Output:
        if x.is_floating_point():
            raise ValueError("char_rnn reads characters as whole numbers, and these samples are measurements: use mlp, or text")
        x = self.embed(x).mT
        for name in self.stages:
            x = self.get_submodule(name)(x)
        features = self.project(x.mT)
        return Output(self.head(features), features)


@named
class CharRnn(Model):
    """The next character at each place, by two layers of 256 LSTM cells on embeddings of 8: for text such as `shakespeare`.

    McMahan et al. 2017 and Reddi et al. 2021, whose layers have one bias where torch's have two. There are as many `symbols`
    as classes unless it is said otherwise. `projection` puts MOON's two layers before the head, at each place.

    >>> from accord.models.text import CharRnn
    >>> sum(p.numel() for p in CharRnn().build((80,), 90).parameters()) - 2 * 4 * 256
    820522
    """

    tiny: ClassVar[Mapping[str, Any]] = {"hidden": 8}
    example: ClassVar[tuple[int, ...]] = (8,)

    embed: Count = 8
    hidden: Count = 256
    layers: Count = 2
    cell: Cell = "lstm"
    bias: bool = True
    projection: bool = False
    symbols: Count | None = None

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        if len(shape) != 1:
            raise ValueError(f"char_rnn reads lines of characters, and the data have the shape {shape}: use a model for images, or text")
        return RecurrentNet(self.symbols or classes, classes, self.embed, self.hidden, self.layers, self.cell, self.bias, self.projection)
