"""Folders for the data tests: a cache of their own, real data and golden data where there are any."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory):
    """Nothing is read from or left in the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCORD_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def golden() -> Path:
    """The folder of golden cases."""
    if "ACCORD_GOLDEN" not in os.environ:
        pytest.skip("ACCORD_GOLDEN names no folder of golden cases")
    return Path(os.environ["ACCORD_GOLDEN"])


@pytest.fixture
def real() -> Path:
    """The folder of real data sets."""
    if "ACCORD_DATA" not in os.environ:
        pytest.skip("ACCORD_DATA names no folder of data sets")
    return Path(os.environ["ACCORD_DATA"])


@pytest.fixture
def no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder of data sets, as on a fresh machine."""
    monkeypatch.delenv("ACCORD_DATA", raising=False)
