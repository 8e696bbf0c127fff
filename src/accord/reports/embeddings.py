"""The figures of the global model's features in the plane, with large or small weights removed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accord.reports.analysed import of_rows
from accord.reports.picture import Picture, colour, figure, symbol
from accord.reports.record import Comparison, Record, number
from accord.reports.statistics import Row

VIEWS = {"none": "all weights", "largest": "without the largest weights", "smallest": "without the smallest weights"}
MOST_NAMED = 20  # classes with a colour and a name of their own


def embeddings(comparison: Comparison, rows: Sequence[Row]) -> Iterator[Picture]:
    """t-SNE of the first analysed seed of each algorithm, one figure a view; classes are series that can be switched."""
    for place, row, run, held in of_rows(comparison, rows, "features"):
        views, labels = held.get("views"), [int(y) for y in held.get("labels", [])]
        for view, said in VIEWS.items():
            made: Record = views.get(view, {}) if isinstance(views, dict) else {}
            points = [(x, y, c) for (x, y), c in zip(made.get("points", []), labels, strict=False)]
            if not points:
                continue
            drawn = figure("", "", height=400 + 8 * min(MOST_NAMED, len(set(labels))))
            named: list[int | None] = [*sorted(set(labels))] if len(set(labels)) <= MOST_NAMED else [None]
            for c in named:
                chosen = [point for point in points if c in (None, point[2])]
                mark = {"color": labels, "colorscale": "Cividis"} if c is None else {"symbol": symbol(c), "color": colour(c)}
                drawn.add_scatter(
                    x=[x for x, _, _ in chosen],
                    y=[y for _, y, _ in chosen],
                    text=[str(k) for *_, k in chosen],
                    mode="markers",
                    marker={"size": 6, **mark},
                    name=str(c),
                    showlegend=c is not None,
                    hovertemplate="class %{text}<extra></extra>",
                )
            drawn.update_xaxes(showticklabels=False, ticks="", title=None)
            drawn.update_yaxes(showticklabels=False, ticks="", title=None)
            facts = (("accuracy", "accuracy", ".1%"), ("silhouette", "silhouette of the classes", ".3f"))
            told = ", ".join(f"{name} {format(v, form)}" for key, name, form in facts if (v := number(made.get(key))) is not None)
            caption = f"t-SNE of the global model's features, {said}, coloured by class, seed {run.seed}; {told}."
            title = f"Features, {said}: {row.algorithm}"
            yield Picture(f"features-tsne-{place}-{view}", title, caption, drawn, wide=False, of=row.algorithm)
