"""From texts to sources and splits."""

from __future__ import annotations

import re
from pathlib import Path

from accord.data.hub import Folder, Hub
from accord.data.npz import Npz
from accord.data.partition import Split
from accord.data.source import Source
from accord.recipe import read


def read_split(text: str) -> Split:
    """The split that a text describes.

    >>> read_split("shards(2)")
    shards(per_client=2)
    """
    found: Split = read(text, "split")
    return found


def read_data(text: str) -> Source:
    """The source that a text describes: a recipe, a folder, a `.npz` file or the `owner/name` of a data set on the hub.

    >>> read_data("digits")
    digits(image=False, augment=(), seed=0)
    >>> read_data("uoft-cs/cifar10").repo, read_data("./my data/small.npz").path
    ('uoft-cs/cifar10', './my data/small.npz')
    """
    bare = text.strip()
    if bare.endswith(".npz"):
        return Npz(bare)
    if not re.search(r"[()'\"]", bare) and ("/" in bare or "\\" in bare):
        hub = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", bare) and not Path(bare).is_dir()
        return Hub(bare) if hub else Folder(bare)
    found: Source = read(bare, "data")
    return found
