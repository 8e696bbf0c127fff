"""Plays: the speeches of each role as lines of characters, for models that predict the next one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from accord.check import Count, Fraction
from accord.data.folder import root_of
from accord.data.source import Loaded, Source
from accord.recipe import named


@named
class Shakespeare(Source):
    """A text file of plays, `tinyshakespeare.txt` under the folder of data sets; each role is a client: split it by `natural(role)`.

    A paragraph whose first line is `NAME:` is a speech. What a role says is cut into lines of `length` characters, and the label of
    each character is the one after it; the last share of a role's lines, `test`, is in the test set. What is left of a line at the end
    is not used, nor are roles that say less than a line. Characters are numbered in the order of their codes. McMahan et al., 2017;
    Caldas et al., LEAF, 2018.

    >>> import tempfile
    >>> play = tempfile.mkdtemp() + "/play.txt"
    >>> _ = Path(play).write_text("ANN:\\nWho is it?\\n\\nBOB:\\nIt is I.\\n\\nANN:\\nCome in.\\n")
    >>> data = Shakespeare(play, length=4).load()
    >>> tuple(data.x.shape), tuple(data.y.shape), data.columns["role"].tolist()
    ((5, 4), (5, 4), ['ANN', 'ANN', 'ANN', 'ANN', 'BOB'])
    """

    file: str = "tinyshakespeare.txt"
    length: Count = 80
    test: Fraction = 0.2

    def load(self, data_dir: Path | None = None) -> Loaded:
        text = read_text(self.file, data_dir)
        number = {letter: at for at, letter in enumerate(sorted(set(text)))}
        train, test, roles = [], [], []
        for role, said in sorted(speeches(text).items()):
            lines = (len(said) - 1) // self.length
            if lines < 1:
                continue
            codes = np.array([number[letter] for letter in said[: lines * self.length + 1]])
            pairs = np.stack([codes[:-1].reshape(lines, -1), codes[1:].reshape(lines, -1)])
            kept = lines - int(self.test * lines)
            train.append(pairs[:, :kept])
            test.append(pairs[:, kept:])
            roles += [role] * kept
        if not roles:
            raise ValueError(
                f"{self.file} has no role that says {self.length} characters (a speech is a paragraph whose first line is NAME:): "
                "write a smaller length="
            )
        (x, y), (test_x, test_y) = (torch.from_numpy(np.concatenate(each, axis=1)) for each in (train, test))
        return Loaded(x, y, test_x, test_y, len(number), {"role": np.array(roles)})


def speeches(text: str) -> Mapping[str, str]:
    """What each role says in a text, speeches one under another.

    >>> speeches("ANN:\\nWho?\\n\\nBOB:\\nI.\\n\\nANN:\\nOh.\\n")
    {'ANN': 'Who?\\nOh.', 'BOB': 'I.'}
    """
    found: dict[str, list[str]] = {}
    for paragraph in text.split("\n\n"):
        opening, _, said = paragraph.strip("\n").partition("\n")
        if opening.endswith(":") and said:
            found.setdefault(opening.removesuffix(":"), []).append(said)
    return {role: "\n".join(said) for role, said in found.items()}


def read_text(file: str, data_dir: Path | None) -> str:
    """The text of a file, by its path or under the folder of data sets."""
    root = root_of(data_dir)
    places = [root / file] if root else []
    path = next((place for place in (*places, Path(file).expanduser()) if place.is_file()), None)
    if path is None:
        where = f", neither by itself nor under {root}" if root else ", and ACCORD_DATA and data_dir name no folder"
        raise ValueError(f"there is no file {file}{where}: put the text there, or write shakespeare(file='...') with its path")
    try:
        return path.read_text(encoding="utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: byte {error.start + 1} is not UTF-8; save it as UTF-8") from None
