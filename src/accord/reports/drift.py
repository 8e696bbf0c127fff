"""The figures of what `--track` records in a run: drift of the clients, the knowledge that they keep, and forgetting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from accord.reports.lines import Points, add_band, legend, over_rounds
from accord.reports.picture import Picture, colour, figure, label, line, symbol, whole
from accord.reports.record import Comparison, Record, Run, by_round, number
from accord.reports.statistics import Row, mean

BANDS = " Bands: lowest to highest seed."


@dataclass(frozen=True)
class Measure:
    """One number of a round's `drift`: the key of its picture, its entry in the record, and its words."""

    key: str
    entry: str
    title: str
    axis: str
    said: str


MEASURES = (
    Measure(
        "variance",
        "gradient_variance",
        "Gradient variance",
        "variance",
        "Mean squared distance of a client's mini-batch gradients to their mean, Σ‖g − ḡ‖²/K, in a round; mean over its clients.",
    ),
    Measure(
        "variance-code",
        "gradient_variance_code",
        "Gradient variance, by FedCONST's program",
        "variance",
        "Sum over the last layer of |E[g²] − E[g]²| of moving averages along the local steps; mean over the round's clients.",
    ),
    Measure(
        "diversity",
        "diversity",
        "Drift diversity",
        "diversity",
        "Weighted mean of the squared norms of the clients' updates over the squared norm of the aggregated one: Σₖ pₖ‖Δwₖ‖²/‖Δw‖².",
    ),
    Measure(
        "consistency",
        "consistency",
        "Consistency",
        "Σₖ pₖ‖Δwₖ‖²",
        "Weighted mean of the squared norms of the clients' updates, as FedCONST prints it; lower is more consistent.",
    ),
    Measure(
        "deviation",
        "consistency_dev",
        "Consistency, from deviations",
        "Σₖ pₖ‖Δwₖ − Δw‖²",
        "Weighted mean of the squared distances of the clients' updates to the aggregated one; lower is more consistent.",
    ),
    Measure(
        "divergence",
        "divergence",
        "Global-local divergence",
        "distance",
        "Mean distance of the local models to the global model that they began with, ‖w − wₖ‖.",
    ),
    Measure(
        "locals",
        "divergence_locals",
        "Divergence between local models",
        "distance",
        "Mean distance between the local models of two clients of the round, ‖wᵢ − wⱼ‖.",
    ),
    Measure("norm", "norm", "Norm of the local models", "‖wₖ‖", "Norm of the local models after every local epoch; mean over clients."),
    Measure(
        "cosine",
        "cosine",
        "Cosine of local and global model",
        "cos(wₖ, w)",
        "Cosine of the local models with the global one after every local epoch; mean over clients.",
    ),
    Measure(
        "orthogonality",
        "orthogonality",
        "Local gradient and proximal gradient",
        "cosine",
        "Cosine of the gradient that a client steps along with that of FedSOL's proximal loss; mean over local steps and clients.",
    ),
    Measure(
        "proximal",
        "proximal_loss",
        "Proximal loss",
        "loss",
        "FedSOL's proximal loss, the distance of the local model's answers to the global one's, along the local steps; mean over clients.",
    ),
)


def drifts(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """Every recorded measure of drift over rounds, or over local epochs where it is recorded at each of them."""
    several = BANDS if len(comparison.seeds) > 1 else ""
    for measure in MEASURES:
        drawn = over_rounds(comparison, rows, partial(_values, entry=measure.entry), measure.axis, ".4g")
        if drawn.data:
            yield Picture(f"drift-{measure.key}", measure.title, measure.said + several, drawn, wide=False)
    yield from _scales(comparison, rows)


def _values(run: Run, entry: str) -> Points:
    """The numbers of an entry at their rounds; those of local epochs at fractions of the round, the last one at its end."""
    for row in run.rounds:
        found = _drift(row).get(entry)
        values = found if isinstance(found, list) else [found]
        for place, value in enumerate(values, start=1):
            if (held := number(value)) is not None:
                yield row["round"] - 1 + place / len(values), held


def _drift(row: Record) -> Record:
    found = row.get("drift")
    return found if isinstance(found, dict) else {}


def _scales(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """FedSOL's Lambda layer by layer, at the last round that has it, mean over seeds."""
    drawn = figure("layer", "mean of Λ", height=430 + 6 * len(rows))
    for place, row in enumerate(rows):
        last = [held[-1] for run in comparison.shown(row.algorithm) if (held := [s for r in run.rounds if (s := _drift(r).get("lambda"))])]
        layers = list(dict.fromkeys(layer for held in last for layer in held))
        if layers:
            drawn.add_scatter(
                x=layers,
                y=[mean([v for held in last if (v := number(held.get(layer))) is not None]) for layer in layers],
                mode="lines+markers",
                line=line(place),
                marker={"symbol": symbol(place), "size": 7},
                name=label(row.algorithm),
                legendgroup=str(place),
                meta=row.algorithm,
                hovertemplate="%{x}: %{y:.4g}",
            )
    if drawn.data:
        drawn.update_xaxes(type="category", tickangle=-45)
        said = "Mean of the perturbation's scaling factors over a layer's parameters, over clients and seeds, at the last recorded round."
        yield Picture("drift-lambda", "Scaling of the perturbation, layer by layer", said, drawn, wide=False)


def knowledge(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """Accuracy of the local models on the global test set right after local training, with the server's model beside it."""
    drawn = figure("round", "accuracy", height=430 + 10 * len(rows), hover="x unified")
    drawn.update_yaxes(tickformat="~%")
    for place, row in enumerate(rows):
        runs = comparison.shown(row.algorithm)
        at = by_round((r["round"], r["knowledge"]) for run in runs for r in run.rounds if isinstance(r.get("knowledge"), dict))
        means = {r: mean([v for held in found if (v := number(held.get("mean"))) is not None]) for r, found in at.items()}
        spread = {r: mean([v for held in found if (v := number(held.get("spread"))) is not None]) or 0.0 for r, found in at.items()}
        known = {r: m for r, m in means.items() if m is not None}
        if not known:
            continue
        ends = [(max(0.0, m - spread[r]), min(1.0, m + spread[r])) for r, m in known.items()]
        add_band(drawn, place, row, list(known), [low for low, _ in ends], [high for _, high in ends])
        drawn.add_scatter(
            x=list(known),
            y=list(known.values()),
            customdata=[spread[r] for r in known],
            mode="lines+markers" if len(known) < 3 else "lines",
            line=line(place),
            name=legend(row, runs),
            legendgroup=str(place),
            meta=row.algorithm,
            hovertemplate="%{y:.2%} ± %{customdata:.2%}",
        )
        server = by_round(pair for run in runs for pair in zip(run.curve().rounds, run.curve().accuracy, strict=True))
        drawn.add_scatter(
            x=list(server),
            y=[mean(found) for found in server.values()],
            mode="lines+markers",
            line={"color": colour(place), "width": 1},
            marker={"symbol": f"{symbol(place)}-open", "size": 5},
            name=f"{legend(row, runs)}, server",
            legendgroup=str(place),
            showlegend=False,
            meta=row.algorithm,
            hovertemplate="%{y:.2%}",
        )
    if drawn.data:
        drawn.update_xaxes(whole([r for trace in drawn.data for r in trace.x]))
        said = (
            "Accuracy on the global test set. Thick lines: the clients' models right after local training, their mean in a band of one "
            "standard deviation over the round's clients. Thin lines with marks: the server's model made of them. Means over seeds."
        )
        yield Picture("knowledge", "Knowledge that local training keeps", said, drawn)


def forgetting(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """Mean over classes of the best accuracy at an earlier evaluation minus the accuracy now, F = (1/C) Σ max_{s<t}(A_c^s − A_c^t)."""
    drawn = over_rounds(comparison, rows, forgotten, "forgetting", ".2%")
    drawn.update_yaxes(tickformat="~%")
    if drawn.data:
        said = "What the server's model has lost: mean over classes of the best accuracy at an earlier evaluation minus the accuracy now."
        yield Picture("forgetting", "Forgetting", said + (BANDS if len(comparison.seeds) > 1 else ""), drawn, wide=False)


def forgotten(run: Run) -> Points:
    """The forgetting of a run at every evaluated round but the first; negative where every class is better than ever.

    >>> from pathlib import Path
    >>> told = [{"round": r, "evaluation": {"global": {"classes": c}}} for r, c in ((1, [0.5, 0.8]), (2, [0.9, 0.2]), (3, [0.8, 0.5]))]
    >>> [(r, round(f, 3)) for r, f in forgotten(Run(Path("a"), "a", 0, {}, tuple(told)))]
    [(2, 0.1), (3, 0.2)]
    """
    best: dict[int, float] = {}
    for r, evaluation in run.evaluations("global"):
        classes = evaluation.get("classes")
        now = {c: v for c, a in enumerate(classes if isinstance(classes, list) else ()) if (v := number(a)) is not None}
        lost = mean([best[c] - v for c, v in now.items() if c in best])
        if lost is not None:
            yield r, lost
        best |= {c: max(v, best.get(c, v)) for c, v in now.items()}
