"""All data in one place: the upper bound that federated learning is measured by."""

from __future__ import annotations

from typing import ClassVar

from accord.data.federation import Federation
from accord.part import Part
from accord.pooled import pooled
from accord.recipe import named


@named
class Gather(Part):
    """One client that holds every client's training samples trains in each round, whatever the split and the selection say.

    A round is what the rule says, on all the data: `epochs` passes or `steps` batches. Where a share of the clients takes part in a
    round, it therefore takes more steps than they do together, 1 / share times as many. Nothing travels. Evaluation and
    personalisation see the clients as they are. Momentum goes on from round to round with `sgd(persist=True)`, which `centralised` has.
    """

    stays: ClassVar[bool] = True

    def trains_on(self, federation: Federation) -> Federation:
        return pooled(federation)
