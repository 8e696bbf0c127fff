"""The Ray cluster that an engine runs on: one on this machine, or one that is there."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Callable
from typing import Any

_PRIVATE = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no reports to anybody
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # workers use the environment that is there
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",  # what Ray would print among our results; deaths are told by the engine
}
_PATIENCE = 5.0  # seconds for a port to answer
_LISTENS = "Ray listens on every network interface of this machine; "


def begin(address: str, workers: int) -> tuple[Any, Callable[[], None]]:
    """Ray, connected to the cluster at the address or to a new one with so many CPUs, and what ends the connection."""
    for name, value in _PRIVATE.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise ValueError("the engine ray needs Ray: pip install 'accord[ray]', or use the engine processes") from None
    if ray.is_initialized():
        return ray, lambda: None
    if address:
        _knock(address)
        where: dict[str, Any] = {"address": address}
    else:
        where = {"address": "local", "num_cpus": workers, "include_dashboard": False}
    try:
        ray.init(**where, log_to_driver=False, logging_level=logging.ERROR, namespace="accord")
    except (ray.exceptions.RayError, RuntimeError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        if address:
            token = "if it asks for a token, set RAY_AUTH_MODE=token and copy its ~/.ray/auth_token"
            raise ValueError(f"cannot join the Ray cluster at {address}: {reason}; {token}") from None
        raise ValueError(f"cannot start Ray here: {reason}") from None
    if not address:
        open_to = "whoever has the token in ~/.ray" if os.environ.get("RAY_AUTH_MODE") == "token" else "anybody"
        print(f"accord: {_LISTENS}it lets in {open_to}", file=sys.stderr)
    return ray, ray.shutdown


def _knock(address: str) -> None:
    """See whether anything answers at the address, which Ray would wait for much longer."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"address {address!r} is neither auto nor HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ValueError(f"no Ray cluster answers at {address} ({error}): begin one with `ray start --head`") from None
