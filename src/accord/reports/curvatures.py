"""The figures of what was computed from the final models' Hessians, and of what training cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accord.reports.analysed import numbers, values
from accord.reports.picture import GREY, Picture, colour, figure, label, listing, symbol
from accord.reports.record import Comparison, number
from accord.reports.statistics import Row, mean


def curvature(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """The ends of the Hessian's spectrum, and its trace with its standard error, seed by seed."""
    rows = [row for row in rows if any(values(run, "curvature") for run in comparison.shown(row.algorithm))]
    found = [
        (place, run, held)
        for place, row in enumerate(rows)
        for run in comparison.shown(row.algorithm)
        if (held := values(run, "curvature"))
    ]
    top = [(v, place, run.seed, n) for place, run, held in found for n, v in enumerate(numbers(held.get("eigenvalues")), start=1)]
    low = [(v, place, run.seed, "") for place, run, held in found if (v := number(held.get("smallest"))) is not None]
    if top:
        drawn = listing([row.algorithm for row in rows], "eigenvalue")
        drawn.add_vline(x=0, line={"color": GREY, "width": 1, "dash": "dash"})
        for points, name, place, mark, hover in (
            (top, "largest", 0, "circle-open", "%{x:.5g}: number %{customdata[1]} from above, seed %{customdata[0]}"),
            (low, "most negative", 1, "triangle-left", "%{x:.5g}: the most negative, seed %{customdata[0]}"),
        ):
            drawn.add_scatter(
                x=[v for v, *_ in points],
                y=[at for _, at, *_ in points],
                customdata=[rest for _, _, *rest in points],
                mode="markers",
                marker={"color": colour(place), "size": 9, "symbol": mark},
                name=name,
                hovertemplate=hover + "<extra></extra>",
            )
        said = "Eigenvalues of the Hessian of the mean cross-entropy at the final global model, of every seed. Nearer to zero is flatter."
        yield Picture("curvature", "The ends of the Hessian's spectrum", said, drawn, wide=False)
    traces = [
        (v, place, run.seed, number(held.get("trace_error")) or 0.0)
        for place, run, held in found
        if (v := number(held.get("trace"))) is not None
    ]
    if traces:
        drawn = listing([row.algorithm for row in rows], "trace")
        drawn.add_scatter(
            x=[v for v, *_ in traces],
            y=[place for _, place, *_ in traces],
            customdata=[rest for _, _, *rest in traces],
            error_x={"type": "data", "array": [error for *_, error in traces], "thickness": 2, "width": 5},
            mode="markers",
            marker={"color": colour(0), "size": 9},
            name="one seed",
            hovertemplate="%{x:.5g} ± %{customdata[1]:.2g}, seed %{customdata[0]}<extra></extra>",
        )
        said = "Trace of the Hessian at the final global model by Hutchinson's estimate, with its standard error, of every seed."
        yield Picture("curvature-trace", "Trace of the Hessian", said, drawn, wide=False)


def costs(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """The final accuracy over the multiply-adds of training on one sample."""
    drawn = figure("million multiply-adds a sample", "accuracy", height=380 + 6 * len(rows))
    drawn.update_yaxes(tickformat="~%")
    drawn.update_xaxes(rangemode="tozero")
    for place, row in enumerate(rows):
        held = [values(run, "cost") for run in comparison.shown(row.algorithm)]
        flops = mean([v / 2e6 for each in held if (v := number(each.get("forward_flops"))) is not None])
        stored = mean([v / 1e6 for each in held if (v := number(each.get("stored_parameters"))) is not None])
        if flops is not None and row.mean is not None:
            drawn.add_scatter(
                x=[flops],
                y=[row.mean],
                customdata=[[stored]],
                mode="markers",
                marker={"color": colour(place), "size": 12, "symbol": symbol(place)},
                name=label(row.algorithm),
                legendgroup=str(place),
                meta=row.algorithm,
                hovertemplate="%{y:.2%} for %{x:.4g} M, %{customdata[0]:.4g} M parameters stored",
            )
    if drawn.data:
        ends = [y for trace in drawn.data for y in trace.y]
        drawn.update_yaxes(range=[min(ends) - 0.05, max(ends) + 0.05])
        said = "Final accuracy against the multiply-adds of all forward passes in training on one sample; means over seeds."
        yield Picture("cost", "Operations against accuracy", said, drawn, wide=False)
