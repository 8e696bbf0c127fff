"""The figures of every two clients of a run: how alike their Hessians are, and their features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from accord.reports.analysed import of_rows
from accord.reports.picture import Picture, figure
from accord.reports.record import Comparison, number
from accord.reports.statistics import Row

MATRICES = (
    ("clients", "gaps", "clients-hn", "Hessian norms of clients", "H_N: (‖dₖ‖ − ‖dⱼ‖)²", "lower is more alike"),
    ("clients", "directions", "clients-hd", "Hessian directions of clients", "H_D: cosine of dₖ and dⱼ", "higher is more alike"),
    ("features", "table", "features-cka", "Features of clients", "CKA of the features on the same samples", "higher is more alike"),
)


def matrices(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """One map of all pairs of clients for each measure and algorithm, of the first analysed seed."""
    for analysis, entry, key, title, what, better in MATRICES:
        found = [(place, row, run, held, _cells(held, analysis, entry)) for place, row, run, held in of_rows(comparison, rows, analysis)]
        known = [v for *_, cells in found for line in cells for v in line if v is not None]
        for place, row, run, held, cells in found:
            if not cells:
                continue
            names = [str(client) for client in held["clients"]]
            drawn = figure("client", "client", height=380)
            drawn.add_heatmap(
                x=names,
                y=names,
                z=cells,
                zmin=min(0.0, *known),
                zmax=max(known) if entry == "gaps" else 1.0,
                colorscale="Cividis",
                colorbar={"thickness": 12, "outlinewidth": 0},
                xgap=1,
                ygap=1,
                hovertemplate="clients %{x} and %{y}: %{z:.4g}<extra></extra>",
            )
            drawn.update_xaxes(type="category", showgrid=False)
            drawn.update_yaxes(type="category", showgrid=False, autorange="reversed")
            after = "d the traces of the Hessian's blocks" if analysis == "clients" else "at the layer before the head"
            of = f"for the models of every two clients after one more local round, seed {run.seed}"
            said = f"{what}, {after}, {of}; {better}. All algorithms share one scale."
            yield Picture(f"{key}-{place}", f"{title}: {row.algorithm}", said, drawn, wide=False, of=row.algorithm)


def _cells(held: Mapping[str, Any], analysis: str, entry: str) -> list[list[float | None]]:
    """The matrix in what an analysis found; that of the Hessians is in the form of FedAlign's program."""
    inside = held.get("code", {}) if analysis == "clients" else held
    return [[number(v) for v in line] for line in inside.get(entry) or []]
