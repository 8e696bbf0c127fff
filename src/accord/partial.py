"""What some of a round's replies add up to, wherever they were added: on the server as they come, or beside the clients."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from accord.exact import Exact
from accord.part import Part, State

if TYPE_CHECKING:
    from accord.algorithm import Algorithm
    from accord.cohort import Reply


class Outcome(NamedTuple):
    """How it went with one client: why its reply cannot be used, or None, and what is recorded of it otherwise."""

    fault: str | None
    samples: int = 0
    loss: float = 0.0
    sent: int = 0  # bytes of what its parts send up


class Shapes(ValueError):
    """Sums made in different places are of different shapes."""


@dataclass
class Partial:
    """Exact sums over some clients' replies, and how it went with each. Which replies are added where changes no bit of them."""

    totals: dict[tuple[Part, str], Exact] = field(default_factory=dict)
    statistics: Exact = field(default_factory=Exact)
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    kept: dict[int, Mapping[Hashable, State]] = field(default_factory=dict)  # what accepted clients keep, until the server has it

    def add(self, reply: Reply, algorithm: Algorithm, w: Tensor, b: Tensor) -> str | None:
        """Add the reply of a client that began with these weights and statistics, or say why not and add nothing."""
        fault = reply.fault(w.numel(), b.numel()) or self._add(reply, algorithm, w, b)
        if fault is None:
            sent = sum(t.nbytes for state in reply.up.values() for t in state.values())
            self.outcomes[reply.client] = Outcome(None, reply.samples, reply.loss, sent)
        else:
            self.outcomes[reply.client] = Outcome(fault)
        return fault

    def _add(self, reply: Reply, algorithm: Algorithm, w: Tensor, b: Tensor) -> str | None:
        reply.delta = reply.w - w
        found: dict[tuple[Part, str], tuple[float, Tensor]] = {}
        for part in algorithm.all_parts:
            try:
                found |= {(part, name): pair for name, pair in part.sums(reply).items()}
            except KeyError as missing:
                return f"did not send what {part.name} needs ({missing})"
        for (part, name), (_, tensor) in found.items():
            known = self.totals.get((part, name))
            if known is not None and known.shape != tensor.shape:
                return f"sent {part.name}'s {name} in shape {tuple(tensor.shape)}; the others sent {tuple(known.shape or ())}"
        for key, (weight, tensor) in found.items():
            self.totals.setdefault(key, Exact()).add(tensor, weight)
        if reply.b.numel():
            self.statistics.add(reply.b - b, reply.samples)
        return None

    def merge(self, other: Partial) -> None:
        """Add what was added elsewhere, of other clients."""
        for key, total in other.totals.items():
            mine = self.totals.setdefault(key, Exact())
            if mine.shape is not None and mine.shape != total.shape:
                raise Shapes(f"{key[0].name}'s {key[1]} has shape {tuple(mine.shape)} here and {tuple(total.shape or ())} there")
            mine.merge(total)
        self.statistics.merge(other.statistics)
        self.outcomes |= other.outcomes
