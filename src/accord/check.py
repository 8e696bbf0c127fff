"""What an argument may be: annotations with ranges, and the sentence that refuses everything else."""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin


@dataclass(frozen=True)
class Range:
    """The numbers an argument may take, ends included unless `above` says that the lower one is not."""

    low: float = -math.inf
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"{'above' if self.above else 'from'} {self.low:g} to {self.high:g}"
        return f"above {self.low:g}" if self.above else f"at least {self.low:g}"


LARGEST = 2**32 - 1  # the largest whole number that an argument may be, which is also NumPy's largest seed

Positive = Annotated[float, Range(0, above=True)]
NonNegative = Annotated[float, Range(0)]
Fraction = Annotated[float, Range(0, 1)]
Count = Annotated[int, Range(1)]
Whole = Annotated[int, Range(0)]


def check(value: Any, hint: Any, where: str) -> Any:
    """The value as the annotation wants it, or a `ValueError` that says what it should have been.

    >>> check(1, Positive, "mu")
    1.0
    >>> check(-1, Positive, "mu")
    Traceback (most recent call last):
    ValueError: mu is -1; it must be a number above 0
    """
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Annotated:
        return check(_ranged(value, args[0], args[1], where), args[0], where)
    if origin in (Union, types.UnionType):
        return _any_of(value, args, where)
    if origin is Literal:
        if value in args and type(value) in {type(a) for a in args}:
            return value
        raise ValueError(f"{where} is {value!r}; it must be one of {listed(args)}{nearest(str(value), map(str, args))}")
    if origin is tuple:
        items = value if isinstance(value, tuple | list) else (value,)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(check(v, args[0], where) for v in items)
        if len(items) == len(args):
            return tuple(check(v, a, where) for v, a in zip(items, args, strict=True))
        raise ValueError(f"{where} is {value!r}; it must be {len(args)} values")
    return _plain(value, hint, where)


def _ranged(value: Any, base: Any, limits: Range, where: str) -> Any:
    number = "a whole number" if base is int else "a number"
    if isinstance(value, bool) or not isinstance(value, int | float) or not representable(value):
        raise ValueError(f"{where} is {value!r}; it must be {number} {limits}")
    if (base is int and not float(value).is_integer()) or value not in limits:
        raise ValueError(f"{where} is {value!r}; it must be {number} {limits}")
    if base is int and value > LARGEST:
        raise ValueError(f"{where} is {value!r}; it must be at most {LARGEST}")
    return base(value)


def representable(value: float) -> bool:
    """Whether a number is finite, and small enough for a float when it is a whole one.

    >>> representable(0.5), representable(float("nan")), representable(10**400)
    (True, False, False)
    """
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _any_of(value: Any, hints: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in hints:
        return None
    reasons = []
    for hint in hints:
        try:
            return check(value, hint, where)
        except ValueError as error:
            if hint is not type(None):
                reasons.append(str(error))
    raise ValueError(" or ".join([reasons[0], *(r.partition("; ")[2] for r in reasons[1:])]))


def _plain(value: Any, hint: Any, where: str) -> Any:
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        if representable(value):
            return float(value)
        raise ValueError(f"{where} is {value!r}; it must be a finite number")
    if isinstance(value, bool) and hint is not bool:
        raise ValueError(f"{where} is {value!r}; it must be {_described(hint)}")
    if isinstance(hint, type) and isinstance(value, hint):
        return value
    raise ValueError(f"{where} is {value!r}; it must be {_described(hint)}")


def _described(hint: Any) -> str:
    words = {int: "a whole number", float: "a number", str: "a text in quotes", bool: "True or False", type(None): "None"}
    if hint in words:
        return words[hint]
    kind = getattr(hint, "kind", None)
    plural = f"{kind}s".replace("ss", "s")
    return f"one of the {plural} that `accord list {plural}` shows" if kind else getattr(hint, "__name__", str(hint))


def listed(items: Iterable[Any]) -> str:
    """`a, b or c`."""
    shown = [str(i) for i in items]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} or {shown[-1]}" if shown else "nothing"


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'fedprox'?)` when something known is close to the word, else nothing.

    >>> nearest("fedpox", ["fedprox", "scaffold"])
    " (did you mean 'fedprox'?)"
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.55)
    return f" (did you mean {close[0]!r}?)" if close else ""


def options_of(hint: Any) -> tuple[Any, ...]:
    """The alternatives of an annotation, without its ranges."""
    if get_origin(hint) is Annotated:
        return options_of(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(o for part in get_args(hint) for o in options_of(part))
    return (hint,)


def item_of(hint: Any) -> Any:
    """The annotation of the items of a tuple."""
    found = next((o for o in options_of(hint) if get_origin(o) is tuple), None)
    return get_args(found)[0] if found is not None else Any


def kinds_of(hint: Any) -> tuple[str, ...]:
    """The kinds of pieces that an annotation admits."""
    found = [o.kind for o in options_of(hint) if isinstance(getattr(o, "kind", None), str)]
    return tuple(found) + (kinds_of(item_of(hint)) if any(get_origin(o) is tuple for o in options_of(hint)) else ())


def takes_text(hint: Any) -> bool:
    """Whether an annotation admits a text."""
    return any(o is str or (get_origin(o) is Literal and any(isinstance(a, str) for a in get_args(o))) for o in options_of(hint))
