"""FedSOL's toy as a study: computed, and where the formulas of its Appendix L say."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from accord.experiment import Experiment
from accord.reproduce.estimate import estimate
from accord.reproduce.figures import draw
from accord.reproduce.outcome import outcomes
from accord.reproduce.play import plan
from accord.reproduce.publish import keep, kept, page
from accord.reproduce.study import load
from accord.reproduce.toy import path
from accord.reproduce.verdict import verdicts


@pytest.mark.parametrize("mu", [0.5, 1.0])
def test_fedprox_follows_its_closed_form(mu: float) -> None:
    """u_t = (1 - (1 - lr (1 + mu))^t) / (1 + mu), v_t = (1 - (1 - lr (delta + mu))^t) delta / (delta + mu)."""
    delta, lr = 0.1, 0.01
    seen = path(Experiment(algorithm=f"fedprox(mu={mu})", steps=500, lr=lr, momentum=0.0), delta)
    assert len(seen) == 501
    for t in (0, 1, 17, 500):
        ends = [(1 - (1 - lr * (a + mu)) ** t) * a / (a + mu) for a in (1.0, delta)]
        assert seen[t] == pytest.approx(ends, rel=1e-9, abs=1e-12)


def test_fedsol_follows_its_own_formula() -> None:
    """The update of Appendix L: ((u - 1) + rho u / r, delta ((v - 1) + rho v / r)), with nothing added where r = 0."""
    rho, delta, lr = 0.5, 0.1, 0.01
    seen = path(Experiment(algorithm=f"fedsol(rho={rho}, on=all, adaptive=False, by=proximal)", steps=300, lr=lr, momentum=0.0), delta)
    u = v = 0.0
    for at in seen:
        assert at == pytest.approx((u, v), rel=1e-6, abs=1e-9)
        r = math.hypot(u, v)
        a, b = (u / r, v / r) if r else (0.0, 0.0)
        u, v = u - lr * (u - 1 + rho * a), v - lr * delta * (v - 1 + rho * b)


def test_the_study_needs_no_run_and_its_claims_are_settled(tmp_path: Path) -> None:
    study = load("fedsol/figure13")
    planned = plan(study, tmp_path / "cells")
    found = outcomes(planned)
    assert (planned.jobs, planned.missing, study.trained, study.rounds) == ([], {}, (), 0)
    made = estimate(study, {})
    assert made is not None
    assert (made.runs, made.hours) == (0, 0.0)
    ends = {each.cell.name: each.mean for each in found}
    assert ends["FedProx, mu 0.5 | Angle"] == pytest.approx(math.degrees(math.atan2(0.1 / 0.6, 1 / 1.5)), abs=0.01)
    assert abs(45 - (ends["FedSOL, rho 0.5 | Angle"] or 0)) < 1
    assert all(each.difference is not None for each in found)
    assert [(v.word, v.measured.endswith("computed")) for v in verdicts(study, found)] == [("held", True)] * 2
    written = draw(study, found, tmp_path)
    assert written is not None
    assert 'id="data-toy"' in written.read_text(encoding="utf-8")


def test_it_is_kept_like_other_results(tmp_path: Path) -> None:
    assert keep(plan(load("fedsol/figure13"), tmp_path / "cells"), tmp_path, {}) == 0
    assert len(kept(tmp_path)["fedsol/figure13"]) == 12
    assert "(fedsol/figure13/toy.svg)" in page(tmp_path)
