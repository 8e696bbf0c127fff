"""A figure with its words, and the look that all figures share: colours, dashes, symbols, axes."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

# Darkened Okabe-Ito: told apart with every common colour blindness, and at least 3:1 against both a white and a near-black page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2649a", "#b07d00", "#3b92c9", "#7f7f7f", "#8f6bd1")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "triangle-down", "star", "pentagon", "cross")
GREY = "#808080"


@dataclass(frozen=True)
class Picture:
    """A figure, its title, and a caption that says what is drawn; `wide` takes the page's whole width.

    `group` is the heading that the page puts it under, `of` the algorithm that it is of, where it is of one.
    """

    key: str
    title: str
    caption: str
    figure: Figure
    wide: bool = True
    group: str = ""
    of: str | None = None


def colour(place: int, alpha: float = 1.0) -> str:
    """The colour of the algorithm at that place.

    >>> colour(0), colour(0, 0.5)
    ('#0072b2', 'rgba(0,114,178,0.5)')
    """
    code = COLOURS[place % len(COLOURS)]
    if alpha == 1.0:
        return code
    red, green, blue = (int(code[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"


def line(place: int) -> dict[str, Any]:
    """The line of the algorithm at that place; its dash differs too, so that colour is never alone.

    >>> line(1)
    {'color': '#d55e00', 'width': 2, 'dash': 'dash'}
    """
    return {"color": colour(place), "width": 2, "dash": DASHES[place % len(DASHES)]}


def symbol(place: int) -> str:
    """The marker of the algorithm at that place.

    >>> symbol(0)
    'circle'
    """
    return SYMBOLS[place % len(SYMBOLS)]


def label(name: str, width: int = 20, lines: int = 3) -> str:
    """A name as plotly draws it: its own markup disarmed, folded, and cut after so many lines.

    >>> label("fedsol + <b>")
    'fedsol + &lt;b&gt;'
    """
    folded = textwrap.wrap(name, width, max_lines=lines, placeholder=" …") or ["(no name)"]
    return "<br>".join(html.escape(text, quote=False) for text in folded)


def figure(x: str, y: str, height: int = 420, *, hover: str = "closest") -> Figure:
    """An empty figure with titled axes and the legend below; the page gives it the colours of its theme.

    >>> figure("round", "accuracy").layout.xaxis.title.text
    'round'
    """
    import plotly.graph_objects as go

    axis = {"zeroline": False, "automargin": True, "gridcolor": "rgba(128,128,128,0.25)", "linecolor": GREY, "ticks": "outside"}
    axis |= {"tickcolor": GREY}
    return go.Figure(
        layout={
            "template": "none",
            "height": height,
            "hovermode": hover,
            "hoverdistance": 40 if hover == "closest" else -1,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"size": 13, "family": "system-ui, sans-serif"},
            "margin": {"l": 8, "r": 26, "t": 34, "b": 8},
            "legend": {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom", "itemwidth": 40},
            "xaxis": {**axis, "title": {"text": x, "standoff": 8}},
            "yaxis": {**axis, "title": {"text": y, "standoff": 8}},
        }
    )


def logarithmic(values: Sequence[float], most: int = 8) -> dict[str, Any]:
    """A logarithmic axis for these values, where they reach over a power of ten, with ticks as large as other text.

    >>> logarithmic([0.3, 4.0])["ticktext"]
    ['0.2', '0.5', '1', '2', '5']
    """
    known = [v for v in values if v > 0] or [1.0]
    if max(known) < 10 * min(known):
        return {}
    low, high = math.floor(math.log10(min(known))), math.ceil(math.log10(max(known)))
    fine = [step * 10.0**k for k in range(low, high + 1) for step in (1, 2, 5)]
    first = max((t for t in fine if t <= min(known)), default=fine[0])
    fine = [t for t in fine if first <= t <= next((u for u in fine if u >= max(known)), fine[-1])]
    every = max(1, math.ceil((high - low + 1) / most))
    ticks = fine if len(fine) <= most else [10.0**k for k in range(low, high + 1, every)]
    return {"type": "log", "tickmode": "array", "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}


def whole(values: Sequence[float]) -> dict[str, Any]:
    """An axis of whole numbers, which a short one would otherwise divide.

    >>> whole([1, 2, 3]), whole(range(100))
    ({'dtick': 1}, {})
    """
    return {"dtick": 1} if values and max(values) - min(values) <= 10 else {}


def listing(names: Sequence[str], x: str, *, extra: int = 120) -> Figure:
    """An empty figure with one line per name from top to bottom; the values lie along x.

    >>> listing(["a", "b"], "points").layout.yaxis.tickvals
    (0, 1)
    """
    drawn = figure(x, "", height=extra + 46 * len(names))
    labels = [label(name, width=16) for name in names]
    drawn.update_yaxes(tickvals=list(range(len(names))), ticktext=labels, range=[len(names) - 0.5, -0.5], title=None, ticks="")
    return drawn
