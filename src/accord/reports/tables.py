"""The rows of a comparison as a terminal table, Markdown, LaTeX, CSV and plain dicts, from one description of the columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Literal

from accord.reports.sheet import NOTHING, latex, markdown
from accord.reports.statistics import Row

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Column:
    """A column: its heading, and the pieces of a row's cell, which stand side by side or, in a narrow table, one above the other."""

    heading: str
    pieces: Callable[[Row], tuple[str, ...]]
    number: bool = True

    def cell(self, row: Row, between: str = " ") -> str:
        """The text of a row's cell."""
        return between.join(self.pieces(row))


def percent(value: float | None) -> str:
    """A fraction in per cent.

    >>> percent(0.8731), percent(None)
    ('87.31', '–')
    """
    return NOTHING if value is None else f"{100 * value:.2f}"


def points(value: float | None) -> str:
    """A difference of fractions in percentage points, with its sign.

    >>> points(0.012), points(-0.003), points(0.0)
    ('+1.20', '−0.30', '0.00')
    """
    if value is None:
        return NOTHING
    text = f"{100 * value:+.2f}"
    return "0.00" if text in ("+0.00", "-0.00") else text.replace("-", "−")


def _accuracy(row: Row) -> tuple[str, ...]:
    return (percent(row.mean),) if row.sd is None else (percent(row.mean), f"± {percent(row.sd)}")


def _difference(row: Row) -> tuple[str, ...]:
    if row.low is None or row.high is None:
        return (points(row.difference),)
    return points(row.difference), f"[{points(row.low)}, {points(row.high)}]"


def _rounds(row: Row) -> tuple[str, ...]:
    shown = NOTHING if row.rounds_to_target is None else f"{row.rounds_to_target:.1f}".removesuffix(".0")
    return (shown, f"({row.reached}/{row.seeds})") if row.seeds and row.target is not None else (shown,)


def _seeds(row: Row) -> tuple[str, ...]:
    return (str(row.seeds), f"(+{row.unfinished} unfinished)") if row.unfinished else (str(row.seeds),)


def _amount(value: float | None) -> tuple[str, ...]:
    if value is None:
        return (NOTHING,)
    return (f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}",)


def columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """The columns of the table of these rows; without differences when there is nothing to compare."""
    compared = (
        Column("Difference, points [95 % interval]", _difference),
        Column("Verdict", lambda row: tuple(row.verdict.split(" ", 1)), number=False),
    )
    return (
        Column("Algorithm", lambda row: (row.algorithm,), number=False),
        Column("Seeds", _seeds),
        Column("Accuracy, %", _accuracy),
        *(compared if len(rows) > 1 else ()),
        Column("Rounds to target", _rounds),
        Column("MB sent", lambda row: _amount(row.megabytes)),
        Column("Seconds", lambda row: _amount(row.seconds)),
    )


def caption(rows: Sequence[Row]) -> str:
    """What the numbers of the table are, in words."""
    if not rows:
        return "No algorithm."
    first = rows[0]
    said = ["Accuracy: mean ± standard deviation of the final accuracy over seeds."]
    if len(rows) > 1:
        said.append(f"Difference: to {first.baseline} in percentage points, paired by seed, with its 95 % Student-t interval.")
        said.append("An interval that includes zero distinguishes nothing.")
    if first.target is not None:
        of = f", the mean final accuracy of {first.baseline}" if first.target_is != "given" else ""
        said.append(f"Target: {percent(first.target)} %{of}; rounds are the mean over the seeds that reached it (how many of how many).")
    return " ".join([*said, "MB (up and down) and seconds: mean per run. Rows stand in the given order, which is no ranking."])


def to_rich(rows: Sequence[Row], width: int = 100, title: str | None = None) -> Table:
    """The table for a terminal of that many columns; nothing is cut off.

    >>> to_rich([]).row_count
    0
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    described = columns(rows)
    headings = [c.heading.replace(", points", "").replace(", ", ",\n").replace(" [", "\n[").replace(" to ", "\nto ") for c in described]
    between, widths = _fit([[heading, *(c.cell(row, "\n") for row in rows)] for c, heading in zip(described, headings, strict=True)], width)
    table = Table(
        title=None if title is None else Text(title),
        caption=Text(caption(rows)) if rows else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1 if width >= 100 else 0),
        collapse_padding=True,
    )
    for column, heading, wide in zip(described, headings, widths, strict=True):
        side: Literal["left", "right"] = "right" if column.number else "left"
        table.add_column(Text(heading), justify=side, overflow="fold", width=wide)
    styles = {"better": "green", "worse": "red", "not distinguishable": "dim"}
    for row in rows:
        table.add_row(*(Text(c.cell(row, between), style=styles.get(c.cell(row), "")) for c in described))
    return table


def _fit(cells: Sequence[Sequence[str]], width: int) -> tuple[str, list[int | None]]:
    """What stands between the pieces of a cell, and the widths of all columns but the first, for a terminal of that width."""
    lines = [[line for cell in column for line in cell.split("\n")] for column in cells]
    whole = [max(max(len(c) for c in column[1:]) if column[1:] else 0, *(len(h) for h in column[0].split("\n"))) for column in cells]
    if sum(whole) + 3 * len(whole) <= width:
        return " ", [None] * len(whole)
    texts = [max(len(word) for line in column for word in line.split()) for column in lines]
    pieces = [max(map(len, column)) for column in lines]
    roomy = sum(pieces[1:]) + texts[0] + 3 * len(pieces) <= width + 4
    return "\n", [None, *(pieces if roomy else texts)[1:]]


def to_markdown(rows: Sequence[Row]) -> str:
    """A GitHub-flavoured table.

    >>> print(to_markdown([]).splitlines()[1])
    | --- | ---: | ---: | ---: | ---: | ---: |
    """
    return markdown(*_plain(rows))


def to_latex(rows: Sequence[Row]) -> str:
    r"""A `tabular` with the rules of booktabs.

    >>> print(to_latex([]).splitlines()[0])
    \begin{tabular}{lrrrrr}
    """
    return latex(*_plain(rows))


def _plain(rows: Sequence[Row]) -> tuple[list[str], list[bool], list[list[str]]]:
    described = columns(rows)
    return [c.heading for c in described], [c.number for c in described], [[c.cell(row) for c in described] for row in rows]


def to_csv(rows: Sequence[Row]) -> str:
    """Every field of every row in full precision, under its name; a missing value is empty.

    >>> to_csv([]).startswith("algorithm,seeds,mean,sd,difference,low,high,verdict")
    True
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, [f.name for f in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(to_dicts(rows))
    return text.getvalue()


def to_dicts(rows: Sequence[Row]) -> list[dict[str, object]]:
    """The rows as dicts that `json.dumps` takes."""
    return [asdict(row) for row in rows]
