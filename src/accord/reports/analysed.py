"""The analyses of finished models as tables: every number that `accord analyze` found, one row a run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from accord.reports.record import Comparison, Run, number
from accord.reports.sections import escape, section, table
from accord.reports.sheet import Head, Sheet
from accord.reports.statistics import Row

MOST = 10  # numbers of a list that a table shows; longer ones are drawn
Cells: TypeAlias = dict[str, object]


def analyses(comparison: Comparison) -> str:
    """A table for each analysis, and what it was made with; empty where nothing was analysed."""
    parts = [
        f"<details open><summary>{sheet.title}</summary>{table(sheet)}{_made(comparison, sheet)}</details>" for sheet in tables(comparison)
    ]
    said = "<p>Numbers that <code>accord analyze</code> found of the trained models. Long lists and grids are among the figures.</p>"
    return section("analyses", "Analyses", said, *parts) if parts else ""


def _made(comparison: Comparison, sheet: Sheet) -> str:
    name = sheet.key.removeprefix("analysis-")
    texts = {str((run.analysis[name].get("settings") or {}).get("text") or name) for run in comparison.all_runs if name in run.analysis}
    return f'<p class="note">Made by {" and ".join(f"<code>{escape(text)}</code>" for text in sorted(texts))}.</p>'


def tables(comparison: Comparison) -> Iterator[Sheet]:
    """The numbers of each analysis, run by run."""
    for name in dict.fromkeys(name for run in comparison.all_runs for name in run.analysis):
        found = [(run, scalars(values(run, name))) for run in comparison.all_runs if name in run.analysis]
        columns = dict.fromkeys(column for _, cells in found for column in cells)
        if columns:
            heads = (Head("Algorithm"), Head("Seed", "d"), *(Head(column, ".5g") for column in columns))
            rows = tuple((run.name, run.seed, *(cells.get(column) for column in columns)) for run, cells in found)
            yield Sheet(f"analysis-{name}", name.capitalize(), heads, rows)


def values(run: Run, name: str) -> Mapping[str, Any]:
    """What an analysis of a run found; empty where it was not made."""
    found = run.analysis.get(name, {}).get("values")
    return found if isinstance(found, Mapping) else {}


def of_rows(comparison: Comparison, rows: Sequence[Row], name: str) -> Iterator[tuple[int, Row, Run, Mapping[str, Any]]]:
    """The first run of each row that an analysis was made of: the row's place, the row, the run, and what was found."""
    for place, row in enumerate(rows):
        found = ((place, row, run, values(run, name)) for run in comparison.shown(row.algorithm) if values(run, name))
        yield from itertools.islice(found, 1)


def numbers(found: object) -> list[float]:
    """The finite numbers of a list.

    >>> numbers([1, None, 2.5])
    [1.0, 2.5]
    """
    return [v for each in found if (v := number(each)) is not None] if isinstance(found, list) else []


def scalars(found: Mapping[str, object], before: str = "") -> Cells:
    """The numbers and yes-or-nos in what an analysis found, those of short lists and dicts too, under names in words.

    >>> scalars({"lambda1": 2.0, "eigenvalues": [2.0, 1.0], "converged": True, "grid": [0.0] * 99, "text": "a"})
    {'lambda1': 2.0, 'eigenvalues 1': 2.0, 'eigenvalues 2': 1.0, 'converged': 'yes'}
    """
    cells: Cells = {}
    for key, value in found.items():
        name = before + str(key).replace("_", " ")
        if isinstance(value, bool):
            cells[name] = "yes" if value else "no"
        elif isinstance(value, list) and 0 < len(value) <= MOST and all(number(v) is not None for v in value):
            cells |= {f"{name} {place}": v for place, v in enumerate(value, start=1)}
        elif isinstance(value, Mapping) and len(value) <= MOST:
            cells |= scalars(value, f"{name} ")
        elif number(value) is not None:
            cells[name] = value
    return cells
