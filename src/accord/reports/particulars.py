"""The report page's sections about the runs themselves: configuration, digests, environments."""

from __future__ import annotations

import json
from collections.abc import Iterable

from accord.reports.record import Comparison, Run
from accord.reports.sections import escape, section, table
from accord.reports.sheet import Head, Sheet


def configuration(comparison: Comparison) -> str:
    """The settings that all runs share, those that differ, and every experiment file to the letter."""
    everything = comparison.all_runs
    keys = list(dict.fromkeys(key for run in everything for key in run.experiment))
    values = {key: [_shown(run.experiment.get(key)) for run in everything] for key in keys}
    shared = [(key, found[0]) for key, found in values.items() if len(set(found)) == 1]
    differing = [key for key, found in values.items() if len(set(found)) > 1]
    unlike = [key for key in differing if key not in ("seed", "name")]
    users: dict[tuple[str, ...], list[str]] = {}
    for place, run in enumerate(everything):
        users.setdefault((run.name, *(values[key][place] for key in unlike)), []).append(str(run.seed))
    rows = tuple((name, ", ".join(seeds), *held) for (name, *held), seeds in users.items())
    sheet = Sheet("differing", "Settings in which runs differ", (Head("Algorithm"), Head("Seeds"), *map(Head, unlike)), rows)
    files = "".join(f"<details><summary>{_name(run)}</summary><pre tabindex='0'>{escape(run.text)}</pre></details>" for run in everything)
    parts = [
        _folded("Settings that every run shares", _pairs("settings", "Setting", "Shared settings", shared)) if shared else "",
        _folded(sheet.title, table(sheet, "texts")) if differing else "",
        f"<details><summary>Every experiment file ({len(everything)})</summary>{files}</details>" if everything else "",
    ]
    return section("configuration", "Configuration", *parts)


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _name(run: Run) -> str:
    return f"{escape(run.name)}, seed {run.seed}"


def _folded(title: str, body: str, *, shut: bool = False) -> str:
    return f"<details{'' if shut else ' open'}><summary>{title}</summary>{body}</details>"


def _pairs(key: str, first: str, title: str, values: Iterable[tuple[str, object]]) -> str:
    sheet = Sheet(key, title, (Head(first), Head("Value")), tuple((k, _shown(v)) for k, v in values))
    return table(sheet, "pairs")


def runs(comparison: Comparison) -> str:
    """Every run: what it reached, what its weights hash to, on which split, and where it is."""
    numbers = (Head("Seed", "d"), Head("Accuracy, %", ".2f"), Head("Rounds", "d"), Head("Did not answer", "d"), Head("Rejected", "d"))
    heads = (Head("Algorithm"), *numbers, Head("Digest of the weights"), Head("Split"), Head("Directory"))
    rows: list[tuple[object, ...]] = []
    for run in comparison.all_runs:
        lost = [sum(len(entry.get(key) or ()) for entry in run.rounds) for key in ("absent", "rejected")]
        reached = "unfinished" if run.accuracy is None else 100 * run.accuracy
        last = run.rounds[-1]["round"] if run.rounds else 0
        rows.append((run.name, run.seed, reached, last, *lost, run.result.get("digest"), run.fingerprint, str(run.path)))
    rows += [(name, seed, "did not begin", *[None] * 6) for name, seed in comparison.absent]
    text = "Digest: SHA-256 of the final global weights; two runs with the same digest ended bit for bit alike."
    shown = table(Sheet("runs", "Runs", heads, tuple(rows)), "runs")
    return section("runs", "Runs and digests", shown, f'<p class="note">{text}</p>', *_headers(comparison))


def _headers(comparison: Comparison) -> list[str]:
    found = [(run, run.result.get("header")) for run in comparison.all_runs]
    shown = [(run, header) for run, header in found if isinstance(header, dict) and header]
    keys = list(dict.fromkeys(key for _, header in shown for key in header if key != "algorithm"))
    heads = (Head("Algorithm"), Head("Seed", "d"), *map(Head, keys))
    rows = tuple((run.name, run.seed, *(_shown(header[key]) if key in header else None for key in keys)) for run, header in shown)
    return [_folded("The header of every run", table(Sheet("headers", "Headers", heads, rows), "texts"), shut=True)] if rows else []


def environments(comparison: Comparison) -> str:
    """Every different environment, and the runs that were made in it."""
    groups: dict[str, list[Run]] = {}
    for run in comparison.all_runs:
        groups.setdefault(json.dumps(run.environment, sort_keys=True, default=str), []).append(run)
    body = []
    for place, users in enumerate(groups.values(), start=1):
        who = "every run" if len(groups) == 1 else "; ".join(_name(run) for run in users)
        made = users[0].environment
        told = _pairs(f"environment-{place}", "What", f"Environment {place}", made.items()) if made else "<p>Not recorded.</p>"
        body.append(_folded(f"Environment of {who}", told, shut=len(groups) > 1))
    return section("environment", "Environment", *body)
