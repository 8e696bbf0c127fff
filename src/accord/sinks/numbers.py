"""A round's record as single numbers under names."""

from __future__ import annotations

import math
from collections.abc import Mapping

_COUNTED = ("clients", "absent", "rejected")  # lists of who, of which the number is told


def numbers(line: Mapping[str, object]) -> dict[str, float]:
    """The finite numbers in the record of a round: nested names joined by a slash, lists counted from 0.

    >>> numbers({"round": 3, "loss": 0.5, "clients": [4, 7], "evaluation": {"global": {"accuracy": 0.25, "classes": [0.5, None]}}})
    {'loss': 0.5, 'clients': 2.0, 'evaluation/global/accuracy': 0.25, 'evaluation/global/classes/0': 0.5}
    """
    found: dict[str, float] = {}
    for key, value in line.items():
        if key in _COUNTED:
            found[key] = float(len(value)) if isinstance(value, list) else 0.0
        elif key != "round":
            found |= _inside(key, value)
    return found


def _inside(name: str, value: object) -> dict[str, float]:
    if isinstance(value, Mapping):
        return {k: v for key, each in value.items() for k, v in _inside(f"{name}/{key}", each).items()}
    if isinstance(value, list | tuple):
        return {k: v for place, each in enumerate(value) for k, v in _inside(f"{name}/{place}", each).items()}
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return {}
    return {name: float(value)}
