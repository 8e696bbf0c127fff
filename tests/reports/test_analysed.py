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


def test_every_analysis_has_its_figures(drawn: dict[str, Picture]) -> None:
    each = ("landscape-plane", "clients-hn", "clients-hd", "features-cka")
    views = [f"features-tsne-{place}-{view}" for place in (0, 1) for view in ("none", "largest", "smallest")]
    ends = ("curvature", "curvature-trace", "spectrum", "landscape-line", "landscape-line-filter", "cost")
    gradients = ("gsnr-steps", "gsnr-updates", "gsnr-weights", "gsnr-size")
    assert set(drawn) == {*ends, *gradients, *views, *(f"{key}-{place}" for key in each for place in (0, 1))}
    assert {p.of for key, p in drawn.items() if key.endswith("-0")} == {"a"}


def test_the_plane_has_the_first_eigenvector_along_x(drawn: dict[str, Picture]) -> None:
    plane, cross = drawn["landscape-plane-1"].figure.data
    assert plane.z[0][2] == pytest.approx(0.4 + 1.0)  # a = 0, b = -1
    assert plane.z[2][0] == pytest.approx(0.4 + 2.0)  # a = -1, b = 0
    assert (plane.zmin, plane.zmax) == (drawn["landscape-plane-0"].figure.data[0].zmin, pytest.approx(3.5))
    assert "eigenvalues 4 and 2" in drawn["landscape-plane-1"].caption
    assert (cross.x[0], cross.y[0]) == (0, 0)


def test_courses_are_means_over_seeds(drawn: dict[str, Picture]) -> None:
    band, line = drawn["landscape-line"].figure.data[:2]
    assert list(line.x) == [k / 10 for k in range(-10, 11)]
    assert (line.y[0], line.y[10]) == pytest.approx((1.505, 0.505))
    assert band.meta == line.meta == "a"
    assert drawn["landscape-line-filter"].figure.data[1].y[0] == pytest.approx(1.005)


def test_the_spectrum_is_the_first_seeds_and_never_nothing_on_its_logarithmic_axis(drawn: dict[str, Picture]) -> None:
    one, other = drawn["spectrum"].figure.data
    assert max(one.y) == pytest.approx(1.0)
    assert min(one.y) == pytest.approx(1e-6)
    assert one.x[one.y.index(max(v for t, v in zip(one.x, one.y, strict=True) if t > 3))] == 6.0
    assert other.x[other.y.index(max(v for t, v in zip(other.x, other.y, strict=True) if t > 3))] == 5.0


def test_pairs_of_clients_are_named(drawn: dict[str, Picture]) -> None:
    norms, turned, alike = (drawn[key].figure.data[0] for key in ("clients-hn-0", "clients-hd-1", "features-cka-0"))
    assert tuple(norms.x) == tuple(norms.y) == ("3", "5", "8", "13")
    assert list(norms.z[0]) == [0.0, 1.0, 4.0, 9.0]
    assert (norms.zmin, norms.zmax, turned.zmin, turned.zmax) == (0.0, 9.0, 0.0, 1.0)
    assert list(turned.z[0]) == pytest.approx([1.0, 0.4, 0.4, 0.4])
    assert list(alike.z[2]) == [0.75, 0.75, 1.0, 0.75]


def test_signal_to_noise_is_the_mean_over_seeds(drawn: dict[str, Picture]) -> None:
    _, first, last = drawn["gsnr-steps"].figure.data
    assert (list(first.x), list(last.x)) == ([100.5, 110.5], [40.5, 40.5])
    _, top, bottom = drawn["gsnr-updates"].figure.data
    assert (list(top.x), list(bottom.x)) == (pytest.approx([0.05, 0.15]), [0.02, 0.02])
    assert drawn["gsnr-size"].figure.data[0].x[3] == 0.008


def test_classes_of_features_are_series(drawn: dict[str, Picture]) -> None:
    picture = drawn["features-tsne-0-smallest"]
    assert [trace.name for trace in picture.figure.data] == [str(c) for c in range(10)]
    assert [len(trace.x) for trace in picture.figure.data] == [6] * 10
    assert "without the smallest weights" in picture.title
    assert "accuracy 80.0%, silhouette of the classes 0.250" in picture.caption


def test_nothing_analysed_is_nothing_said(tmp_path: Path) -> None:
    plain = load(write_comparison(tmp_path, {"a": 0.0}, seeds=(0,)))
    assert analyses(plain) == ""
    assert [p.key for p in pictures(plain, summarise(plain)) if p.group == "The trained models"] == []
