"""Runs and comparisons are read as they are: unfinished, cut short, grouped, paired, or refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fabricated import write_comparison, write_json, write_run

from accord.reports.record import load, read_run


def test_a_run_is_read_with_its_curves(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", "a", 4, rounds=6, every=3))
    curve = run.curve()
    assert (run.name, run.seed, run.finished, run.fingerprint) == ("a", 4, True, "f00d4")
    assert curve.rounds == (3, 6)
    assert curve.bytes == (3_000_000, 6_000_000)
    assert curve.seconds == (1.5, 3.0)
    assert curve.accuracy[-1] == run.accuracy
    assert run.curve("personal").accuracy[-1] == pytest.approx(curve.accuracy[-1] + 0.1)
    assert run.curve("new").rounds == ()
    assert run.text == (tmp_path / "a" / "experiment.toml").read_text()


def test_a_last_line_cut_short_is_left_out_and_another_one_is_refused(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", "a", 0, rounds=6, finished=False) / "rounds.jsonl"
    whole = path.read_text()
    path.write_text(whole + '{"round": 4, "clie')
    run = read_run(tmp_path / "a")
    assert [row["round"] for row in run.rounds] == [1, 2, 3]
    assert not run.finished
    assert run.accuracy is None
    path.write_text('{"round": 4, "clie\n' + whole)
    with pytest.raises(ValueError, match=r"rounds.jsonl, line 1: .* is not a round"):
        read_run(tmp_path / "a")


@pytest.mark.parametrize("last", ["null", "3", "[]", "{}", '{"round": null}', '{"round": "x"}', "\x00\x00", '{"round": 1e999}'])
def test_a_strange_last_line_is_left_out(tmp_path: Path, last: str) -> None:
    path = write_run(tmp_path / "a", "a", 0, rounds=4, finished=False) / "rounds.jsonl"
    path.write_text(path.read_text() + last)
    assert [row["round"] for row in read_run(tmp_path / "a").rounds] == [1, 2]


def test_bytes_that_are_no_text_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", "a", 0, rounds=4, finished=False) / "rounds.jsonl"
    path.write_bytes(path.read_bytes() + b'{"round": \xff\xfe')
    assert len(read_run(tmp_path / "a").rounds) == 2


def test_a_round_written_twice_counts_once_as_written_last(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", "a", 0, rounds=4) / "rounds.jsonl"
    path.write_text(path.read_text() + json.dumps({"round": 2, "loss": 9.0}) + "\n")
    rows = read_run(tmp_path / "a").rounds
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert rows[1]["loss"] == 9.0


def test_only_the_experiment_is_needed(tmp_path: Path) -> None:
    (tmp_path / "experiment.toml").write_text('algorithm = "a()"\n')
    run = read_run(tmp_path)
    assert (run.name, run.seed, run.rounds, run.curve().rounds) == ("a()", 0, (), ())


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("experiment.toml", "seed = ", "is not TOML"),
        ("experiment.toml", 'seed = "x"', "must be a whole number"),
        ("result.json", "{", "is not JSON"),
        ("result.json", "[]", "must hold one JSON object"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, text: str, said: str) -> None:
    write_run(tmp_path, "a", 0)
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=said) as error:
        read_run(tmp_path)
    assert file in str(error.value)


def test_runs_and_comparisons_are_grouped_by_name_and_ordered_by_seed(tmp_path: Path) -> None:
    write_comparison(tmp_path / "c", {"b": 0.0, "a": 0.1}, seeds=(1, 0))
    write_run(tmp_path / "more", "a", 7)
    found = load([tmp_path / "c", tmp_path / "more", tmp_path / "c" / "runs" / "0-1"])
    assert found.algorithms == ("b", "a")
    assert [run.seed for run in found.runs["a"]] == [0, 1, 7]
    assert found.seeds == (0, 1, 7)
    assert load(str(tmp_path / "more")).algorithms == ("a",)


def test_a_seed_twice_is_refused_with_both_places(tmp_path: Path) -> None:
    write_run(tmp_path / "x", "a", 0)
    write_run(tmp_path / "y", "a", 0)
    with pytest.raises(ValueError, match=r"'a' has seed 0 twice, in .*x and in .*y"):
        load([tmp_path / "x", tmp_path / "y"])


def test_runs_that_never_began_are_counted(tmp_path: Path) -> None:
    write_comparison(tmp_path, {"a": 0.0, "b": 0.1})
    for file in (tmp_path / "runs" / "1-2").iterdir():
        file.unlink()
    found = load(tmp_path)
    assert found.absent == (("b", 2),)
    assert [run.seed for run in found.runs["b"]] == [0, 1]


def test_a_comparison_without_a_plan_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "comparison.json", {"algorithms": ["a"]})
    with pytest.raises(ValueError, match="has no `seeds` and `runs`"):
        load(tmp_path)


def test_a_target_is_kept_where_the_comparisons_agree(tmp_path: Path) -> None:
    one = write_comparison(tmp_path / "1", {"a": 0.0}, seeds=(0,), target=0.5)
    two = write_comparison(tmp_path / "2", {"b": 0.0}, seeds=(0,), target=0.6)
    assert load(one).target == 0.5
    assert load([one, two]).target is None
