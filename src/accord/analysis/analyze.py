"""Making the analyses of a run, one file each."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from accord.analysis.piece import Analysis, Progress, quiet
from accord.analysis.subject import Subject
from accord.check import nearest
from accord.checkpoint import write_atomically
from accord.experiment import cores
from accord.recipe import brief, entries, read

ORDER = ("federation", "forgetting", "cost", "features", "gsnr", "clients", "curvature", "landscape", "spectrum")  # the cheapest first


def analyze(run: Path | str, only: Sequence[str] | None = None, progress: Progress = quiet) -> dict[str, Any]:
    """Make some analyses of a run, by default all, and return what they found by name.

    Each name may have settings, as in `curvature(samples=640, probes=100)`. What an analysis found is in `RUN/analysis/NAME.json`, as
    `{"name", "values", "settings"}`. One that was interrupted goes on from where it was. All cores are
    used meanwhile, unless OMP_NUM_THREADS says how many.

    >>> analyze("nowhere", only=["curvatur"])
    Traceback (most recent call last):
    ValueError: there is no analysis 'curvatur' (did you mean 'curvature'?); `accord list analyses` shows them
    """
    chosen, subject = [piece(text) for text in (only or ORDER)], Subject(Path(run))
    subject.experiment.load_pieces()
    with all_cores():
        return {each.name: _made(each, subject, progress) for each in chosen}


def piece(text: str) -> Analysis:
    """The analysis that a text names, with its settings."""
    name, known = text.partition("(")[0].strip(), [entry.name for entry in entries("analysis")]
    if name.isidentifier() and name not in known:
        raise ValueError(f"there is no analysis {name!r}{nearest(name, known)}; `accord list analyses` shows them")
    found: Analysis = read(text, "analysis")
    return found


def _made(analysis: Analysis, subject: Subject, progress: Progress) -> dict[str, Any]:
    values = analysis.of(subject, progress)
    settings = {f.name: getattr(analysis, f.name) for f in dataclasses.fields(analysis)}  # type: ignore[arg-type]
    found = {"name": analysis.name, "values": values, "settings": settings | {"text": brief(analysis)}}
    folder = subject.path / "analysis"
    folder.mkdir(exist_ok=True)
    write_atomically(folder / f"{analysis.name}.json", json.dumps(found, allow_nan=False))
    shutil.rmtree(subject.partial(analysis.name), ignore_errors=True)
    return found


@contextmanager
def all_cores() -> Iterator[None]:
    """Within the block PyTorch works with a thread on each core, or with as many as OMP_NUM_THREADS says."""
    before, said = torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(said) if said.isdigit() and int(said) else cores())
    try:
        yield
    finally:
        torch.set_num_threads(before)
