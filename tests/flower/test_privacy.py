"""Clipping and noise are what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra flower is not installed")

from flwr.supercore.task_identity import TaskIdentity

from accord.flower.privacy import Privacy


@pytest.fixture(autouse=True)
def _task() -> None:
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1


def test_the_update_is_clipped_and_the_noise_has_its_deviation(tmp_path: Path) -> None:
    w0, w = torch.randn(20_000), torch.randn(20_000) * 50
    np.random.seed(0)  # noqa: NPY002
    out = Privacy(0.3, 1.5, 1e-5, tmp_path / "history.json").protect(w, w0, print)
    noise = out - w0 - 0.3 * (w - w0) / (w - w0).norm()
    assert out.dtype == torch.float32
    assert float(noise.std()) == pytest.approx(1.5 * 2 * 0.3, rel=0.03)
    assert abs(float(noise.mean())) < 0.03


def test_an_update_inside_the_bound_is_not_scaled(tmp_path: Path) -> None:
    w0 = torch.zeros(5)
    w = torch.tensor([0.1, 0.0, 0.0, 0.0, 0.0])
    out = Privacy(1.0, 1e-9, 1e-5, tmp_path / "history.json").protect(w, w0, print)
    assert torch.allclose(out, w, atol=1e-6)


def test_every_update_sent_counts(tmp_path: Path) -> None:
    one, lines = Privacy(1.0, 3.0, 1e-5, tmp_path / "history.json"), list[str]()
    for _ in range(3):
        one.protect(torch.ones(3), torch.zeros(3), lines.append)
    assert one.counted() == {"3.0": 3}
    spent = [float(line.split("epsilon ")[1].split()[0]) for line in lines]
    assert spent == sorted(spent)
    assert spent[0] < spent[2]
