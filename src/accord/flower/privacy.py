"""Local differential privacy of one site: Flower clips the update and adds the noise, Opacus counts what that is worth."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flwr.app import Context, Message, RecordDict
from flwr.clientapp.mod import LocalDpMod
from torch import Tensor

from accord.checkpoint import write_atomically
from accord.flower.wire import pack, unpack


@dataclass(frozen=True)
class Privacy:
    """w0 + clip(w - w0) + N(0, (noise S)^2), with S = 2 clip, the furthest that two data sets of the site can move the clipped update.

    What is sent is thereby private for the site's data as a whole. (epsilon, delta) over all that was sent so far is Opacus' Renyi
    accountant's, without subsampling; the record of what was sent lies in `history`, beside the site's other files.
    """

    clip: float
    noise: float
    delta: float
    history: Path

    def protect(self, w: Tensor, w0: Tensor, say: Callable[[str], None]) -> Tensor:
        """The weights as they may leave; the round is counted first, whether or not anyone receives it."""
        counts = self.counted()
        counts[str(self.noise)] = counts.get(str(self.noise), 0) + 1
        write_atomically(self.history, json.dumps(counts))
        say(f"  privacy: clipped to {self.clip:g}, noise {self.noise:g} x {2 * self.clip:g}; {self.spent(counts)}")
        # the mod takes an epsilon of its own formula for the deviation S sqrt(2 ln(1.25 / delta)) / epsilon
        mod = LocalDpMod(self.clip, 2 * self.clip, math.sqrt(2 * math.log(1.25 / self.delta)) / self.noise, self.delta)
        received = Message(RecordDict({"w": pack({"w": w0})}), 0, "train")
        context = Context(0, 0, {}, RecordDict(), {})
        out = mod(received, context, lambda message, _: Message(RecordDict({"w": pack({"w": w})}), reply_to=message))
        return unpack(out.content["w"])["w"].to(w.dtype)

    def counted(self) -> dict[str, int]:
        """How many updates were sent with which noise."""
        if not self.history.is_file():
            return {}
        found: dict[str, int] = json.loads(self.history.read_text(encoding="utf-8"))
        return found

    def spent(self, counts: dict[str, int]) -> str:
        """What all of it comes to, in a sentence."""
        from opacus.accountants import RDPAccountant

        accountant = RDPAccountant()
        accountant.history = [(float(noise), 1.0, count) for noise, count in counts.items()]
        epsilon = accountant.get_epsilon(self.delta)
        return f"{sum(counts.values())} updates sent so far: epsilon {epsilon:.4g} at delta {self.delta:g}"
