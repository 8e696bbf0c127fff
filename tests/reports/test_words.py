"""The words say what the numbers allow, and no more."""

from __future__ import annotations

from pathlib import Path

from fabricated import write_comparison, write_run

from accord.reports.record import Comparison, load
from accord.reports.statistics import summarise
from accord.reports.words import answer, cautions, mismatches, question, summary, title


def test_the_answer_names_what_is_and_what_is_not_distinguishable(tmp_path: Path) -> None:
    comparison = load(write_comparison(tmp_path, {"a": 0.0, "up": 0.1, "like": 0.003}))
    rows = summarise(comparison)
    assert question(comparison, rows).startswith(
        "How do up and like compare with a in accuracy on digits split by dirichlet(0.1) over 20 clients"
    )
    assert title(comparison) == "Comparison of 3 algorithms on digits"
    assert summary(rows) == ["Better than a: up; not distinguishable from a: like."]
    assert any("up is better than a: +" in text for text in answer(rows))
    assert any("like is not distinguishable from a" in text and "includes zero" in text for text in answer(rows))
    assert any("not widened" in text for text in cautions(comparison, rows))


def test_one_seed_says_that_nothing_can_be_said(tmp_path: Path) -> None:
    rows = summarise(load(write_comparison(tmp_path, {"a": 0.0, "up": 0.3}, seeds=(0,))))
    assert summary(rows) == []
    assert "nothing can be said" in answer(rows)[-1]
    assert not any("better" in text or "worse" in text for text in answer(rows))


def test_an_unfinished_run_has_no_answer(tmp_path: Path) -> None:
    comparison = load(write_run(tmp_path, "a", 0, finished=False))
    assert answer(summarise(comparison)) == ["No run has finished, so there is nothing to say yet."]
    assert "left out of every number: a (1)" in cautions(comparison, summarise(comparison))[0]


def test_runs_that_are_not_alike_are_told(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "a", 0, rounds=20, engine="process")
    write_run(tmp_path / "b", "b", 0, rounds=10, engine="threads")
    assert mismatches(load([tmp_path / "a", tmp_path / "b"])) == ["rounds is 20 (a) and 10 (b) at seed 0"]


def test_the_question_uses_the_words_that_were_typed(tmp_path: Path) -> None:
    run = load(
        write_run(
            tmp_path, "a", 0, data="digits(image=False)", split="dirichlet(alpha=0.1, attempts=9)", model="mlp(bias=True)", per_round=0
        )
    )
    assert title(run) == "a on digits"
    assert question(run, []) == (
        "How accurate is a on digits split by dirichlet(alpha=0.1, attempts=9) over 20 clients, with the model mlp, 20 rounds, seed 0?"
    )
    typed = Comparison(run.runs, set_up={"split": "dirichlet(0.1)", "model": "auto"})
    assert "split by dirichlet(0.1) over 20 clients, with the model mlp" in question(typed, [])


def test_nothing_is_like_nothing() -> None:
    assert mismatches(Comparison({})) == []
