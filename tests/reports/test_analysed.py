"""What was analysed is in tables and figures, number by number."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from fabricated import analysed, write_comparison

from accord.reports.analysed import analyses, tables
from accord.reports.picture import Picture
from accord.reports.plots import pictures
from accord.reports.record import Comparison, load
from accord.reports.statistics import summarise


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return load(write_comparison(tmp_path_factory.mktemp("two"), {"a": 0.0, "b": 0.1}, seeds=(0, 1), analyse=True))


@pytest.fixture(scope="module")
def drawn(comparison: Comparison) -> dict[str, Picture]:
    return {p.key: p for p in pictures(comparison, summarise(comparison)) if p.group == "The trained models"}


def test_tables_hold_every_number_of_every_run(comparison: Comparison) -> None:
    sheets = {sheet.key: sheet for sheet in tables(comparison)}
    assert set(sheets) == {f"analysis-{name}" for name in analysed(0, 0.0)}
    lines = list(csv.DictReader(io.StringIO(sheets["analysis-curvature"].csv())))
    assert [(line["Algorithm"], line["Seed"]) for line in lines] == [("a", "0"), ("a", "1"), ("b", "0"), ("b", "1")]
    held = analysed(1, 0.1)["curvature"]
    assert float(lines[3]["lambda1"]) == held["lambda1"]
    assert [float(lines[3][f"eigenvalues {n}"]) for n in range(1, 6)] == held["eigenvalues"]
    assert lines[3]["converged"] == "yes"


def test_tables_say_how_they_were_made(comparison: Comparison) -> None:
    assert "Made by <code>curvature(samples=100)</code>" in analyses(comparison)


def test_eigenvalues_and_trace_are_drawn_seed_by_seed(drawn: dict[str, Picture]) -> None:
    top, low = drawn["curvature"].figure.data
    assert sorted(top.x) == sorted(v for lift in (0.0, 0.1) for seed in (0, 1) for v in analysed(seed, lift)["curvature"]["eigenvalues"])
    assert list(low.x) == [-2.0, -2.1, -2.0, -2.1]
    (trace,) = drawn["curvature-trace"].figure.data
    assert (list(trace.x), list(trace.y)) == ([40.0, 41.0, 40.0, 41.0], [0, 0, 1, 1])
    assert list(trace.error_x.array) == [1.5] * 4


def test_cost_is_in_multiply_adds(comparison: Comparison, drawn: dict[str, Picture]) -> None:
    one, other = drawn["cost"].figure.data
    assert (one.x[0], other.x[0]) == pytest.approx((2.0, 2.2))
    assert one.y[0] == summarise(comparison)[0].mean
    assert one.customdata[0][0] == 0.65


def test_nothing_analysed_is_nothing_said(tmp_path: Path) -> None:
    plain = load(write_comparison(tmp_path, {"a": 0.0}, seeds=(0,)))
    assert analyses(plain) == ""
    assert [p.key for p in pictures(plain, summarise(plain)) if p.group == "The trained models"] == []
