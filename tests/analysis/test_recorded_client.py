"""What FedCONST's program measured along one client's steps, against what tracking sees there."""

from __future__ import annotations

from pathlib import Path

import pytest

import accord
from accord.flat import Flat
from accord.track import Watch, _local
from test_golden import case, tiny


def test_the_recorded_case_of_a_client(golden: Path) -> None:
    known = case(golden, "fedconst-metrics-client")
    deal = [(known.arrays["x"][b], known.arrays["y"][b]) for b in known.hyper["batch_order"]]
    watch = Watch()
    reply = accord.local_round(accord.fedavg() + known.rule(batch=8, epochs=1) + watch, tiny(known), deal)
    known.compare(Flat(tiny(known)).layout, reply.w, "expected/")
    found = _local(watch.taken(reply), reply.steps)
    close = known.about["tolerance"]["rtol"]  # cosine and norm are in single precision there
    assert found["norm"] == [pytest.approx(float(known.arrays["metrics/Norm_size"]), rel=close)]
    assert found["cosine"] == [pytest.approx(float(known.arrays["metrics/cosine_similarity"]), rel=close)]
    assert found["gradient_variance_code"] == pytest.approx(float(known.arrays["metrics/step_gvar"]), rel=1e-7)
    assert reply.loss == pytest.approx(float(known.arrays["metrics/step_loss"]), rel=1e-7)
