"""The figures of the loss around trained models: the spectrum of its Hessian, its course along directions, and over a plane."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accord.reports.analysed import numbers, of_rows, values
from accord.reports.lines import add
from accord.reports.picture import Picture, figure, label, line, logarithmic
from accord.reports.record import Comparison, by_round, number
from accord.reports.statistics import Row

LINES = {
    "random": ("landscape-line", "Loss along a random direction", "normal and as long as the weights"),
    "filter": (
        "landscape-line-filter",
        "Loss along a filter-normalised direction",
        "normal, each filter as long as the model's",
    ),
}


def spectrum(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """The density of the Hessian's eigenvalues, of the first analysed seed of each algorithm."""
    drawn = figure("eigenvalue", "density", height=430 + 6 * len(rows))
    for place, row, run, held in of_rows(comparison, rows, "spectrum"):
        density = numbers(held.get("density"))
        floor = 1e-6 * max(density, default=1.0)
        drawn.add_scatter(
            x=numbers(held.get("grid")),
            y=[max(v, floor) for v in density],
            mode="lines",
            line={**line(place), "width": 1.5},
            name=label(row.algorithm),
            legendgroup=str(place),
            meta=row.algorithm,
            hovertemplate=f"density %{{y:.3g}} at %{{x:.4g}}, seed {run.seed}",
        )
    if drawn.data:
        drawn.update_yaxes(**logarithmic([v for trace in drawn.data for v in trace.y]))
        said = (
            "Density of the eigenvalues of the Hessian at the global model, by stochastic Lanczos quadrature, of each algorithm's first "
            "analysed seed. What lies left of zero are directions in which the loss curves downwards."
        )
        yield Picture("spectrum", "Spectrum of the Hessian", said, drawn)


def courses(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """The loss along a random direction and along a filter-normalised one, mean over seeds."""
    for entry, (key, title, told) in LINES.items():
        drawn = figure("step along the direction", "loss", height=400 + 6 * len(rows), hover="x unified")
        for place, row in enumerate(rows):
            runs = [run for run in comparison.shown(row.algorithm) if entry in values(run, "landscape")]
            found = [values(run, "landscape") for run in runs]
            pairs = [pair for held in found for pair in zip(numbers(held["line"]), _losses(held[entry]), strict=True)]
            add(drawn, place, row, runs, by_round((a, v) for a, v in pairs if v is not None), ".4g")
        if drawn.data:
            drawn.update_yaxes(**logarithmic([v for trace in drawn.data for v in trace.y]))
            said = f"Mean cross-entropy at w + a e for steps a, e being {told}; means over seeds. Lower at the sides is flatter."
            yield Picture(key, title, said, drawn, wide=False)


def _losses(found: object) -> list[float | None]:
    return [number(v) for v in found] if isinstance(found, list) else []


def planes(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """The loss over the plane of the Hessian's top two eigenvectors, in the same colours for all algorithms."""
    held = [each for each in of_rows(comparison, rows, "landscape") if each[3].get("plane")]
    tables = [[_losses(found["plane"][n]) for n in range(len(found["plane"]))] for *_, found in held]
    everything = [v for rows_of in tables for losses in rows_of for v in losses if v is not None]
    for (place, row, run, found), losses in zip(held, tables, strict=True):
        side = numbers(found.get("side"))
        drawn = figure("along the first eigenvector", "along the second", height=400)
        drawn.add_contour(
            x=side,
            y=side,
            z=[list(column) for column in zip(*losses, strict=True)],  # recorded with a row for each step along the first
            zmin=min(everything),
            zmax=max(everything),
            ncontours=24,
            colorscale="Cividis",
            line={"width": 0.5},
            colorbar={"title": {"text": "loss"}, "thickness": 12, "outlinewidth": 0},
            hovertemplate="%{x:.2f}, %{y:.2f}: loss %{z:.4g}<extra></extra>",
        )
        cross = {"symbol": "cross-thin-open", "size": 10, "color": "white"}
        drawn.add_scatter(x=[0], y=[0], mode="markers", marker=cross, showlegend=False, hoverinfo="skip")
        drawn.update_xaxes(showgrid=False)
        drawn.update_yaxes(showgrid=False)
        sizes = " and ".join(f"{v:.4g}" for v in numbers(found.get("eigenvalues")))
        said = f"Mean cross-entropy around the global model (cross) of seed {run.seed}; eigenvalues {sizes}. All share one scale."
        title = f"Landscape of the loss: {row.algorithm}"
        yield Picture(f"landscape-plane-{place}", title, said, drawn, wide=False, of=row.algorithm)
