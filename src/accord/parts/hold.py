"""Some of the weights stay what they were."""

from __future__ import annotations

from typing import Literal

from accord.client import Batch, Client
from accord.flat import On
from accord.part import Gradient, Part
from accord.recipe import named


@named
class Hold(Part):
    """The head, or the body, does not move during local training: neither gradient, decay nor momentum touch it.

    `hold("head")` is FedBABU (Oh et al., 2022): clients learn a body around one shared random head. Equal to the rule's `on="body"`,
    and stays in force when another rule is put in its place.
    """

    on: Literal["head", "body"] = "head"

    @property
    def moves(self) -> On:
        return "body" if self.on == "head" else "head"

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        for span in client.layout.spans(self.on):
            client.g[span].zero_()

    def moved(self, client: Client) -> None:
        for span in client.layout.spans(self.on):
            client.w[span].copy_(client.w0[span])
