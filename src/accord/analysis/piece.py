"""What an analysis is in a recipe: a piece that says one thing about a finished run, with its settings as arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from accord.analysis.subject import Subject

Values: TypeAlias = dict[str, Any]
Progress: TypeAlias = Callable[[str, int, int], None]  # what is done, how often, out of how many


def quiet(what: str, done: int, total: int) -> None:
    """Say nothing.

    >>> quiet("eigenvalues", 1, 30)
    """


class Analysis:
    """An analysis of a run. Its fields are its settings; `accord list analyses` shows all of them."""

    kind: ClassVar[str] = "analysis"
    name: str

    def of(self, subject: Subject, progress: Progress) -> Values:
        """What the analysis says, in numbers, texts, lists and tables that JSON can hold."""
        raise TypeError(f"{type(self).__name__} does not say what it finds")
