"""Fetching a data set from the hub, or from its cache on this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

from accord.data.folder import chosen


def download(repo: str, config: str | None, root: Path | None) -> tuple[dict[str, Any], str]:
    """The arrow tables of a data set in the hub's cache, fetched first if need be, and a key of their content."""
    asked = f"{repo!r} is not a folder under {root}" if root else f"{repo!r} is not at hand (ACCORD_DATA and data_dir name no folder)"
    try:
        import datasets
    except ImportError:
        raise ValueError(f"{asked}, and fetching it takes the package datasets: pip install 'accord[hub]'") from None
    try:
        with offline_without_network(datasets.config):
            found = datasets.load_dataset(repo, config)
    except (datasets.exceptions.DatasetNotFoundError, FileNotFoundError):
        raise ValueError(f"{asked}, and the hub has none of that name; write owner/name as on huggingface.co/datasets") from None
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        advice = f"put its parquet files under <folder>/{repo}/ and set ACCORD_DATA=<folder>, or connect once to fill the hub's cache"
        raise ValueError(f"{asked}, and the hub cannot give it ({reason}): {advice}") from None
    splits = chosen(dict(found))
    key = repr([(name, split._fingerprint) for name, split in splits.items()])
    return {name: split.with_format("arrow")[:] for name, split in splits.items()}, key


@contextmanager
def offline_without_network(config: Any) -> Iterator[None]:
    """Let `datasets` look into its cache alone while the hub cannot be reached, instead of trying for half a minute."""
    before = config.HF_HUB_OFFLINE
    config.HF_HUB_OFFLINE = before or not reachable(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


@contextmanager
def offline() -> Iterator[None]:
    """Fetch nothing inside: what the hub's cache does not hold is absent."""
    try:
        from datasets import config
    except ImportError:
        yield
        return
    before, config.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


def reachable(address: str) -> bool:
    """Whether the address has a name that resolves, or a proxy that will do it.

    >>> reachable("http://localhost"), reachable("https://no.such.host.invalid")
    (True, False)
    """
    if getproxies():
        return True
    try:
        return bool(socket.getaddrinfo(urlsplit(address).hostname, 443))
    except OSError:
        return False
