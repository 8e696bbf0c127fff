"""A real run, tracked and analysed in small, has every figure that the documentation lists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from accord.experiment import Experiment
from accord.reports import load, summarise
from accord.reports.analysed import tables
from accord.reports.plots import pictures
from accord.run import run
from documents import ROOT

ANALYSES = (
    *("federation", "forgetting", "cost", "gsnr(clients=2, samples=20, draws=1)", "features(clients=2, samples=40)"),
    *("clients(clients=2, samples=20, probes=2)", "curvature(samples=20, steps=15, probes=5)", "spectrum(samples=20, steps=10, points=50)"),
    "landscape(samples=20, points=5, line=5, steps=10)",
)
SEVERAL = {"forest", "rounds", "spread-local", "spread-personal", "spread-new"}  # of several algorithms, or of data held by clients


def listed() -> set[str]:
    """The keys in the table of docs/report.md."""
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs" / "report.md").read_text(encoding="utf-8"), re.M)
    return {key for row in rows for key in re.findall(r"`([a-z][a-z0-9-]*)`", row)}


def test_every_listed_figure_is_drawn_and_every_drawn_one_is_listed(tmp_path: Path) -> None:
    pytest.importorskip("curvlinops", reason="needs curvlinops")
    from accord.analysis import analyze

    small = {"rounds": 3, "model": "mlp(hidden=(8,))", "clients": 4, "per_round": 3, "epochs": 1, "engine": "process"}
    run(Experiment.of({**small, "algorithm": "fedsol", "track": ["drift", "knowledge"]}), tmp_path)
    analyze(tmp_path, only=ANALYSES)
    comparison = load(tmp_path)
    drawn = {picture.key for picture in pictures(comparison, summarise(comparison))}
    assert drawn == listed() - SEVERAL - {"features-tsne-0-none"} | {f"features-tsne-0-{view}" for view in ("none", "largest", "smallest")}
    assert {sheet.key for sheet in tables(comparison)} == {f"analysis-{text.partition('(')[0]}" for text in ANALYSES}
