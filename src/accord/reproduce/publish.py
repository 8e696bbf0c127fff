"""Results that a repository keeps: one JSON file a run, and a page of tables, pictures and verdicts drawn from these files alone."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accord.checkpoint import write_atomically
from accord.experiment import Experiment
from accord.reports.picture import Picture
from accord.reports.record import KEPT
from accord.reproduce.figures import drawings
from accord.reproduce.outcome import Outcome, finished, markdown, outcomes
from accord.reproduce.play import Plan, plan
from accord.reproduce.study import Study, load
from accord.reproduce.verdict import verdicts

_WIDTH = 900  # pixels of a picture
INDEX = "study.json"
CELLS = "cells"
PAGE = "index.md"


def keep(planned: Plan, root: Path, flags: Mapping[str, Any]) -> int:
    """Copy the finished runs of a plan into the repository's folder, and note by which flags it was planned; returns how many there are."""
    study, count = planned.study, 0
    for job in planned.jobs:
        run = finished(job.folder)
        if run is not None:
            place = (root / CELLS / job.folder.parent.name / job.folder.name).with_suffix(KEPT)
            place.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(place, json.dumps(run.kept(), separators=(",", ":")) + "\n")
            count += 1
    if count or not study.trained:
        folder = root / study.id
        known = _flags(folder)
        asked = {key: value for key, value in flags.items() if value is not None}
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / INDEX, json.dumps({"id": study.id, "kept": [*(k for k in known if k != asked), asked]}) + "\n")
    return count


def _flags(folder: Path) -> list[dict[str, Any]]:
    index = folder / INDEX
    return list(json.loads(index.read_text(encoding="utf-8"))["kept"]) if index.is_file() else []


def kept(root: Path) -> dict[str, list[Outcome]]:
    """What the kept runs say of every study that has some; of runs of several lengths, the longest."""
    found: dict[str, list[Outcome]] = {}
    for index in sorted(root.glob(f"*/*/{INDEX}")):
        name = json.loads(index.read_text(encoding="utf-8"))["id"]
        study = load(name)
        options = [outcomes(plan(study, root / CELLS, lacks=_absent, **flags)) for flags in _flags(index.parent)]
        every = [each for option in options for each in option]
        best = {each.cell.name: each for each in sorted(every, key=lambda each: (bool(each.values), each.rounds, len(each.values)))}
        found[name] = [best[cell.name] for cell in study.cells if cell.name in best and best[cell.name].values]
    return found


def _absent(experiment: Experiment, folder: Path) -> str:
    return "" if any(folder.glob(f"*{KEPT}")) else "no run of it is kept"


def page(root: Path) -> str:
    """The page of all kept results, in Markdown; `remarks.toml` in the folder holds what a person adds, by study."""
    place = root / "remarks.toml"
    remarks = tomllib.loads(place.read_text(encoding="utf-8")) if place.is_file() else {}
    parts = [f"# Results\n\n{str(remarks.get('intro', '')).strip()}\n"]
    every = kept(root)
    parts.append(_all_claims(every))
    parts += [_section(load(name), found, root, remarks.get(name, {})) for name, found in every.items()]
    return "\n".join(part for part in parts if part)


def _all_claims(every: Mapping[str, Sequence[Outcome]]) -> str:
    """The verdicts of all studies: a table of what was tested, and a list of what was not."""
    lines = ["## Claims\n", "| Study | The paper says | Here | Verdict |", "|---|---|---|---|"]
    untested = []
    for name, found in every.items():
        link, given = f"[{name}](#{_anchor(name)})", list(verdicts(load(name), found))
        lines += [f"| {link} | {v.claim.says} | {v.measured} | **{v.word}** |" for v in given if v.differences]
        missing = [v.claim.says for v in given if not v.differences]
        untested += [f"- {link}: {'; '.join(missing)}."] if missing else []
    lines += ["\nNot tested here, of the claims of these studies:\n", *untested] if untested else []
    return "\n".join(lines) + "\n" if len(lines) > 3 else ""


def _section(study: Study, found: Sequence[Outcome], root: Path, remarks: Mapping[str, Any]) -> str:
    """One study: what it shows, its table, its pictures and what a person remarked."""
    lines = [f"## {study.id}\n", f"*{study.title}.* {study.shows}\n", markdown(found)]
    lines += [f"![{each.title}]({study.id}/{each.key}.svg)\n" for each in drawings(study, found)]
    lines += [f"{text.strip()}\n" for text in remarks.get("text", [])]
    lines += [f"- {note}" for note in study.notes]
    return "\n".join(lines) + "\n"


def _anchor(name: str) -> str:
    return name.replace("/", "")


def fingerprint(picture: Picture) -> str:
    """The SHA-256 of what a picture draws, which stands in its file."""
    import plotly.io

    return hashlib.sha256(str(plotly.io.to_json(picture.figure, validate=False, engine="json")).encode()).hexdigest()


def draw_kept(root: Path) -> list[Path]:
    """Write the page, and every picture that is not there as it must be; returns what was written."""
    written = []
    for name, found in kept(root).items():
        for each in drawings(load(name), found):
            place, mark = root / name / f"{each.key}.svg", f"<!-- {fingerprint(each)} -->"
            if not place.is_file() or mark not in place.read_text(encoding="utf-8"):
                place.write_text(f"{svg(each)}\n{mark}\n", encoding="utf-8")
                written.append(place)
    (root / PAGE).write_text(page(root), encoding="utf-8")
    return [*written, root / PAGE]


def svg(picture: Picture) -> str:
    """The picture as SVG on white, by plotly and the browser that kaleido finds."""
    try:
        import kaleido  # noqa: F401
    except ImportError:
        raise ValueError("drawing pictures for a page needs kaleido and a Chromium or Chrome: pip install kaleido") from None
    drawn = picture.figure.update_layout(paper_bgcolor="white", plot_bgcolor="white")
    return bytes(drawn.to_image(format="svg", width=_WIDTH, height=drawn.layout.height or 450)).decode("utf-8")
