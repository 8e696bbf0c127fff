"""Lines over rounds, one for each algorithm: the mean over its runs, in a band from the lowest to the highest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from accord.reports.picture import colour, figure, label, line, whole
from accord.reports.record import Comparison, Round, Run, by_round
from accord.reports.statistics import Row, mean

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Points = Iterable[tuple[float, float]]


def over_rounds(comparison: Comparison, rows: Sequence[Row], points: Callable[[Run], Points], axis: str, form: str) -> Figure:
    """A figure of what `points` finds in every run; without a line where it finds nothing. `form` is d3's form of a value.

    >>> over_rounds(Comparison({}), [], lambda run: [], "loss", ".2f").data
    ()
    """
    drawn = figure("round", axis, height=400 + 6 * len(rows), hover="x unified")
    for place, row in enumerate(rows):
        runs = comparison.shown(row.algorithm)
        add(drawn, place, row, runs, by_round(point for run in runs for point in points(run)), form)
    drawn.update_xaxes(whole([r for trace in drawn.data for r in trace.x]))
    return drawn


def legend(row: Row, runs: Sequence[Run]) -> str:
    """What a legend calls the runs of a row."""
    return label(row.algorithm) + ("" if any(run.finished for run in runs) else " (unfinished)")


def add(drawn: Figure, place: int, row: Row, runs: Sequence[Run], at: Mapping[Round, Sequence[float]], form: str) -> None:
    """Add the line of one algorithm, and its band where it has several runs; nothing of nothing."""
    x, band = list(at), len(runs) > 1
    if not x:
        return
    low, high = [min(at[r]) for r in x], [max(at[r]) for r in x]
    if band:
        add_band(drawn, place, row, x, low, high)
    drawn.add_scatter(
        x=x,
        y=[mean(at[r]) for r in x],
        customdata=list(zip(low, high, strict=True)),
        mode="lines+markers" if len(x) < 3 else "lines",
        line=line(place),
        name=legend(row, runs),
        legendgroup=str(place),
        meta=row.algorithm,
        hovertemplate=f"%{{y:{form}}}" + (f" (%{{customdata[0]:{form}}} to %{{customdata[1]:{form}}})" if band else ""),
    )


def add_band(drawn: Figure, place: int, row: Row, x: Sequence[float], low: Sequence[float], high: Sequence[float]) -> None:
    """Add a band between two lines, which the legend switches with the line of the same place."""
    drawn.add_scatter(
        x=[*x, *reversed(x)],
        y=[*high, *reversed(low)],
        fill="toself",
        fillcolor=colour(place, 0.15),
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        legendgroup=str(place),
        showlegend=False,
        name=label(row.algorithm),
        meta=row.algorithm,
    )
