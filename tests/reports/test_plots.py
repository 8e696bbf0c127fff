"""The figures show the recorded values, and none is made of what was not recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated import write_comparison, write_json, write_run

from accord.reports.picture import COLOURS, label
from accord.reports.plots import pictures
from accord.reports.record import Comparison, load
from accord.reports.statistics import summarise


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return load(write_comparison(tmp_path_factory.mktemp("three"), {"a": 0.0, "b": 0.1, "c": 0.003}))


def keys(comparison: Comparison) -> list[str]:
    return [picture.key for picture in pictures(comparison, summarise(comparison))]


def test_a_comparison_has_every_figure(comparison: Comparison) -> None:
    assert keys(comparison) == [
        *("curves", "forest", "rounds", "bytes", "loss", "spread-local", "spread-personal"),
        *("classes-0", "classes-1", "classes-2", "split-0", "split-1", "split-2", "forgetting"),
    ]


def test_curves_are_means_in_bands_of_lowest_and_highest(comparison: Comparison) -> None:
    band, mean = pictures(comparison, summarise(comparison))[0].figure.data[:2]
    last = [run.accuracy or 0.0 for run in comparison.runs["a"]]
    assert mean.y[-1] == pytest.approx(sum(last) / 3)
    assert list(mean.customdata[-1]) == [min(last), max(last)]
    assert [max(last), min(last)] == [band.y[len(mean.x) - 1], band.y[len(mean.x)]]
    assert band.legendgroup == mean.legendgroup
    assert band.showlegend is False


def test_the_forest_has_the_rows_intervals(comparison: Comparison) -> None:
    rows = summarise(comparison)
    forest = next(picture for picture in pictures(comparison, rows) if picture.key == "forest").figure
    sure = next(trace for trace in forest.data if trace.name == "interval without zero")
    assert sure.x[0] == pytest.approx(100 * (rows[1].difference or 0))
    assert list(sure.customdata[0][:2]) == pytest.approx([100 * (rows[1].low or 0), 100 * (rows[1].high or 0)])
    assert len(forest.layout.shapes) == 1


def test_seeds_that_miss_the_target_are_shown_as_such(comparison: Comparison) -> None:
    rows = summarise(comparison, target=0.99)
    rounds = next(picture for picture in pictures(comparison, rows) if picture.key == "rounds").figure
    assert [trace.name for trace in rounds.data] == ["not reached"]
    assert len(rounds.data[0].x) == 9


def test_a_single_run_and_an_unfinished_one(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "a", "a", 0))
    assert {"forest", "rounds"}.isdisjoint(keys(run))
    assert {"curves", "bytes", "loss", "classes-0", "split-0"} <= set(keys(run))
    unfinished = load(write_run(tmp_path / "b", "b", 0, finished=False))
    assert pictures(unfinished, summarise(unfinished))[0].figure.data[0].name == "b (unfinished)"


def test_nothing_recorded_is_nothing_drawn(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text('algorithm = "a()"\n')
    assert keys(load(tmp_path)) == []


def test_values_that_are_no_numbers_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path, "a", 0, rounds=4, finished=False) / "rounds.jsonl"
    broken = {"round": 3, "loss": float("nan"), "evaluation": {"global": {"accuracy": float("nan"), "classes": [float("nan"), None]}}}
    empty = {"round": 4, "loss": None, "evaluation": {"local": {"mean": None}}}
    path.write_text(path.read_text() + json.dumps(broken) + "\n" + json.dumps(empty) + "\n")
    comparison = load(tmp_path)
    drawn = {picture.key: picture.figure for picture in pictures(comparison, summarise(comparison))}
    assert list(drawn["curves"].data[0].x) == [2]
    assert list(drawn["loss"].data[0].x) == [1, 2]


def test_equal_splits_are_drawn_once_and_many_clients_are_thinned(comparison: Comparison, tmp_path: Path) -> None:
    federation = {"counts": [[1, 0]] * 1000, "classes": 2, "fingerprint": "f"}
    write_json(write_run(tmp_path, "a", 0) / "federation.json", federation)
    run = load(tmp_path).runs["a"][0]
    same = Comparison({"a": (run, replace(run, seed=1))})
    (split,) = [picture for picture in pictures(same, summarise(same)) if picture.key.startswith("split")]
    assert len(split.figure.data[0].x) == 200
    assert "200 of 1000 clients" in split.caption
    assert split.figure.data[0].z[1][0] is None


def test_names_are_disarmed_folded_and_cut() -> None:
    assert label("<b>x</b> & y") == "&lt;b&gt;x&lt;/b&gt; &amp; y"
    assert label("word " * 100).count("<br>") == 2
    assert label("") == "(no name)"


def test_colours_are_seen_on_white_and_on_black() -> None:
    """At least 3:1 by WCAG against both pages."""

    def luminance(code: str) -> float:
        parts = [int(code[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark = luminance("#14171c")
    for code in COLOURS:
        assert 1.05 / (luminance(code) + 0.05) >= 3, code
        assert (luminance(code) + 0.05) / (dark + 0.05) >= 3, code
