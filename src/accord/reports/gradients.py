"""The figures of signal and noise in gradients: GSNR at the first and last local step, by size of update, and by size of weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accord.reports.analysed import numbers, of_rows, values
from accord.reports.picture import GREY, Picture, colour, figure, label, line, listing, logarithmic, symbol
from accord.reports.record import Comparison, number
from accord.reports.statistics import Row, mean

ENDS = (
    (
        "gsnr-steps",
        "GSNR at the first and the last local step",
        "sum of GSNR",
        (("first",), "first local step"),
        (("last",), "last local step"),
        "Sum over parameters of the gradients' squared mean over their variance on a client's own samples: at the global model, and at the "
        "client's own after one more local round.",
    ),
    (
        "gsnr-updates",
        "GSNR of the parameters that move most and least",
        "mean GSNR",
        (("top", "gsnr"), "largest tenth of updates"),
        (("bottom", "gsnr"), "smallest tenth of updates"),
        "Mean GSNR of the tenth of the parameters that one more local round moves most, and of the tenth that it moves least.",
    ),
    (
        "gsnr-weights",
        "Weights of the parameters that move most and least",
        "mean |w|",
        (("top", "weight"), "largest tenth of updates"),
        (("bottom", "weight"), "smallest tenth of updates"),
        "Mean size of the weights that one more local round moves most, and of those that it moves least.",
    ),
)


def signal(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """Two ends of each algorithm for each measure, means over clients and seeds; then GSNR over weight size."""
    rows = [row for row in rows if any(values(run, "gsnr") for run in comparison.shown(row.algorithm))]
    if not rows:
        return
    for key, title, axis, one, other, said in ENDS:
        drawn = listing([row.algorithm for row in rows], axis)
        drawn.update_xaxes(rangemode="tozero")
        ends = [[_mean(comparison, row, path) for row in rows] for path, _ in (one, other)]
        gaps = [(v, place) for place, pair in enumerate(zip(*ends, strict=True)) for v in (*pair, None)]
        x, y = [v for v, _ in gaps], [place for _, place in gaps]
        drawn.add_scatter(x=x, y=y, mode="lines", line={"color": GREY}, hoverinfo="skip", showlegend=False)
        for place, (found, (_, name)) in enumerate(zip(ends, (one, other), strict=True)):
            mark = {"color": colour(place), "size": 11, "symbol": symbol(place)}
            drawn.add_scatter(x=found, y=list(range(len(rows))), mode="markers", marker=mark, name=name, hovertemplate="%{x:.4g}")
        yield Picture(key, title, f"{said} Means over clients and seeds.", drawn, wide=False)
    yield from _sizes(comparison, rows)


def _mean(comparison: Comparison, row: Row, path: Sequence[str]) -> float | None:
    found = []
    for run in comparison.shown(row.algorithm):
        held: object = values(run, "gsnr")
        for key in path:
            held = held.get(key) if isinstance(held, dict) else None
        if (value := number(held)) is not None:
            found.append(value)
    return mean(found)


def _sizes(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    drawn = figure("mean |w| of the bin", "mean GSNR", height=400 + 6 * len(rows))
    for place, row, run, held in of_rows(comparison, rows, "gsnr"):
        against = held.get("against_size")
        if isinstance(against, dict) and against.get("weight"):
            drawn.add_scatter(
                x=numbers(against["weight"]),
                y=numbers(against["gsnr"]),
                mode="lines+markers",
                line=line(place),
                marker={"symbol": symbol(place), "size": 6},
                name=label(row.algorithm),
                legendgroup=str(place),
                meta=row.algorithm,
                hovertemplate=f"%{{y:.4g}} at |w| %{{x:.4g}}, seed {run.seed}",
            )
    if drawn.data:
        drawn.update_xaxes(**logarithmic([v for trace in drawn.data for v in trace.x]))
        said = "Mean GSNR of parameters in bins of equally many by the size of their weights, of each algorithm's first analysed seed."
        yield Picture("gsnr-size", "GSNR against weight size", said, drawn, wide=False)
