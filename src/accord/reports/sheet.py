r"""A table of any values under headings, as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

NOTHING = "–"


@dataclass(frozen=True)
class Head:
    """A column's heading; `form` is the format of its numbers, empty where it holds texts."""

    text: str
    form: str = ""


@dataclass(frozen=True)
class Sheet:
    """A table: a key that names its files, a title, headings, and one value under each in every row; None where there is none.

    >>> sheet = Sheet("cost", "Cost", (Head("Algorithm"), Head("MB", ".1f")), (("fedavg", 1.25), ("fedsol", None)))
    >>> sheet.texts()
    [['fedavg', '1.2'], ['fedsol', '–']]
    >>> print(sheet.csv(), end="")
    Algorithm,MB
    fedavg,1.25
    fedsol,
    """

    key: str
    title: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[object, ...], ...]

    def texts(self) -> list[list[str]]:
        """The cells as they are shown."""
        return [[_text(value, head.form) for value, head in zip(row, self.heads, strict=True)] for row in self.rows]

    def markdown(self) -> str:
        """A GitHub-flavoured table."""
        return markdown([head.text for head in self.heads], self._numbers, self.texts())

    def latex(self) -> str:
        """A `tabular` with the rules of booktabs."""
        return latex([head.text for head in self.heads], self._numbers, self.texts())

    def csv(self) -> str:
        """The values in full precision; a missing one is empty."""
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([[head.text for head in self.heads], *self.rows])
        return text.getvalue()

    @property
    def _numbers(self) -> list[bool]:
        return [bool(head.form) for head in self.heads]


def _text(value: object, form: str) -> str:
    if value is None:
        return NOTHING
    if form and isinstance(value, int | float):
        return format(value, "," if isinstance(value, int) and form.endswith("g") else form).replace("-", "−")
    return str(value)


def markdown(heads: Sequence[str], numbers: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    """A GitHub-flavoured table; columns of numbers stand to the right.

    >>> print(markdown(["a", "b"], [False, True], [["x|y", "1"]]), end="")
    | a | b |
    | --- | ---: |
    | x\\|y | 1 |
    """
    lines = [heads, ["---:" if number else "---" for number in numbers], *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _plain(text: str) -> str:
    escaped = "".join("\\" + c if c in "\\|*_`<>[]#" else c for c in text)
    return " ".join(escaped.split())


def latex(heads: Sequence[str], numbers: Sequence[bool], rows: Sequence[Sequence[str]]) -> str:
    r"""A `tabular` with the rules of booktabs.

    >>> print(latex(["a", "b"], [False, True], [["x", "5 %"]]).splitlines()[4])
    x & 5 \% \\
    """
    body = [" & ".join(map(_latex, row)) + r" \\" for row in (heads, *rows)]
    form = "".join("r" if number else "l" for number in numbers)
    lines = [rf"\begin{{tabular}}{{{form}}}", r"\toprule", body[0], r"\midrule", *body[1:], r"\bottomrule", r"\end{tabular}"]
    return "\n".join(lines) + "\n"


def _latex(text: str) -> str:
    special = {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "±": r"$\pm$",
        "−": "$-$",
        "–": "--",
        "[": "{[}",
        **{sign: rf"$\{name}$" for sign, name in {"λ": "lambda", "Σ": "sum", "Δ": "Delta", "Λ": "Lambda"}.items()},
        **{c: "\\" + c for c in "&%$#_{}"},
    }
    return " ".join("".join(special.get(c, c) for c in text).split())
