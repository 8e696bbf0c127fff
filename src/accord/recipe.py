"""Recipe texts: `named` gives a piece its name and checks its arguments, `read` turns a text into pieces, `text` turns pieces back.

A recipe is made of names, calls, literals and `+`, for example `scaffold + perturb(by=contrast, rho=0.5) + constrain`.
It is parsed and walked as a syntax tree; nothing in it is ever evaluated as code.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

from accord.check import check, item_of, kinds_of, listed, nearest, takes_text

_T = TypeVar("_T", bound=Callable[..., Any])
_LONGEST = 20_000  # characters; a longer text is a mistake, not a recipe


@dataclass(frozen=True)
class Entry:
    """A registered name: what makes it, and what its arguments may be."""

    name: str
    kind: str
    make: Callable[..., Any]
    hints: Mapping[str, Any] = field(hash=False)
    defaults: Mapping[str, Any] = field(hash=False)
    summary: str = ""


_ENTRIES: dict[tuple[str, str], Entry] = {}  # the registry: (kind, name) -> entry; written by `named` only


def snake(name: str) -> str:
    """`PowerOfChoice` -> `power_of_choice`, `SGD` -> `sgd`.

    >>> snake("PowerOfChoice"), snake("SGD"), snake("LeNet5")
    ('power_of_choice', 'sgd', 'le_net5')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@dataclass_transform(frozen_default=True)
def _piece(cls: type) -> type:
    made: type = dataclass(frozen=True, repr=False)(cls)
    made.__repr__ = text  # type: ignore[assignment]
    return made


@dataclass_transform(frozen_default=True)
def named(make: _T, name: str | None = None) -> _T:
    """Register a class as a frozen, checked piece of recipes, or a function as a named composition.

    A class becomes a frozen dataclass whose arguments are checked against their annotations; its `kind` comes from the class
    it extends. A function's kind is that of what it returns.

    >>> from accord import Part, named, read
    >>> @named
    ... class Halve(Part):
    ...     by: float = 2.0
    >>> read("fedavg + halve(by=4)").parts[-1]
    halve(by=4.0)
    """
    known = name or snake(make.__name__)
    entry: Callable[..., Any] = make
    if isinstance(make, type):
        _checked(_piece(make), known)
        kind = typing.cast(str, getattr(make, "kind"))  # noqa: B009
    else:
        entry = _checked_function(make, known)
        kind = typing.get_type_hints(make)["return"].kind
    hints, defaults = _arguments(make)
    previous = _ENTRIES.get((kind, known))
    if previous is not None and (previous.make.__module__, previous.make.__qualname__) != (make.__module__, make.__qualname__):
        raise ValueError(f"the {kind} name {known!r} is taken by {previous.make.__module__}; choose another")
    summary = (inspect.getdoc(make) or "").split("\n")[0]
    _ENTRIES[kind, known] = Entry(known, kind, entry, hints, defaults, summary)
    return typing.cast(_T, entry)


def _arguments(make: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    hints = typing.get_type_hints(make, include_extras=True)
    parameters = list(inspect.signature(make).parameters.values())
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return {p.name: hints.get(p.name, Any) for p in parameters}, defaults


def _checked(cls: type, known: str) -> None:
    own: Any = cls.__dict__["__init__"]
    hints, _ = _arguments(cls)

    @functools.wraps(own)
    def init(self: Any, *args: Any, **named_args: Any) -> None:
        try:
            bound = inspect.signature(own).bind(self, *args, **named_args)
        except TypeError as error:
            raise ValueError(f"{known}: {error}; it takes {_usage(cls)}") from None
        values = {key: check(value, hints[key], f"{known}({key}=...)") for key, value in bound.arguments.items() if key in hints}
        own(self, **values)

    setattr(cls, "__init__", init)  # noqa: B010
    cls.name = property(lambda self: known)  # type: ignore[attr-defined]


def _checked_function(make: Callable[..., Any], known: str) -> Callable[..., Any]:
    hints, _ = _arguments(make)
    signature = inspect.signature(make)

    @functools.wraps(make)
    def call(*args: Any, **named_args: Any) -> Any:
        try:
            bound = signature.bind(*args, **named_args)
        except TypeError as error:
            raise ValueError(f"{known}: {error}; it takes {_usage(make)}") from None
        return make(**{key: check(value, hints[key], f"{known}({key}=...)") for key, value in bound.arguments.items()})

    return call


def _usage(make: Callable[..., Any]) -> str:
    names = [p.name for p in inspect.signature(make).parameters.values()]
    return ", ".join(names) if names else "no arguments"


def names(kind: str) -> list[str]:
    """The registered names of a kind, in alphabetical order."""
    return sorted(entry.name for entry in entries(kind))


def entries(kind: str) -> Iterator[Entry]:
    """The registered pieces of a kind, in alphabetical order of their names."""
    return iter(sorted((e for e in _ENTRIES.values() if e.kind == kind), key=lambda e: e.name))


def text(piece: Any) -> str:
    """The recipe text of a piece: its name and every argument, so that a changed default cannot change an old record."""
    return f"{piece.name}({', '.join(f'{name}={value!r}' for name, value in _values(piece))})"


def brief(piece: Any) -> str:
    """The recipe text as a person would write it: without the arguments that are as they are by default.

    >>> import accord
    >>> brief(accord.read("fedsol(rho=1.0) + constrain + sgd(lr=0.1)"))
    "task + perturb(by=distil, rho=1.0, on='head', adaptive='drift') + constrain + sgd(lr=0.1)"
    """
    pieces = getattr(piece, "pieces", None)
    if pieces is not None:
        return " + ".join(brief(each) for each in pieces)
    usual = _usual(piece)
    said = [f"{n}={brief(v) if dataclasses.is_dataclass(v) else repr(v)}" for n, v in _values(piece) if n not in usual or usual[n] != v]
    return f"{piece.name}({', '.join(said)})" if said else str(piece.name)


def _values(piece: Any) -> list[tuple[str, Any]]:
    return [(f.name, getattr(piece, f.name)) for f in dataclasses.fields(piece) if f.init]


def _usual(piece: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for f in dataclasses.fields(piece):
        if f.default is not dataclasses.MISSING:
            found[f.name] = f.default
        elif f.default_factory is not dataclasses.MISSING:
            found[f.name] = f.default_factory()
    return found


ALGORITHM = ("algorithm", "part", "rule", "select", "personal", "buffers")


def read(source: str, kinds: str | tuple[str, ...] = ALGORITHM) -> Any:
    """The piece that a text describes; `kinds` are the registries its names may come from.

    >>> import accord
    >>> accord.read("scaffold + constrain").parts[-1].name
    'constrain'
    >>> accord.read("fedpox")
    Traceback (most recent call last):
    ValueError: unknown name 'fedpox' at column 1 of 'fedpox' (did you mean 'fedprox'?)
    """
    if not isinstance(source, str):
        raise ValueError(f"a recipe is a text such as 'fedavg + constrain', not {source!r}")
    if len(source) > _LONGEST:
        raise ValueError(f"the recipe {source[:40]!r}... is {len(source)} characters long; at most {_LONGEST} are read")
    stripped = source.strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of Python about odd literals, such as '1else'
            tree = ast.parse(stripped, mode="eval").body
        found = _Reader(stripped, (kinds,) if isinstance(kinds, str) else kinds).value(tree)
    except UnicodeEncodeError as error:
        raise ValueError(f"cannot read {_short(stripped)} at column {error.start + 1}: half a character, which no text may hold") from None
    except SyntaxError as error:
        at = f" at column {error.offset}" if error.offset else ""
        raise ValueError(f"cannot read {_short(stripped)}{at}: {error.msg}; write names, calls and +, as in 'fedavg + constrain'") from None
    except (RecursionError, MemoryError):
        raise ValueError(f"cannot read {_short(stripped)}: it is nested too deeply") from None
    return found


def _short(source: str) -> str:
    return repr(source if len(source) <= 80 else source[:77] + "...")


class _Reader:
    """A walk over one recipe's syntax tree."""

    def __init__(self, source: str, kinds: tuple[str, ...]) -> None:
        self.source, self.kinds = source, kinds

    def fail(self, node: ast.AST, why: str) -> ValueError:
        return ValueError(f"{why} at column {getattr(node, 'col_offset', 0) + 1} of {_short(self.source)}")

    def value(self, node: ast.expr) -> Any:
        """A piece, at the top of a recipe or as one side of a `+`."""
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.value(node.left), self.value(node.right)
            try:
                return left + right
            except TypeError:
                raise self.fail(node.right, f"cannot add {ast.unparse(node.right)!r}") from None
        if isinstance(node, ast.Name | ast.Call):
            return self.piece(node, self.kinds)
        raise self.fail(node, f"expected a name, not {_short(ast.unparse(node))},")

    def piece(self, node: ast.Name | ast.Call, kinds: tuple[str, ...]) -> Any:
        function = node.func if isinstance(node, ast.Call) else node
        if not isinstance(function, ast.Name):
            raise self.fail(node, f"expected a name, not {_short(ast.unparse(function))},")
        entry = next((_ENTRIES[kind, function.id] for kind in kinds if (kind, function.id) in _ENTRIES), None)
        if entry is None:
            known = [name for kind in kinds for name in names(kind)]
            reason = self.fail(node, f"unknown name {function.id!r}")
            raise ValueError(f"{reason}{nearest(function.id, known) or f'; write one of {listed(sorted(known))}'}")
        args, keywords = self.arguments(node, entry) if isinstance(node, ast.Call) else ([], {})
        return entry.make(*args, **keywords)

    def arguments(self, node: ast.Call, entry: Entry) -> tuple[list[Any], dict[str, Any]]:
        hints = list(entry.hints.items())
        if len(node.args) > len(hints):
            raise self.fail(node, f"{entry.name} takes {len(hints)} arguments, not {len(node.args)},")
        args = [self.argument(arg, hint) for arg, (_, hint) in zip(node.args, hints, strict=False)]
        keywords: dict[str, Any] = {}
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in entry.hints:
                known = listed(entry.hints) if entry.hints else "no argument"
                close = nearest(keyword.arg or "**", entry.hints)
                raise ValueError(f"{self.fail(keyword, f'{entry.name} has no argument {keyword.arg!r}')}; it takes {known}{close}")
            if keyword.arg in keywords:
                raise self.fail(keyword, f"the argument {keyword.arg!r} is given twice")
            keywords[keyword.arg] = self.argument(keyword.value, entry.hints[keyword.arg])
        return args, keywords

    def argument(self, node: ast.expr, hint: Any) -> Any:
        """A literal, a list of them, a bare word where a text is wanted, or a piece where a piece is."""
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float | str | None):
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            value = node.operand.value
            if isinstance(value, int | float) and not isinstance(value, bool):
                return -value
        if isinstance(node, ast.Tuple | ast.List):
            return tuple(self.argument(item, item_of(hint)) for item in node.elts)
        if isinstance(node, ast.Name | ast.Call):
            wanted = kinds_of(hint)
            if isinstance(node, ast.Name) and node.id in ("nan", "inf"):
                return float(node.id)
            if isinstance(node, ast.Name) and takes_text(hint) and not any((k, node.id) in _ENTRIES for k in wanted):
                return node.id
            return self.piece(node, wanted or self.kinds)
        raise self.fail(node, f"expected a value, not {_short(ast.unparse(node))},")
