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


def planned(out: Path) -> tuple[list[Cell], float | None]:
    """The cells of a comparison that was begun in this folder, and its target."""
    record = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    base = Experiment.of(record["set_up"] | {"seed": min(record["seeds"])}, str(out / "comparison.json"))
    return cells(base, record["algorithms"], len(record["seeds"]), out), record["target"]
