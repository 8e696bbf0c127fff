"""The figures of a study, drawn from the runs in its cells by the pictures that the report has, and by a few of their own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accord.check import check, nearest
from accord.reports.page import html_of
from accord.reports.picture import Picture, figure, label, line, symbol
from accord.reports.plots import pictures
from accord.reports.record import Comparison, read_run
from accord.reports.statistics import summarise
from accord.reproduce.toy import paths

if TYPE_CHECKING:
    from accord.reproduce.outcome import Outcome
    from accord.reproduce.study import Study


@dataclass(frozen=True)
class Figure:
    """What is drawn: the report's pictures whose keys begin with one of `draw`; `measures`, the cells' numbers over the columns; `toy`.

    `needs` are analyses that the pictures show, made of every run.
    """

    draw: tuple[str, ...]
    x: str = ""  # the title of the axis that the columns lie along
    needs: tuple[str, ...] = ()

    @classmethod
    def of(cls, said: Mapping[str, Any], where: str) -> Figure:
        """A figure from settings.

        >>> Figure.of({"draw": ["curves"]}, "here")
        Figure(draw=('curves',), x='', needs=())
        """
        hints = {"draw": tuple[str, ...], "x": str, "needs": tuple[str, ...]}
        for key in said:
            if key not in hints:
                raise ValueError(f"unknown key {key!r} in {where}{nearest(key, hints)}")
        return cls(**{key: check(value, hints[key], f"{key} of {where}") for key, value in said.items()})


def drawings(study: Study, found: Sequence[Outcome]) -> list[Picture]:
    """The study's figures, one panel for all columns whose cells have the same runs."""
    wanted = study.figure or Figure(("curves",))
    drawn: list[Picture] = list(measured(study, found)) if "measures" in wanted.draw else []
    drawn += paths(study) if "toy" in wanted.draw else []
    every = panels(study, found)
    for place, (columns, panel) in enumerate(every):
        made = pictures(panel, summarise(panel))
        title = columns[0] if len(columns) == 1 else columns[0].partition(":")[0]  # columns 'setting: measure' share a setting
        drawn += [_panel(p, place, title if len(every) > 1 else "") for p in made if p.key.startswith(wanted.draw)]
    return drawn


def panels(study: Study, found: Sequence[Outcome]) -> list[tuple[list[str], Comparison]]:
    """The different sets of runs that the columns have, with the names of these columns."""
    different: dict[tuple[tuple[str, tuple[Path, ...]], ...], list[str]] = {}
    for column in study.columns:
        runs = tuple((each.cell.row, each.folders) for each in found if each.cell.column == column and each.folders)
        if runs:
            different.setdefault(runs, []).append(column)
    return [
        (columns, Comparison({row: tuple(read_run(folder, row) for folder in folders) for row, folders in runs}))
        for runs, columns in different.items()
    ]


def draw(study: Study, found: Sequence[Outcome], out: Path) -> Path | None:
    """One page of the study's figures; None where nothing was run."""
    whole = Comparison({each.cell.name: tuple(read_run(p, each.cell.name) for p in each.folders) for each in found if each.folders})
    if not whole.runs and study.trained:
        return None
    page, rows = out / "figures.html", summarise(whole) if whole.runs else []
    page.write_text(html_of(whole, rows, drawings(study, found), f"{study.id}: {study.title}"), encoding="utf-8")
    return page


def _panel(picture: Picture, place: int, column: str) -> Picture:
    title = f"{picture.title} ({column})" if column else picture.title
    return replace(picture, key=f"panel-{place}-{picture.key}", title=title, group="")


def measured(study: Study, found: Sequence[Outcome]) -> Iterator[Picture]:
    """The cells' numbers over the columns, one line a row, with the paper's beside them where it prints any.

    Columns whose names begin alike, as in 'Epochs: 5', make a picture of their own, and so does each unit.
    """
    parts: dict[tuple[str, str], list[Outcome]] = {}
    for each in found:
        head, colon, _ = each.cell.column.partition(": ")
        parts.setdefault((head if colon else "", each.cell.unit), []).append(each)
    for number, ((head, unit), cells) in enumerate(parts.items()):
        drawn = figure(head or (study.figure.x if study.figure else ""), unit, height=430)
        for place, row in enumerate(study.rows):
            _row(drawn, place, row, [each for each in cells if each.cell.row == row])
        if drawn.data:
            caption = "Measured: filled, with the standard deviation over seeds. Open: the paper's numbers."
            key, title = ("measures", study.title) if len(parts) == 1 else (f"measures-{number}", f"{study.title}: {head or unit}")
            yield Picture(key, title, caption, drawn)


def _row(drawn: Any, place: int, row: str, cells: Sequence[Outcome]) -> None:
    """The cells of one row: measured, with their spread over seeds, and the paper's."""
    known, said = [each for each in cells if each.mean is not None], [each for each in cells if each.cell.number is not None]
    if known:
        drawn.add_scatter(
            x=[_place(each) for each in known],
            y=[each.mean for each in known],
            error_y={"type": "data", "array": [each.deviation or 0.0 for each in known], "visible": True},
            mode="lines+markers",
            line=line(place),
            marker={"symbol": symbol(place), "size": 8},
            name=label(row),
            hovertemplate="%{x}: %{y:.4g}",
        )
    if said:
        drawn.add_scatter(
            x=[_place(each) for each in said],
            y=[each.cell.number for each in said],
            mode="markers",
            marker={"symbol": f"{symbol(place)}-open", "size": 11, "color": line(place)["color"]},
            name=f"{label(row)}, paper",
            hovertemplate="%{x}: %{y:.4g} in the paper",
        )


def _place(each: Outcome) -> str:
    """Where a cell stands on the axis."""
    return each.cell.column.rpartition(": ")[2]
