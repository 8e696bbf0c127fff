"""From texts to sources and splits."""

from __future__ import annotations

from accord.data.partition import Split
from accord.data.source import Source
from accord.recipe import read


def read_split(text: str) -> Split:
    """The split that a text describes.

    >>> read_split("dirichlet(0.1)")
    dirichlet(alpha=0.1, min_size=None, variant='fedalign')
    """
    found: Split = read(text, "split")
    return found


def read_data(text: str) -> Source:
    """The source that a text describes: a recipe, a path, a `.npz` file or the `owner/name` of a data set on the hub.

    >>> read_data("digits")
    digits(image=False, augment=(), seed=0)
    """
    found: Source = read(text, "data")
    return found
