"""The server's step is as long as the clients' steps are on average."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from accord.cohort import Cohort, Reply
from accord.part import Part, Step
from accord.recipe import named


@named
class Renormalise(Part):
    """The step D inside becomes D / ||D|| times the mean of the clients' ||w_k - w||.

    Only the server's step of FedMRUR (An et al., 2023), from its abstract: neither its program nor its text was at hand, and its
    hyperbolic regulariser is not here. A step of zero stays zero.
    """

    def sums(self, reply: Reply) -> Mapping[str, tuple[float, Tensor]]:
        return {"length": (1.0, reply.delta.norm())}

    def aggregate(self, cohort: Cohort, inner: Step) -> Tensor:
        d = inner(cohort)
        factor: Tensor = cohort.mean(self, "length") / d.norm().clamp(min=torch.finfo(d.dtype).tiny)
        return d * factor
