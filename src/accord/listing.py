"""What there is to choose from, read off the registry."""

from __future__ import annotations

import dataclasses
import inspect
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from accord import analysis as analysis
from accord import catalogue
from accord.check import nearest
from accord.cost import cost
from accord.data.build import federate
from accord.data.read import read_data
from accord.engines import ABOUT
from accord.models import check
from accord.recipe import Entry, entries

KINDS: Mapping[str, tuple[str, ...]] = {
    "algorithms": ("algorithm",),
    "parts": ("part", "rule", "select", "personal", "buffers", "steps"),
    "models": ("model",),
    "data": ("data", "augment"),
    "splits": ("split",),
    "analyses": ("analysis",),
    "engines": (),
    "experiments": (),
}


_LARGE = 1_000_000  # parameters of a model that a list tries


def rows(what: str) -> Iterator[dict[str, str]]:
    """Name, arguments and effect of everything of one kind, the cost of algorithms, and what models give and which algorithms they fit.

    >>> next(rows("algorithms")).keys()
    dict_keys(['name', 'kind', 'arguments', 'effect', 'cost'])
    """
    if what not in KINDS:
        raise ValueError(f"there is no list of {what!r}{nearest(what, KINDS)}; write one of {', '.join(KINDS)}")
    if what == "engines":
        yield from ({"name": name, "kind": "engine", "arguments": "", "effect": effect} for name, effect in ABOUT.items())
    elif what == "experiments":
        for name in catalogue.names():
            yield {"name": name, "kind": "experiment", "arguments": _settings(name), "effect": ""}
    else:
        for kind in KINDS[what]:
            for e in entries(kind):
                row = {"name": e.name, "kind": kind, "arguments": arguments(e), "effect": e.summary}
                yield row | ({"cost": _cost(e)} if kind == "algorithm" else {"fit": _fit(e)} if kind == "model" else {})


def _cost(entry: Entry) -> str:
    """The cost of an algorithm with its defaults; empty for one that needs arguments or a model of its own."""
    try:
        return str(cost(entry.make()))
    except ValueError:
        return ""


def _fit(entry: Entry) -> str:
    """What a model gives and serves, seen on a small one; empty for one that needs arguments or other data."""
    try:
        made = entry.make()
        net = dataclasses.replace(made, **made.tiny).build(made.example, 4)
        if sum(p.numel() for p in net.parameters()) > _LARGE:
            return "too large to be tried here: accord.models.check(module) says what it serves"
        return check(net).brief
    except Exception:  # the model may be somebody's own, and its example is not
        return ""


def _settings(name: str) -> str:
    found, _ = catalogue.read(name)
    return ", ".join(f"{key} = {value}" for key, value in found.items())


def arguments(entry: Entry) -> str:
    """The arguments of a piece with what they may be and their defaults."""
    said = []
    for name, hint in entry.hints.items():
        default = entry.defaults.get(name, inspect.Parameter.empty)
        shown = "" if default is inspect.Parameter.empty or "factory" in repr(default) else f" = {default!r}"
        said.append(f"{name}: {may_be(hint)}{shown}")
    return ", ".join(said)


def may_be(hint: Any) -> str:
    """An annotation in words.

    >>> may_be(Literal["a", "b"]), may_be(Union[int, None])
    ("'a' or 'b'", 'a whole number or None')
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return f"{'a whole number' if args[0] is int else 'a number'} {args[1]}"
    if origin is Literal:
        return " or ".join(repr(a) for a in args)
    if origin in (Union, types.UnionType):
        return " or ".join(may_be(a) for a in args)
    if origin is tuple:
        return f"({may_be(args[0])}, ...)"
    words = {int: "a whole number", float: "a number", str: "a text", bool: "True or False", type(None): "None"}
    return words.get(hint) or str(getattr(hint, "kind", None) or getattr(hint, "__name__", hint))


def splits(texts: Sequence[str], data: str, clients: int, seed: int) -> Iterator[dict[str, str]]:
    """What some splits, by default all with their usual arguments, make of a data set: how unlike the clients are, and a fingerprint.

    >>> [row["effect"] for row in splits(["iid"], "digits", 20, 0)]
    ['on digits over 20 clients, split seed 0: heterogeneity 0.136, fingerprint a1f06bd58f76']
    """
    source = read_data(data)
    known = {row["name"]: row for row in rows("splits")}
    for text in texts or known:
        try:
            made = federate(source, text, clients, seed=seed)
            said = f"heterogeneity {made.heterogeneity:.3f}, fingerprint {made.fingerprint}"
        except ValueError as error:
            if texts:
                raise
            said = str(error)
        row = {"effect": f"on {data} over {clients} clients, split seed {seed}: {said}"}
        if text in known:
            row["effect"] = f"{known[text]['effect']}\n{row['effect']}" if not texts else row["effect"]
        yield {"name": text, "kind": "split", "arguments": known[text]["arguments"] if text in known else "", **row}


def show(found: Sequence[Mapping[str, str]], as_json: bool) -> None:
    """Print a list, as a table or as JSON."""
    if as_json:
        click.echo(json.dumps(found))
        return
    table = Table(box=None, padding=(0, 2, 1, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for row in found:
        said = (row["effect"], row["arguments"], row.get("cost", ""), row.get("fit", ""))
        table.add_row(Text(row["name"], style="bold"), Text("\n".join(t for t in said if t)))
    Console(highlight=False).print(table)
