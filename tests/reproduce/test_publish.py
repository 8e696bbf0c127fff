"""Results that a repository keeps: they say the same as the runs they were made of, and the page can be drawn from them alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from accord.compare import side_by_side
from accord.experiment import read_file
from accord.reports.record import read_run
from accord.reproduce.outcome import Outcome, outcomes
from accord.reproduce.play import plan
from accord.reproduce.publish import INDEX, PAGE, draw_kept, fingerprint, keep, kept, page, svg
from accord.reproduce.study import Claim, Study, expand
from accord.reproduce.verdict import verdicts

STUDY = """
title = "Two on digits"
kind = "table"
shows = "That the second is there."
[set_up]
data = "digits"
clients = 5
rounds = 2
engine = "process"
[columns]
"Accuracy" = {}
"Loss of some" = { measure = "seconds" }
[rows]
"One" = { algorithm = "fedavg", numbers = [50.0, nan] }
"Two" = { algorithm = "fedavg + constrain", numbers = [60.0, nan] }
[[claims]]
says = "Two is above One"
more = "Two | Accuracy"
less = "One | Accuracy"
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    (tmp_path / "two.toml").write_text(STUDY)
    found = replace(expand("digits/two", read_file(tmp_path / "two.toml"), "two.toml"), seeds=2)
    monkeypatch.setattr("accord.reproduce.publish.load", lambda name: found)
    return found


def test_kept_results_say_what_the_runs_said(study: Study, tmp_path: Path) -> None:
    planned = plan(study, tmp_path / "runs", rounds=1)
    side_by_side(planned.jobs, 1, lambda cell, line: None)
    before = outcomes(planned)
    assert keep(planned, tmp_path / "kept", {"rounds": 1}) == 4
    assert keep(planned, tmp_path / "kept", {"rounds": 1}) == 4  # again: nothing doubles
    shutil.rmtree(tmp_path / "runs")
    after = kept(tmp_path / "kept")["digits/two"]
    assert [each.values for each in after] == [each.values for each in before]
    assert [each.reduced for each in after] == [("1 of 2 rounds",)] * 4
    assert json.loads((tmp_path / "kept" / "digits" / "two" / INDEX).read_text())["kept"] == [{"rounds": 1}]
    for each in after:
        for place in each.folders:
            held = json.loads(place.read_text())
            assert len(held["result"]["digest"]) == 64
            assert held["environment"]["torch"]
            assert held["experiment"]["rounds"] == 1
            assert "out" not in held["result"]
            assert read_run(place).text.startswith("algorithm = ")


def test_of_runs_of_two_lengths_the_longer_ones_count(study: Study, tmp_path: Path) -> None:
    for rounds in (2, 1):
        planned = plan(study, tmp_path / "runs", rounds=rounds, seeds=1, cells="One*")
        side_by_side(planned.jobs, 1, lambda cell, line: None)
        keep(planned, tmp_path / "kept", {"rounds": rounds, "seeds": 1, "cells": "One*"})
    found = kept(tmp_path / "kept")["digits/two"]
    assert [(each.cell.row, each.rounds, each.reduced) for each in found] == [("One", 2, ("1 of 2 seeds",))] * 2
    assert "Not tested here" in page(tmp_path / "kept")


def test_the_page_holds_tables_verdicts_remarks_and_pictures(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = plan(study, tmp_path / "runs")
    side_by_side(planned.jobs, 1, lambda cell, line: None)
    root = tmp_path / "kept"
    keep(planned, root, {})
    (root / "remarks.toml").write_text('intro = "What was run."\n["digits/two"]\ntext = ["It is small."]\n')
    drawn: list[str] = []
    monkeypatch.setattr("accord.reproduce.publish.svg", lambda picture: drawn.append(picture.key) or f"<svg>{fingerprint(picture)}</svg>")
    written = draw_kept(root)
    text = (root / PAGE).read_text()
    assert text == page(root)
    assert "What was run." in text
    assert "It is small." in text
    assert "| Two | Accuracy | 60 |" in text
    assert "Two is above One | " in text
    assert [place.name for place in written] == [*(f"{key}.svg" for key in drawn), PAGE]
    for key in drawn:
        assert f"digits/two/{key}.svg" in text
    assert draw_kept(root) == [root / PAGE]  # nothing to draw again


def test_a_claim_without_runs_is_not_tested_and_one_about_no_cell_is_refused(study: Study) -> None:
    assert [v.word for v in verdicts(study, [])] == ["not tested"]
    said = {"title": "T", "kind": "table", "shows": "x", "columns": {"b": {}}, "rows": {"Three": {"algorithm": "fedavg"}}}
    with pytest.raises(ValueError, match=r"less of claim 1 in here is 'Thre \| b', which is no cell \(did you mean 'Three \| b'\?\)"):
        expand("x/y", said | {"claims": [{"says": "s", "more": "Three | b", "less": "Thre | b"}]}, "here")


def test_a_claim_may_name_a_number_on_one_side() -> None:
    said = {"title": "T", "kind": "table", "shows": "x", "columns": {"b": {}}, "rows": {"a": {"algorithm": "fedavg"}}}
    one = expand("x/y", said | {"claims": [{"says": "s", "more": "a | b", "less": 0}, {"says": "s", "more": 70, "less": "a | b"}]}, "here")
    measured = Outcome(one.cells[0], (), {0: 60.0, 1: 62.0}, 1, "digits", ())
    assert [v.differences for v in verdicts(one, [measured])] == [(60.0, 62.0), (10.0, 8.0)]
    with pytest.raises(ValueError, match="less of claim 1 in here is 1, which is no cell"):
        expand("x/y", said | {"claims": [{"says": "s", "more": 0, "less": 1}]}, "here")


def test_a_margin_is_part_of_a_claim(study: Study) -> None:
    from accord.reproduce.verdict import Verdict

    assert Verdict(Claim("s", "a", "b", by=5.0), (1.0, 1.1, 0.9), "points").word == "did not hold"
    assert Verdict(Claim("s", "a", "b", by=0.5), (1.0, 1.1, 0.9), "points").word == "held"


def test_a_picture_is_drawn_by_a_browser(study: Study, tmp_path: Path) -> None:
    pytest.importorskip("kaleido")
    if shutil.which("chromium") is None:
        pytest.skip("no browser to draw with")
    from accord.reports.picture import Picture, figure

    drawn = figure("x", "y")
    drawn.add_scatter(x=[1, 2], y=[3, 4], name="line")
    assert svg(Picture("k", "t", "c", drawn)).startswith("<svg")
