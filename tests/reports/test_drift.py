"""The figures of tracked runs show the recorded drift, knowledge and forgetting."""

from __future__ import annotations

from pathlib import Path

import pytest
from fabricated import write_comparison

from accord.reports.drift import MEASURES, drifts, forgetting, forgotten, knowledge
from accord.reports.picture import Picture
from accord.reports.record import Comparison, Run, load
from accord.reports.statistics import summarise


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return load(write_comparison(tmp_path_factory.mktemp("two"), {"a": 0.0, "b": 0.1}, seeds=(0, 1), track=True))


def drawn(comparison: Comparison) -> dict[str, Picture]:
    return {picture.key: picture for picture in drifts(comparison, summarise(comparison))}


def test_every_measure_has_its_figure(comparison: Comparison) -> None:
    assert list(drawn(comparison)) == [*(f"drift-{m.key}" for m in MEASURES), "drift-lambda"]


def test_lines_are_means_of_what_the_rounds_hold(comparison: Comparison) -> None:
    band, line = drawn(comparison)["drift-divergence"].figure.data[:2]
    held = [[row["drift"]["divergence"] for row in run.rounds] for run in comparison.runs["a"]]
    assert list(line.x) == list(range(1, 21))
    assert list(line.y) == pytest.approx([(one + other) / 2 for one, other in zip(*held, strict=True)])
    assert [tuple(pair) for pair in line.customdata] == [(min(pair), max(pair)) for pair in zip(*held, strict=True)]
    assert band.legendgroup == line.legendgroup


def test_local_epochs_lie_between_rounds(comparison: Comparison) -> None:
    line = drawn(comparison)["drift-norm"].figure.data[1]
    assert list(line.x[:4]) == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3])
    assert list(line.y[:4]) == pytest.approx([10.1, 10.2, 10.4, 10.2])


def test_lambda_is_of_the_last_round_and_the_mean_over_seeds(comparison: Comparison) -> None:
    line = drawn(comparison)["drift-lambda"].figure.data[0]
    assert line.x == tuple(f"layer{k}.weight" for k in range(6))
    assert list(line.y) == pytest.approx([0.1 * (k + 1) + 0.5 for k in range(6)])


def test_knowledge_stands_beside_the_servers_accuracy(comparison: Comparison) -> None:
    (picture,) = knowledge(comparison, summarise(comparison))
    band, local, server = picture.figure.data[:3]
    first = sum(run.rounds[0]["knowledge"]["mean"] for run in comparison.runs["a"]) / 2
    assert local.y[0] == pytest.approx(first)
    assert (band.y[0], band.y[-1]) == pytest.approx((first + 0.07, first - 0.07))
    assert server.name == "a, server"
    assert server.y[-1] == pytest.approx(sum(run.accuracy or 0 for run in comparison.runs["a"]) / 2)


def test_forgetting_is_the_best_of_every_class_minus_the_accuracy_now(comparison: Comparison) -> None:
    told = [[0.2, None, 0.9], [0.6, None, 0.5], [0.5, None, 0.8]]
    rows = tuple({"round": r, "evaluation": {"global": {"classes": c}}} for r, c in enumerate(told, start=1))
    assert dict(forgotten(Run(Path("a"), "a", 0, {}, rows))) == pytest.approx({2: 0.0, 3: 0.1})
    (picture,) = forgetting(comparison, summarise(comparison))
    assert len(picture.figure.data[1].x) == 9


def test_runs_without_tracking_have_none_of_it(tmp_path: Path) -> None:
    plain = load(write_comparison(tmp_path, {"a": 0.0}, seeds=(0,)))
    assert drawn(plain) == {}
    assert list(knowledge(plain, summarise(plain))) == []
