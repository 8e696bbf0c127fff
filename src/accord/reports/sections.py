"""The sections of the report page, as HTML in which every text from a record is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import quote

from accord.reports.picture import Picture
from accord.reports.record import Comparison, Run
from accord.reports.statistics import Row
from accord.reports.tables import caption, columns, percent, to_csv, to_latex, to_markdown
from accord.reports.words import answer, cautions, question, summary


def escape(value: object) -> str:
    """A text that HTML shows as it is, inside elements and attributes.

    >>> escape("<script>")
    '&lt;script&gt;'
    """
    return html.escape(str(value), quote=True)


def section(key: str, heading: str, *body: str) -> str:
    """A section with its heading.

    >>> section("a", "A", "<p>b</p>")
    '<section aria-labelledby="a">\\n<h2 id="a">A</h2>\\n<p>b</p>\\n</section>'
    """
    return "\n".join([f'<section aria-labelledby="{key}">', f'<h2 id="{key}">{escape(heading)}</h2>', *body, "</section>"])


def answers(comparison: Comparison, rows: Sequence[Row]) -> str:
    """The question, the answer and what to beware of, in words."""
    told = [f'<p class="lead">{escape(text)}</p>' for text in summary(rows)]
    said = _list(answer(rows), "answer")
    warned = cautions(comparison, rows)
    asked = f'<p class="question">{escape(question(comparison, rows))}</p>'
    return section("answer", "The question and the answer", asked, *told, said, _list(warned, "caution") if warned else "")


def _list(items: Iterable[str], name: str) -> str:
    return f'<ul class="{name}">' + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def results(rows: Sequence[Row]) -> str:
    """The table, and the same as Markdown, LaTeX and CSV to copy or download."""
    described = columns(rows)
    head = "".join(f'<th scope="col"{_number(c.number)}>{escape(c.heading)}</th>' for c in described)
    body = []
    for row in rows:
        first, *rest = described
        style = {"Verdict": f' class="{escape(row.verdict)}"' if row.verdict in ("better", "worse") else ""}
        cells = "".join(f"<td{style.get(c.heading, _number(c.number))}>{escape(c.cell(row))}</td>" for c in rest)
        body.append(f'<tr><th scope="row">{escape(first.cell(row))}</th>{cells}</tr>')
    said = f'<p class="note" id="note">{escape(caption(rows))}</p>'
    start = '<table class="results" aria-describedby="note"><caption>Results of every algorithm</caption>'
    table = f"{start}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    copies = [
        _copy("markdown", "Markdown", "table.md", "text/markdown", to_markdown(rows)),
        _copy("latex", "LaTeX", "table.tex", "application/x-tex", to_latex(rows)),
        _copy("csv", "CSV", "table.csv", "text/csv", to_csv(rows)),
    ]
    return section("results", "Results", _scroll(table, "Results"), said, *copies)


def _number(number: bool) -> str:
    return ' class="number"' if number else ""


def _scroll(table: str, name: str) -> str:
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}, scrolls sideways">{table}</div>'


def _copy(key: str, name: str, file: str, kind: str, text: str) -> str:
    link = f'<a class="button" download="{file}" href="data:{kind};charset=utf-8,{quote(text)}">Download {file}</a>'
    button = f'<button type="button" data-copy="{key}" aria-label="Copy the table as {name}">Copy</button>'
    return f'<details><summary>The table as {name}</summary>{button} {link}<pre id="{key}" tabindex="0">{escape(text)}</pre></details>'


def figures(drawn: Sequence[Picture]) -> str:
    """The places that the page's script draws the figures in."""
    if not drawn:
        return section("figures", "Figures", "<p>No round was recorded, so there is nothing to draw.</p>")
    hint = '<p class="hint caution">Point at a figure to read its values; click a name in its legend to hide or show it.</p>'
    return section("figures", "Figures", hint, '<div class="figures">', *map(_place, drawn), "</div>")


def _place(picture: Picture) -> str:
    key, title, said = escape(picture.key), escape(picture.title), escape(picture.caption)
    size = f'style="min-height:{picture.figure.layout.height}px"'
    return (
        f'<figure class="{"wide" if picture.wide else "half"}" aria-labelledby="title-{key}">'
        f'<figcaption><h3 id="title-{key}">{title}</h3><p>{said}</p></figcaption>'
        f'<div class="plot" id="plot-{key}" data-figure="data-{key}" role="img" aria-label="{title}. {said}" {size}></div></figure>'
    )


def configuration(comparison: Comparison) -> str:
    """The settings that all runs share, those that differ, and every experiment file to the letter."""
    everything = comparison.all_runs
    keys = list(dict.fromkeys(key for run in everything for key in run.experiment))
    values = {key: [_shown(run.experiment.get(key)) for run in everything] for key in keys}
    shared = {key: found[0] for key, found in values.items() if len(set(found)) == 1}
    differing = [key for key in keys if key not in shared]
    said = (
        f"<p>These settings differ between the runs: {', '.join(f'<code>{escape(k)}</code>' for k in differing)}.</p>" if differing else ""
    )
    files = "".join(f"<details><summary>{_name(run)}</summary><pre tabindex='0'>{escape(run.text)}</pre></details>" for run in everything)
    return section(
        "configuration",
        "Configuration",
        "<details open><summary>Settings that every run shares</summary>" + _pairs(shared, "Shared settings") + "</details>"
        if shared
        else "",
        said,
        f"<details><summary>Every experiment file ({len(everything)})</summary>{files}</details>" if everything else "",
    )


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _name(run: Run) -> str:
    return f"{escape(run.name)}, seed {run.seed}"


def _pairs(values: Mapping[str, object], name: str) -> str:
    body = "".join(
        f'<tr><th scope="row"><code>{escape(k)}</code></th><td><code>{escape(_shown(v))}</code></td></tr>' for k, v in values.items()
    )
    return _scroll(f'<table class="pairs"><caption>{escape(name)}</caption><tbody>{body}</tbody></table>', name)


def runs(comparison: Comparison) -> str:
    """Every run: what it reached, what its weights hash to, on which split, and where it is."""
    heads = ("Algorithm", "Seed", "Accuracy, %", "Rounds", "Did not answer", "Rejected", "Digest of the weights", "Split", "Directory")
    body = []
    for run in comparison.all_runs:
        lost = [sum(len(entry.get(key) or ()) for entry in run.rounds) for key in ("absent", "rejected")]
        state = percent(run.accuracy) if run.accuracy is not None else "unfinished"
        last = run.rounds[-1]["round"] if run.rounds else 0
        numbers = "".join(f'<td class="number">{escape(v)}</td>' for v in (run.seed, state, last, *lost))
        texts = "".join(f"<td><code>{escape(v)}</code></td>" for v in (run.result.get("digest", ""), run.fingerprint, run.path))
        body.append(f'<tr><th scope="row">{escape(run.name)}</th>{numbers}{texts}</tr>')
    for name, seed in comparison.absent:
        body.append(f'<tr><th scope="row">{escape(name)}</th><td class="number">{seed}</td><td colspan="7">did not begin</td></tr>')
    head = "".join(f'<th scope="col"{_number(1 <= i <= 5)}>{escape(h)}</th>' for i, h in enumerate(heads))
    text = "Digest: SHA-256 of the final global weights; two runs with the same digest ended bit for bit alike."
    table = f'<table class="runs"><caption>Runs</caption><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table>'
    return section("runs", "Runs and digests", _scroll(table, "Runs"), f'<p class="note">{text}</p>', *_headers(comparison))


def _headers(comparison: Comparison) -> list[str]:
    found = [(run, run.result.get("header")) for run in comparison.all_runs]
    shown = [(run, header) for run, header in found if isinstance(header, dict) and header]
    tables = "".join(f"<details><summary>{_name(run)}</summary>{_pairs(header, 'Header')}</details>" for run, header in shown)
    return [f"<details><summary>The header of every run</summary>{tables}</details>"] if tables else []


def environments(comparison: Comparison) -> str:
    """Every different environment, and the runs that were made in it."""
    groups: dict[str, list[Run]] = {}
    for run in comparison.all_runs:
        groups.setdefault(json.dumps(run.environment, sort_keys=True, default=str), []).append(run)
    body = []
    for users in groups.values():
        who = "every run" if len(groups) == 1 else "; ".join(_name(run) for run in users)
        table = _pairs(users[0].environment, "Environment") if users[0].environment else "<p>Not recorded.</p>"
        body.append(f"<details{' open' if len(groups) == 1 else ''}><summary>Environment of {who}</summary>{table}</details>")
    return section("environment", "Environment", *body)
