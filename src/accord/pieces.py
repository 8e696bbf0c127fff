"""Pieces of one's own: Python files and modules whose import adds names to the registry."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path

_PREFIX = "accord_use_"


def use(name: str) -> None:
    """Import a module by name, or a Python file by path."""
    try:
        if not name.endswith(".py"):
            importlib.import_module(name)
        else:
            _use_file(name, Path(name).resolve())
    except SyntaxError as error:
        raise ValueError(f"cannot use {name!r}: {error.msg} in line {error.lineno} of {error.filename}") from None
    except Exception as error:
        hint = "; give a module's name or the path of a .py file" if isinstance(error, ModuleNotFoundError | TypeError) else ""
        raise ValueError(f"cannot use {name!r}: {type(error).__name__}: {error}{hint}") from error


def _use_file(name: str, path: Path) -> None:
    label = _PREFIX + path.stem
    if label in sys.modules and getattr(sys.modules[label], "__file__", None) == str(path):
        return
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError("there is no such file")
    sys.modules[label] = module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[label]
        raise


class Pieces:
    """The files in use, for another process: unpickling it imports them there, before whatever is pickled after it.

    >>> Pieces().files
    ()
    """

    def __init__(self) -> None:
        self.files = tuple(str(module.__file__) for name, module in sorted(sys.modules.items()) if name.startswith(_PREFIX))

    def __reduce__(self) -> tuple[object, tuple[Sequence[str]]]:
        return _use_all, (self.files,)


def _use_all(files: Sequence[str]) -> None:
    for file in files:
        use(file)
