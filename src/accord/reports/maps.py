"""The figures that are maps: class-wise accuracy over rounds, and the classes that each client holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accord.reports.picture import Picture, figure, whole
from accord.reports.record import Comparison, Run, by_round, number
from accord.reports.statistics import Row, mean

SAMPLES = ((0.0, "#4a78bd"), (0.5, "#97a08a"), (1.0, "#f2b705"))  # both ends stand out from a white and from a dark page
MOST_CLIENTS = 200
MOST_SPLITS = 3


def class_maps(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """One map per algorithm: the accuracy of every class at every evaluated round, mean over seeds."""
    for place, row in enumerate(rows):
        evaluations = [point for run in comparison.shown(row.algorithm) for point in run.evaluations("global")]
        at = by_round((r, [number(v) for v in e["classes"]]) for r, e in evaluations if isinstance(e.get("classes"), list))
        classes = max((len(values) for found in at.values() for values in found), default=0)
        if not classes:
            continue
        x = list(at)
        z = [[mean([a for v in at[r] if c < len(v) and (a := v[c]) is not None]) for r in x] for c in range(classes)]
        drawn = figure("round", "class", height=260 + 8 * min(classes, 40))
        drawn.add_heatmap(
            x=x,
            y=list(range(classes)),
            z=z,
            xgap=1 if len(x) <= 40 else 0,
            ygap=1,
            zmin=0,
            zmax=1,
            colorscale="Cividis",
            colorbar={"tickformat": ".0%", "thickness": 12, "outlinewidth": 0},
            name="accuracy",
            hovertemplate="class %{y}, round %{x}: %{z:.1%}<extra></extra>",
        )
        drawn.update_yaxes(range=[classes - 0.5, -0.5], tickformat="d", showgrid=False)
        drawn.update_xaxes(showgrid=False, **whole(x))
        caption = (
            "Accuracy of the server's model on every class of the global test set; mean over seeds. Empty: the class has no test sample."
        )
        yield Picture(f"classes-{place}", f"Accuracy by class: {row.algorithm}", caption, drawn, wide=False, of=row.algorithm)


def splits(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """The number of samples of every class at every client, once for every different split (the first three)."""
    different: dict[str, Run] = {}
    for run in comparison.all_runs:
        if run.federation.get("counts"):
            different.setdefault(run.fingerprint or str(run.seed), run)
    for place, run in enumerate(list(different.values())[:MOST_SPLITS]):
        counts: list[list[int]] = run.federation["counts"]
        step = max(1, -(-len(counts) // MOST_CLIENTS))
        clients = list(range(0, len(counts), step))
        classes = max(map(len, counts))
        z = [[counts[c][k] if k < len(counts[c]) and counts[c][k] else None for c in clients] for k in range(classes)]
        drawn = figure("client", "class", height=260 + 8 * min(classes, 40))
        drawn.add_heatmap(
            x=clients,
            y=list(range(classes)),
            z=z,
            xgap=1,
            ygap=1,
            zmin=0,
            colorscale=SAMPLES,
            colorbar={"title": {"text": "samples"}, "thickness": 12, "outlinewidth": 0},
            name="samples",
            hovertemplate="client %{x}, class %{y}: %{z} samples<extra></extra>",
        )
        drawn.update_yaxes(range=[classes - 0.5, -0.5], tickformat="d", showgrid=False)
        drawn.update_xaxes(tickformat="d", showgrid=False, **whole(clients))
        yield Picture(
            f"split-{place}", _title(run, len(different)), _caption(run, len(counts), len(clients)), drawn, wide=len(different) == 1
        )


def _title(run: Run, different: int) -> str:
    said = f" of seed {run.seed} ({different} different splits)" if different > 1 else ""
    return f"Who holds what: the split{said}"


def _caption(run: Run, all_clients: int, shown: int) -> str:
    said = ["Training samples of every class at every client; empty cells hold none."]
    if shown < all_clients:
        said.append(f"{shown} of {all_clients} clients, evenly spaced.")
    if run.federation.get("split"):
        said.append(f"Split: {run.federation['split']}.")
    if (figure := number(run.federation.get("heterogeneity"))) is not None:
        said.append(f"Heterogeneity {figure:.3f}.")
    return " ".join([*said, f"Fingerprint {run.fingerprint}."] if run.fingerprint else said)
