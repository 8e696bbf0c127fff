"""One self-contained HTML page of a comparison or of a single run: it opens from disk and asks the network for nothing."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
from collections.abc import Sequence
from pathlib import Path

from accord.reports.analysed import analyses
from accord.reports.particulars import configuration, environments, runs
from accord.reports.picture import Picture
from accord.reports.plots import pictures
from accord.reports.record import Comparison
from accord.reports.sections import answers, escape, figures, results
from accord.reports.statistics import Row, summarise
from accord.reports.words import title as title_of

PLACES = (
    ("answer", "Answer"),
    ("results", "Table"),
    ("figures", "Figures"),
    ("analyses", "Analyses"),
    ("configuration", "Configuration"),
    ("runs", "Runs and digests"),
    ("environment", "Environment"),
)


def write_page(
    comparison: Comparison, out: Path, title: str | None = None, baseline: str | None = None, target: float | None = None
) -> Path:
    """Write the page of a comparison, and return where it is. Baseline and target are those of `summarise`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_page(Comparison({"a": ()}), Path(folder) / "page.html")
    ...     "No run has finished" in page.read_text(encoding="utf-8")
    True
    """
    rows = summarise(comparison, baseline, target)
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(html_of(comparison, rows, pictures(comparison, rows), title or title_of(comparison)), encoding="utf-8")
    return out


def html_of(comparison: Comparison, rows: Sequence[Row], drawn: Sequence[Picture], title: str) -> str:
    """The text of the page, or of its figures alone where they are of no run.

    Its security policy allows the page's own scripts, by their hashes, and nothing from elsewhere.
    """
    plotly, script = _plotly() if drawn else "", _asset("page.js")
    if not drawn:
        plotly = "const Plotly = null;"
    parts: tuple[str, ...] = (figures(drawn),)
    if comparison.runs:
        about = (analyses(comparison), configuration(comparison), runs(comparison), environments(comparison))
        parts = (answers(comparison, rows), results(rows), *parts, *about)
    links = [f'<a href="#{key}">{escape(heading)}</a>' for key, heading in PLACES if any(f'<h2 id="{key}"' in part for part in parts)]
    return "\n".join(
        [
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(plotly, script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n<link rel="icon" href="data:,">',
            f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}</style>\n</head>\n<body>",
            f'<header><h1>{escape(title)}</h1><button id="theme" type="button" aria-pressed="false">Dark theme</button></header>',
            f'<nav aria-label="Sections">{"".join(links)}</nav>\n<main>',
            *parts,
            "</main>\n<footer><p>Made by Accord from the records of the runs. Numbers that are not here were not recorded.</p></footer>",
            *(_data(picture) for picture in drawn),
            f"<script>{plotly}</script>\n<script>{script}</script>\n</body>\n</html>\n",
        ]
    )


def _data(picture: Picture) -> str:
    """The figure as a block of JSON, in which no text can end the script element."""
    import plotly.io

    text = str(plotly.io.to_json(picture.figure, validate=False, engine="json"))
    whole = json.loads(text)
    safe = json.dumps({"data": whole["data"], "layout": whole["layout"]}, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="data-{escape(picture.key)}">{safe}</script>'


def _policy(*scripts: str) -> str:
    hashes = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in scripts)
    allowed = " ".join(f"'sha256-{code}'" for code in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:"


def _plotly() -> str:
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def _asset(name: str) -> str:
    return importlib.resources.files("accord.reports").joinpath(name).read_text(encoding="utf-8")
