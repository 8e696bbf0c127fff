"""What a sink is, and the sinks that there are."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from accord.check import listed, nearest
from accord.sinks.numbers import numbers

NAMES = ("tensorboard", "mlflow", "wandb")
_CLASSES = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WandB"}


@dataclass(frozen=True)
class Notes:
    """What a sink is told before the first round: where it may write, what the run is called, its settings, the rounds that are done."""

    folder: Path
    name: str
    settings: Mapping[str, Any]
    done: int = 0


class Sink(Protocol):
    """Somewhere to write numbers to."""

    def write(self, round: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a round."""

    def close(self, result: Mapping[str, Any] | None) -> None:
        """Finish, with the run's result, or without one where it was interrupted."""


def open_sink(name: str, notes: Notes) -> Sink:
    """The sink of that name, ready for the next round. Its package is imported here; a run that goes on continues what was written.

    >>> open_sink("tensorbord", Notes(Path("nowhere"), "fedavg", {}))
    Traceback (most recent call last):
    ValueError: there is no sink 'tensorbord' (did you mean 'tensorboard'?); it must be tensorboard, mlflow or wandb
    """
    if name not in NAMES:
        raise ValueError(f"there is no sink {name!r}{nearest(name, NAMES)}; it must be {listed(NAMES)}")
    require([name])
    made: Sink = getattr(importlib.import_module(f"accord.sinks.{name}"), _CLASSES[name])(notes)
    return made


def require(names: Iterable[str]) -> None:
    """Refuse the names of sinks whose packages are not installed; names of no sink are passed over.

    >>> require(["drift"])
    """
    for name in names:
        found = importlib.util.find_spec(name) if name in NAMES else None
        if name in NAMES and (found is None or found.origin is None):  # a folder of that name, such as wandb's own, is no package
            raise ValueError(f"track {name} needs the package {name}, which is not here: pip install 'accord[track]'")


@dataclass
class Sinks:
    """The open sinks of a run; `result` is what they are told at the end, once there is one."""

    held: Sequence[Sink] = ()
    result: Mapping[str, Any] | None = field(default=None)

    def write(self, line: Mapping[str, Any]) -> None:
        """Write the record of a round to each."""
        for sink in self.held:
            sink.write(line["round"], numbers(line))


@contextmanager
def opened(names: Sequence[str], notes: Notes) -> Iterator[Sinks]:
    """The sinks among these names, open for the length of a block; names of no sink are passed over.

    >>> with opened(["drift"], Notes(Path("nowhere"), "fedavg", {})) as sinks:
    ...     sinks.write({"round": 1, "loss": 0.5})
    """
    sinks = Sinks([])
    try:
        for name in names:
            if name in NAMES:
                notes.folder.mkdir(parents=True, exist_ok=True)
                sinks.held = [*sinks.held, open_sink(name, notes)]
        yield sinks
    finally:
        for sink in sinks.held:
            sink.close(sinks.result)
