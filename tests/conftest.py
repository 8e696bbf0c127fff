"""What every test shares: one thread, strict numbers, and where the golden data lie."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("accord", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("accord")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of the golden cases."""
    folder = Path(os.environ.get("ACCORD_GOLDEN", "/nowhere"))
    if not (folder / "fedavg" / "case.json").is_file():
        pytest.skip("ACCORD_GOLDEN does not name the folder of the golden cases")
    return folder


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
