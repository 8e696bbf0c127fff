"""The report page's sections of answers, tables and figures, as HTML in which every text from a record is escaped."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Sequence
from urllib.parse import quote

from accord.reports.picture import Picture
from accord.reports.record import Comparison
from accord.reports.sheet import Sheet
from accord.reports.statistics import Row
from accord.reports.tables import caption, columns, to_csv, to_latex, to_markdown
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
    shown = f"{start}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"
    copies = [
        _copy("markdown", "Markdown", "table.md", "text/markdown", to_markdown(rows)),
        _copy("latex", "LaTeX", "table.tex", "application/x-tex", to_latex(rows)),
        _copy("csv", "CSV", "table.csv", "text/csv", to_csv(rows)),
    ]
    return section("results", "Results", _scroll(shown, "Results"), said, *copies)


def _number(number: bool) -> str:
    return ' class="number"' if number else ""


def _scroll(table: str, name: str) -> str:
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}, scrolls sideways">{table}</div>'


def _copy(key: str, name: str, file: str, kind: str, text: str) -> str:
    link = _link(file, kind, text, f"Download {file}", ' class="button"')
    button = f'<button type="button" data-copy="{key}" aria-label="Copy the table as {name}">Copy</button>'
    shown = f'<pre id="{key}" tabindex="0">{escape(text)}</pre>'
    return f'<details class="copies"><summary>The table as {name}</summary>{button} {link}{shown}</details>'


def figures(drawn: Sequence[Picture]) -> str:
    """The places that the page's script draws the figures in, group by group, and a switch for every algorithm."""
    if not drawn:
        return section("figures", "Figures", "<p>No round was recorded, so there is nothing to draw.</p>")
    hint = '<p class="hint caution">Point at a figure to read its values; click a name in its legend to hide or show it.</p>'
    groups = []
    for place, (name, held) in enumerate(itertools.groupby(drawn, key=lambda picture: picture.group)):
        heading = [f'<h3 id="group-{place}">{escape(name)}</h3>'] if name else []
        groups += [*heading, '<div class="figures">', *map(_place, held), "</div>"]
    return section("figures", "Figures", hint, _switches(drawn), *groups)


def _switches(drawn: Sequence[Picture]) -> str:
    """A button for every algorithm that a line or a figure belongs to; nothing where there is one."""
    named = [name for picture in drawn for name in (picture.of, *(trace.meta for trace in picture.figure.data)) if name]
    names = list(dict.fromkeys(named))
    buttons = [f'<button type="button" class="switch" value="{escape(n)}" aria-pressed="true">{escape(n)}</button>' for n in names]
    said = '<span class="caution">Shown in every figure:</span>'
    return f'<div class="switches" role="group" aria-label="Algorithms">{said}{"".join(buttons)}</div>' if len(names) > 1 else ""


def _place(picture: Picture) -> str:
    key, title, said = escape(picture.key), escape(picture.title), escape(picture.caption)
    size = f'style="min-height:{picture.figure.layout.height}px"'
    of = "" if picture.of is None else f' data-of="{escape(picture.of)}"'
    return (
        f'<figure class="{"wide" if picture.wide else "half"}"{of} aria-labelledby="title-{key}">'
        f'<figcaption><h4 id="title-{key}">{title}</h4><p>{said}</p></figcaption>'
        f'<div class="plot" id="plot-{key}" data-figure="data-{key}" role="img" aria-label="{title}. {said}" {size}></div></figure>'
    )


def table(sheet: Sheet, name: str = "") -> str:
    """A table of a sheet, with links that take it away as Markdown, LaTeX and CSV; `name` is its class."""
    head = "".join(f'<th scope="col"{_number(bool(h.form))}>{escape(h.text)}</th>' for h in sheet.heads)
    body = []
    for first, *rest in sheet.texts():
        cells = "".join(f"<td{_number(bool(h.form))}>{escape(cell)}</td>" for h, cell in zip(sheet.heads[1:], rest, strict=True))
        body.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    inside = f"<caption>{escape(sheet.title)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    links = [
        _link(f"{sheet.key}.md", "text/markdown", sheet.markdown(), "Markdown"),
        _link(f"{sheet.key}.tex", "application/x-tex", sheet.latex(), "LaTeX"),
        _link(f"{sheet.key}.csv", "text/csv", sheet.csv(), "CSV"),
    ]
    shown = _scroll(f'<table class="{name}">{inside}</table>', sheet.title)
    return f'{shown}<p class="take">Download: {" · ".join(links)}</p>'


def _link(file: str, kind: str, text: str, name: str, style: str = "") -> str:
    return f'<a{style} download="{escape(file)}" href="data:{kind};charset=utf-8,{quote(text)}">{name}</a>'
