"""The gate in front of Flower's app processes: an app may name Accord's components and bring settings, and no file of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

_SETTINGS = (".toml", ".md")  # what an app may bring; code is what this machine has installed


def main(program: str) -> None:
    """Run one of Flower's programs behind the gate, with this process's arguments."""
    run(program, sys.argv[1:])


def run(program: str, arguments: Sequence[str]) -> None:
    """Run one of Flower's programs, by the entry point that the program itself calls, with the gate shut."""
    import accord.flower  # noqa: F401  # first, so that no file of an app can take its place

    shut(Path(os.environ["FLWR_HOME"]) / "apps")
    sys.argv = [program, *arguments]
    sys.exit(entry(program)())


def entry(program: str) -> Callable[[], Any]:
    """The function behind an installed program."""
    (found,) = entry_points(group="console_scripts", name=program)
    function: Callable[[], Any] = found.load()
    return function


def shut(apps: Path) -> None:
    """From now on nothing under this folder can be opened, to be read or written, unless it is settings; it cannot be undone.

    Apps are unpacked there, and that is the only place that Flower imports an app's own code from.
    """
    inside = os.path.realpath(apps) + os.sep

    def watch(event: str, details: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(details[0], str | bytes | os.PathLike):
            return
        path = os.path.realpath(os.fsdecode(details[0]))
        if path.startswith(inside) and not path.endswith(_SETTINGS):
            raise PermissionError(f"this app brings code or data of its own ({os.path.basename(path)}), which is not accepted here")

    sys.addaudithook(watch)
