"""The figures of a comparison. Each is a small function from the comparison and its rows to pictures: none, where nothing was recorded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from accord.reports.curvatures import costs, curvature
from accord.reports.drift import drifts, forgetting, knowledge
from accord.reports.embeddings import embeddings
from accord.reports.gradients import signal
from accord.reports.landscapes import courses, planes, spectrum
from accord.reports.lines import add
from accord.reports.maps import class_maps, splits
from accord.reports.matrices import matrices
from accord.reports.picture import GREY, Picture, colour, figure, label, line, listing, symbol, whole
from accord.reports.record import Comparison, by_round, number
from accord.reports.statistics import Row, mean, pairs, rounds_to

Draw: TypeAlias = Callable[[Comparison, Sequence[Row]], Iterator[Picture]]

KINDS = {
    "global": "the server's model on the global test set",
    "local": "the server's model on each client's own test data",
    "personal": "each client's personal model on its own test data",
    "new": "the held-out clients",
}


def pictures(comparison: Comparison, rows: Sequence[Row]) -> list[Picture]:
    """Every figure that the records allow, in the order of the page.

    >>> pictures(Comparison({}), [])
    []
    """
    return [replace(picture, group=group) for group, draws in FIGURES.items() for draw in draws for picture in draw(comparison, rows)]


def curves(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """Accuracy over rounds: the mean over seeds, in a band from the lowest to the highest seed."""
    drawn = figure("round", "accuracy", height=430 + 6 * len(rows), hover="x unified")
    drawn.update_yaxes(tickformat="~%")
    for place, row in enumerate(rows):
        runs = comparison.shown(row.algorithm)
        measured = [run.curve(comparison.kind) for run in runs]
        at = by_round((r, a) for curve in measured for r, a in zip(curve.rounds, curve.accuracy, strict=True))
        add(drawn, place, row, runs, at, ".2%")
    if drawn.data:
        drawn.update_xaxes(whole([r for trace in drawn.data for r in trace.x]))
        band = " Lines are means over seeds; bands reach from the lowest to the highest seed." if len(comparison.seeds) > 1 else ""
        yield Picture("curves", "Accuracy over rounds", f"Accuracy of {KINDS[comparison.kind]} at every evaluated round.{band}", drawn)


def forest(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """The paired differences to the baseline with their intervals, and a line at zero."""
    compared = [row for row in rows if row.difference is not None]
    if not compared:
        return
    drawn = listing([row.algorithm for row in compared], "percentage points")
    drawn.add_vline(x=0, line={"color": GREY, "width": 1.5, "dash": "dash"})
    seeds = [(place, seed, d) for place, row in enumerate(compared) for seed, d in pairs(comparison, row.algorithm, row.baseline).items()]
    drawn.add_scatter(
        x=[100 * d for _, _, d in seeds],
        y=[place for place, _, _ in seeds],
        text=[f"seed {seed}" for _, seed, _ in seeds],
        mode="markers",
        name="one seed",
        marker={"color": GREY, "size": 7, "symbol": "line-ns-open", "line": {"width": 2}},
        hovertemplate="%{text}: %{x:+.2f}<extra></extra>",
    )
    for sure, name, mark in ((True, "interval without zero", "circle"), (False, "interval with zero", "circle-open")):
        chosen = [
            (place, row) for place, row in enumerate(compared) if row.low is not None and (row.verdict in ("better", "worse")) is sure
        ]
        if not chosen:
            continue
        middle = [100 * (row.difference or 0.0) for _, row in chosen]
        half = [100 * ((row.high or 0.0) - (row.low or 0.0)) / 2 for _, row in chosen]
        drawn.add_scatter(
            x=middle,
            y=[place for place, _ in chosen],
            error_x={"type": "data", "array": half, "thickness": 2, "width": 6},
            mode="markers",
            name=name,
            marker={"color": colour(0 if sure else 1), "size": 11, "symbol": mark, "line": {"width": 2, "color": colour(0 if sure else 1)}},
            customdata=[(m - h, m + h, row.verdict) for m, h, (_, row) in zip(middle, half, chosen, strict=True)],
            hovertemplate="%{x:+.2f} (%{customdata[0]:+.2f} to %{customdata[1]:+.2f}): %{customdata[2]}<extra></extra>",
        )
    caption = "Final accuracy minus the baseline's, paired by seed: the mean, its 95 % Student-t interval, and the single seeds."
    yield Picture("forest", f"Difference to {rows[0].baseline}", caption, drawn, wide=False)


def rounds_to_target(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """The rounds that each seed took to the target, and their mean."""
    target = rows[0].target if rows else None
    runs = [(place, run) for place, row in enumerate(rows) for run in comparison.runs[row.algorithm] if run.finished and run.rounds]
    if target is None or not runs or (len(rows) == 1 and rows[0].target_is != "given"):
        return
    found = [(place, run, rounds_to(run, target, comparison.kind)) for place, run in runs]
    reached = [(place, r, run.seed) for place, run, r in found if r is not None]
    missed = [(place, run.rounds[-1]["round"], run.seed) for place, run, r in found if r is None]
    means = [(place, row.rounds_to_target, row.reached) for place, row in enumerate(rows) if row.rounds_to_target is not None]
    drawn = listing([row.algorithm for row in rows], "rounds")
    drawn.update_xaxes(rangemode="tozero")
    for points, name, marker, hover in (
        (reached, "one seed", {"color": GREY, "size": 7, "symbol": "line-ns-open", "line": {"width": 2}}, "seed %{text}: round %{x}"),
        (
            missed,
            "not reached",
            {"color": colour(1), "size": 9, "symbol": "x-thin-open", "line": {"width": 2}},
            "seed %{text}: not reached in %{x} rounds",
        ),
        (means, "mean of the seeds that reached it", {"color": colour(0), "size": 11}, "mean of %{text} seeds: %{x:.1f}"),
    ):
        if points:
            x, y, text = [p[1] for p in points], [p[0] for p in points], [str(p[2]) for p in points]
            hover += "<extra></extra>"
            drawn.add_scatter(x=x, y=y, text=text, mode="markers", name=name, marker=marker, hovertemplate=hover)
    source = "given" if rows[0].target_is == "given" else f"the mean final accuracy of {rows[0].baseline}"
    caption = f"The first evaluated round with an accuracy of at least {target:.2%} ({source})."
    yield Picture("rounds", "Rounds to the target", caption, drawn, wide=False)


def bytes_against_accuracy(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """Accuracy over what had been sent, up and down, mean over seeds."""
    drawn = figure("MB sent, up and down", "accuracy", height=400 + 6 * len(rows))
    drawn.update_yaxes(tickformat="~%")
    for place, row in enumerate(rows):
        measured = [run.curve(comparison.kind) for run in comparison.shown(row.algorithm)]
        at = by_round((r, (sent, a)) for c in measured for r, a, sent in zip(c.rounds, c.accuracy, c.bytes, strict=True))
        if any(sent for found in at.values() for sent, _ in found):
            drawn.add_scatter(
                x=[mean([sent / 1e6 for sent, _ in found]) for found in at.values()],
                y=[mean([accuracy for _, accuracy in found]) for found in at.values()],
                mode="lines+markers" if len(at) <= 20 else "lines",
                line=line(place),
                marker={"symbol": symbol(place), "size": 6},
                name=label(row.algorithm),
                legendgroup=str(place),
                meta=row.algorithm,
                text=[f"round {r}" for r in at],
                hovertemplate="%{y:.2%} after %{x:.2f} MB, %{text}",
            )
    if drawn.data:
        caption = "Accuracy against the bytes sent until then, up and down; both are means over seeds."
        yield Picture("bytes", "Bytes against accuracy", caption, drawn, wide=False)


def losses(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """The clients' mean training loss over rounds, mean over seeds."""
    drawn = figure("round", "training loss", height=400 + 6 * len(rows), hover="x unified")
    for place, row in enumerate(rows):
        entries = [entry for run in comparison.shown(row.algorithm) for entry in run.rounds]
        at = by_round((entry["round"], loss) for entry in entries if (loss := number(entry.get("loss"))) is not None)
        if at:
            y = [mean(found) for found in at.values()]
            drawn.add_scatter(
                x=list(at),
                y=y,
                mode="lines",
                line=line(place),
                name=label(row.algorithm),
                legendgroup=str(place),
                meta=row.algorithm,
                hovertemplate="%{y:.4f}",
            )
    if drawn.data:
        drawn.update_xaxes(whole([r for trace in drawn.data for r in trace.x]))
        caption = "Mean loss of the round's clients while they trained; the mean over seeds. Objectives may differ between algorithms."
        yield Picture("loss", "Training loss", caption, drawn, wide=False)


def spreads(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """For every evaluation over clients: the mean client and the worst tenth at the last evaluation, mean over seeds."""
    for kind in ("local", "personal", "new"):
        found: list[tuple[int, dict[str, float]]] = []
        for place, row in enumerate(rows):
            last = [e[-1][1] for run in comparison.shown(row.algorithm) if (e := run.evaluations(kind))]
            values = {key: mean([v for e in last if (v := number(e.get(key))) is not None]) for key in ("mean", "worst", "spread")}
            if values["mean"] is not None:
                found.append((place, {key: math.nan if v is None else v for key, v in values.items()}))
        if not found:
            continue
        drawn = listing([row.algorithm for row in rows], "accuracy")
        drawn.update_xaxes(tickformat="~%", rangemode="tozero")
        y = [place for place, _ in found]
        gaps = [(v, place) for place, e in found for v in (e["worst"], e["mean"], None)]
        drawn.add_scatter(
            x=[v for v, _ in gaps],
            y=[p for _, p in gaps],
            mode="lines",
            line={"color": GREY},
            hoverinfo="skip",
            showlegend=False,
            name="gap",
        )
        for key, name, place in (("worst", "worst tenth of clients", 1), ("mean", "mean over clients", 0)):
            drawn.add_scatter(
                x=[e[key] for _, e in found],
                y=y,
                customdata=[e["spread"] for _, e in found],
                mode="markers",
                marker={"color": colour(place), "size": 11, "symbol": ("circle", "triangle-left")[place]},
                name=name,
                hovertemplate="%{x:.2%}, spread over clients %{customdata:.2%}",
            )
        caption = f"Accuracy of {KINDS[kind]} at the last evaluation: mean over clients and the worst tenth of them; means over seeds."
        yield Picture(f"spread-{kind}", f"Spread over clients ({kind})", caption, drawn, wide=False)


FIGURES: Mapping[str, tuple[Draw, ...]] = MappingProxyType(
    {
        "Accuracy and what it takes": (curves, forest, rounds_to_target, bytes_against_accuracy, losses),
        "Clients and classes": (spreads, class_maps, splits, forgetting),
        "Local training": (knowledge, drifts),
        "The trained models": (curvature, spectrum, courses, planes, matrices, signal, embeddings, costs),
    }
)
