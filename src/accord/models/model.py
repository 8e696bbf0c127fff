"""What a model is in a recipe: a piece that builds a module for the data's shape and number of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import nn


class Model:
    """A recipe piece; `build` makes the module, which draws its weights from torch's current random state.

    A module may say more about itself than its answers do: `head_name`, the child that is the head (else the last one); `stages`, the
    names of the children between input and head, in order, each read by the next (`align` runs the last of them by itself); and
    `one_size = True` when it reads images of one size only (`gradaug` then shows it no others).
    """

    kind: ClassVar[str] = "model"
    tiny: ClassVar[Mapping[str, Any]] = {}  # arguments that make it small enough to be tried out
    example: ClassVar[tuple[int, ...]] = (3, 16, 16)  # the shape of a sample that it reads
    name: str

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """A module that reads samples of this shape and returns `Output(logits, features)`."""
        raise TypeError(f"{type(self).__name__} does not say how it is built")


def image_shape(shape: tuple[int, ...], name: str, smallest: int) -> tuple[int, int, int]:
    """The shape as channels, height and width, or an error that says what the model wants.

    >>> image_shape((64,), "lenet5", 16)
    Traceback (most recent call last):
    ValueError: lenet5 reads images of at least 16x16 pixels, and the data have the shape (64,): use mlp, or image data
    """
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise ValueError(
            f"{name} reads images of at least {smallest}x{smallest} pixels, and the data have the shape {shape}: use mlp, or image data"
        )
    return shape
