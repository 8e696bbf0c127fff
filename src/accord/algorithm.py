"""An algorithm: an onion of parts, a local optimiser, a selection of clients and a way to personalise."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from accord.buffers import Buffers
from accord.data.federation import Federation
from accord.flat import Layout
from accord.part import Part
from accord.personal import Personal, Shared
from accord.rules import SGD, Rule
from accord.select import All, Select

_SLOTS: dict[str, type] = {"rule": Rule, "select": Select, "personal": Personal, "buffers": Buffers}


@dataclass(frozen=True, repr=False)
class Algorithm:
    """Parts, innermost first, and the slots. `+` wraps a part around what is there, or fills a slot.

    >>> from accord import constrain, fedavg, read, sgd
    >>> algorithm = fedavg() + constrain() + sgd(lr=0.1)
    >>> algorithm.rule.lr
    0.1
    >>> read(repr(algorithm)) == algorithm
    True
    """

    kind: ClassVar[str] = "algorithm"

    parts: tuple[Part, ...]
    rule: SGD = dataclasses.field(default_factory=SGD)
    select: Select = dataclasses.field(default_factory=All)
    personal: Personal = dataclasses.field(default_factory=Shared)
    buffers: Buffers = dataclasses.field(default_factory=Buffers)

    def __add__(self, other: object) -> Algorithm:
        if isinstance(other, Algorithm):
            return self._joined(other)
        if isinstance(other, Part):
            if other in self.all_parts and other in self.parts:
                raise ValueError(f"{other!r} stands twice in {self!s}")
            return dataclasses.replace(self, parts=(*self.parts, other))
        slots: dict[str, Any] = {s: other for s, base in _SLOTS.items() if isinstance(other, base)}
        return dataclasses.replace(self, **slots) if slots else NotImplemented

    def _joined(self, other: Algorithm) -> Algorithm:
        """Another algorithm around this one: the parts that both have stand once, and the slots that it fills are taken over.

        Of two innermost parts of one class, such as two tasks, only one remains: this one's, unless that has its defaults.
        """
        joined, outer = self, other.parts
        if self.parts and outer and type(self.parts[0]) is type(outer[0]):
            first = outer[0] if _by_default(self.parts[0]) else self.parts[0]
            joined, outer = dataclasses.replace(self, parts=(first, *self.parts[1:])), outer[1:]
        for part in outer:
            if part not in joined.parts:
                joined = joined + part
        plain = Algorithm(())
        changed = {s: getattr(other, s) for s in _SLOTS if getattr(other, s) != getattr(plain, s)}
        return dataclasses.replace(joined, **changed)

    @cached_property
    def all_parts(self) -> tuple[Part, ...]:
        """Every part once, those inside other parts before the part that holds them."""
        found: dict[Part, None] = {}
        for part in self.parts:
            for inner in _within(part):
                found[inner] = None
        return tuple(found)

    def moves(self, layout: Layout) -> tuple[slice, ...]:
        """The stretches of the weights that training may change: those that the rule and every part let move."""
        found = layout.spans(self.rule.on)
        for part in self.parts:
            if part.moves != "all":
                both = ((max(a.start, b.start), min(a.stop, b.stop)) for a in found for b in layout.spans(part.moves))
                found = tuple(slice(start, stop) for start, stop in both if start < stop)
        return found

    @property
    def stays(self) -> bool:
        """Whether no weights travel at all."""
        return any(part.stays for part in self.parts)

    def trains_on(self, federation: Federation) -> Federation:
        """The federation whose clients train, as the parts see it."""
        for part in self.parts:
            federation = part.trains_on(federation)
        return federation

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """What a client's state is filed under: every part, the rule and the buffers' policy."""
        return (*self.all_parts, self.rule, self.buffers)

    @property
    def pieces(self) -> tuple[Any, ...]:
        """The parts, the rule, and the other slots where they are not the usual ones: what the text names."""
        plain = Algorithm(())
        slots = [getattr(self, s) for s in _SLOTS if s == "rule" or getattr(self, s) != getattr(plain, s)]
        return (*self.parts, *slots)

    def __repr__(self) -> str:
        return " + ".join(repr(piece) for piece in self.pieces)


def _within(part: Part) -> Iterator[Part]:
    for f in dataclasses.fields(part):  # type: ignore[arg-type]
        value = getattr(part, f.name)
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Part):
                yield from _within(inner)
    yield part


def _by_default(part: Part) -> bool:
    """Whether every constant of a part is the one it has when nothing is said."""
    try:
        return part == type(part)()
    except ValueError:  # a part with an argument that must be given
        return False
