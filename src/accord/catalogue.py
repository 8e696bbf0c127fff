"""Experiment files: those that come with the package, by name, and a person's own, by path."""

from __future__ import annotations

import json
import typing
from importlib import resources
from pathlib import Path
from typing import Any

from accord.check import Count, Fraction, check, nearest
from accord.compare import Cell, cells
from accord.experiment import Experiment, read_file


def names() -> list[str]:
    """The experiments that come with the package."""
    return sorted(Path(f.name).stem for f in resources.files("accord.experiments").iterdir() if f.name.endswith(".toml"))


def read(file: str) -> tuple[dict[str, Any], str]:
    """The settings of an experiment file, and what errors call it."""
    if file in names():
        with resources.as_file(resources.files("accord.experiments") / f"{file}.toml") as path:
            return read_file(path), f"the experiment {file!r}"
    path = Path(file)
    if not path.exists() and path.suffix != ".toml":
        raise ValueError(
            f"{file!r} is no TOML file and no experiment{nearest(file, names())}; `accord list experiments` shows those there are"
        )
    return read_file(path), file


def whole(value: Any, where: str) -> int:
    """A number of seeds from a flag or a file."""
    try:
        number = int(value) if isinstance(value, str) else value
    except ValueError:
        number = value
    return typing.cast(int, check(number, Count, where))


def fraction(value: Any, where: str) -> float | None:
    """An accuracy from a flag or a file, or None."""
    if value is None:
        return None
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError:
        number = value
    return typing.cast(float, check(number, Fraction, where))


def texts(value: Any) -> list[str]:
    """The algorithms that a file lists."""
    if isinstance(value, str):
        raise ValueError(f"algorithms is {value!r}; it must be a list of texts, such as [{value!r}, 'scaffold']")
    return list(check(value or [], tuple[str, ...], "algorithms"))


def planned(out: Path) -> tuple[list[Cell], float | None]:
    """The cells of a comparison that was begun in this folder, and its target."""
    path = out / "comparison.json"
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        said, seeds, algorithms, target = (record[key] for key in ("set_up", "seeds", "algorithms", "target"))
        base, count = said | {"seed": min(seeds)}, len(seeds)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}): begin the comparison again with `accord compare --out {out}`"
        ) from None
    return cells(Experiment.of(base, str(path)), texts(algorithms), count, out), fraction(target, f"target in {path}")
