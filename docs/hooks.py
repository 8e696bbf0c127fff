"""A mkdocs hook: one page a part, and the tables of what there is, made from the registry when the site is built."""

import inspect
from typing import Any

import torch
from mkdocs.structure.files import File, Files
from torch import Tensor

import accord
from accord import Algorithm, Part
from accord.listing import may_be, rows
from accord.parts.task import Task
from accord.recipe import Entry, brief, entries, read

METHODS = {
    "loss": "adds a term to the local objective",
    "gradient": "wraps the function that produces a client's gradient",
    "moved": "corrects the weights after each local step",
    "trains_on": "says which federation trains",
    "aggregate": "wraps the function that produces the server's step",
}


def on_config(config: Any) -> Any:
    """Put the parts' pages into the navigation."""
    catalogue = next(item["Catalogue"] for item in config.nav if isinstance(item, dict) and "Catalogue" in item)
    catalogue[:] = ["algorithms.md", {"Parts": [f"parts/{entry.name}.md" for entry in entries("part")]}]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that no file holds."""
    for entry in entries("part"):
        files.append(File.generated(config, f"parts/{entry.name}.md", content=part_page(entry)))
    files.append(File.generated(config, "algorithms.md", content=algorithms_page()))
    with open("CHANGELOG.md", encoding="utf-8") as changelog:
        files.append(File.generated(config, "changelog.md", content=changelog.read()))
    return files


def on_page_markdown(markdown: str, **kwargs: Any) -> str:
    """Replace `<!-- list: splits -->` by the table that `accord list splits` shows."""
    for kind in ("algorithms", "parts", "models", "data", "splits", "analyses", "engines", "experiments"):
        mark = f"<!-- list: {kind} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, table(kind))
    return markdown


def table(kind: str) -> str:
    """Everything of one kind."""
    lines = ["| name | what it is | arguments |", "|---|---|---|"]
    for row in rows(kind):
        effect = cell(row["effect"]) + (f"<br>*{cell(row['fit'])}*" if "fit" in row else "")
        lines.append(f"| `{row['name']}` | {effect} | {cell(row['arguments'])} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    """A text that a table can hold."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def algorithms_page() -> str:
    """The named algorithms and what they are made of."""
    lines = ["# Algorithms", "", "A name is a composition of parts. What is not written here stands at its default.", ""]
    lines += ["Costs are for one client in one round, P being the number of the model's weights, and passes are for one batch.", ""]
    costs = {row["name"]: row["cost"] for row in rows("algorithms")}
    for entry in entries("algorithm"):
        made = entry.make()
        pieces = [piece for piece in made.pieces if piece.kind != "rule"]
        links = [f"[{piece.name}](parts/{piece.name}.md)" for piece in made.all_parts]
        lines += [f"## {entry.name}", "", entry.summary, "", "```text", " + ".join(brief(piece) for piece in pieces), "```", ""]
        lines += [f"Parts: {', '.join(links)}. Cost: {costs[entry.name]}.", "", *arguments(entry)]
    return "\n".join(lines)


def part_page(entry: Entry) -> str:
    """What a part does, its arguments, what travels and what stays, and the algorithms it is in."""
    cls = entry.make
    where = f"{cls.__module__}.{cls.__qualname__}"
    opening = inspect.getmodule(cls).__doc__.strip()
    does = [text for name, text in METHODS.items() if getattr(cls, name) is not getattr(Part, name)]
    users = [e.name for e in entries("algorithm") if any(isinstance(part, cls) for part in e.make().all_parts)]
    named = ", ".join(f"[`{name}`](../algorithms.md#{name})" for name in users) or "none"
    lines = [f"# {entry.name}", "", opening, ""]
    lines += [f"::: {where}", "    options:", "      show_root_heading: false", "      show_bases: false", "      members: []", ""]
    lines += ["## Arguments", "", *(arguments(entry) or ["None.", ""])]
    lines += [
        "## What it does to a round, at its defaults",
        "",
        *(f"- {text}" for text in does),
        *(f"- {text}" for text in traffic(cls)),
        "",
    ]
    lines += ["## Algorithms that contain it", "", f"{named}.", ""]
    return "\n".join(lines)


def arguments(entry: Entry) -> list[str]:
    """A table of a piece's arguments; nothing where it has none."""
    if not entry.hints:
        return []
    lines = ["| argument | what it may be | default |", "|---|---|---|"]
    for name, hint in entry.hints.items():
        lines.append(f"| `{name}` | {cell(may_be(hint))} | {default(entry, name)} |")
    return [*lines, ""]


def default(entry: Entry, name: str) -> str:
    """The default of an argument."""
    value = entry.defaults.get(name, inspect.Parameter.empty)
    if "factory" in repr(value):
        value = getattr(entry.make(), name)
    return "required" if value is inspect.Parameter.empty else f"`{cell(repr(value))}`"


def traffic(cls: type[Part]) -> list[str]:
    """What travels and what stays, seen in one round of a small model."""
    part = cls()
    algorithm = Algorithm((part,)) if isinstance(part, Task) else accord.fedavg() + part
    size, reply = round_of(algorithm)
    state = part.server_state(torch.zeros(size))
    found = {
        "sent down beside the weights": {name: state[name] for name in part.sends},
        "sent up beside the weights": reply.up.get(part, {}),
        "kept by each client": reply.kept.get(part, {}),
        "kept by the server": state,
    }
    said = [f"{what}: {', '.join(f'`{name}` ({amount(t, size)})' for name, t in held.items())}" for what, held in found.items() if held]
    said = said or ["nothing travels beside the weights, and nothing is kept"]
    if part.stays:
        said.append("the weights themselves do not travel")
    elif part.moves != "all":
        said.append(f"only the {part.moves} of the model moves and travels")
    return said + (["the server needs every client's update at once, not only sums of them"] if part.reads_all else [])


def round_of(algorithm: Algorithm) -> tuple[int, accord.Reply]:
    """How many weights the first of some small models has that the algorithm can train, and a client's answer."""
    reasons = []
    for text in ("mlp(hidden=(4,))", "resnet18(width=4)", "stochastic(of=mlp(hidden=(4,)), width=3)"):
        net = read(text, "model").build((3, 16, 16), 2)
        try:
            reply = accord.local_round(algorithm, net, [(torch.randn(6, 3, 16, 16), torch.arange(6) % 2)] * 2)
        except ValueError as error:
            reasons.append(str(error))
        else:
            return reply.w.numel(), reply
    raise ValueError(f"no model for {algorithm!r}: {reasons}")


def amount(tensor: Tensor, size: int) -> str:
    return "as many numbers as the model" if tensor.numel() == size else f"{tensor.numel()} number{'s' if tensor.numel() != 1 else ''}"
