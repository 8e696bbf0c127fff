"""Named algorithms, each a composition of parts with its published constants."""

from __future__ import annotations

from typing import Literal

from accord.algorithm import Algorithm
from accord.check import NonNegative, Positive
from accord.flat import On
from accord.part import Part
from accord.parts.constrain import Constrain
from accord.parts.control import Control
from accord.parts.distil import Distil
from accord.parts.perturb import Perturb
from accord.parts.proximal import Proximal
from accord.parts.task import Task
from accord.recipe import named


@named
def fedavg(weights: Literal["samples", "uniform"] = "samples") -> Algorithm:
    """The mean of what the clients learn by themselves. McMahan et al., 2017."""
    return Algorithm((Task(weights),))


@named
def fedprox(mu: NonNegative = 0.01) -> Algorithm:
    """FedAvg with a pull back to the global weights. Li et al., 2020."""
    return fedavg() + Proximal(mu)


@named
def scaffold(divisor: Literal["momentum", "plain"] = "momentum") -> Algorithm:
    """FedAvg with control variates against client drift. Karimireddy et al., 2020."""
    return fedavg() + Control(divisor)


@named
def fedsam(rho: NonNegative = 0.1) -> Algorithm:
    """FedAvg with sharpness-aware local steps. Qu et al., 2022."""
    return fedavg() + Perturb(rho=rho)


@named
def fedsol(
    rho: NonNegative = 2.0,
    tau: Positive = 3.0,
    on: On = "head",
    adaptive: bool = True,
    scale: Literal["rows", "layer"] = "rows",
    by: Part | None = None,
) -> Algorithm:
    """Local gradients taken where they do not undo a proximal loss: perturbed along that loss's gradient. Lee et al., 2024."""
    drift: Literal["drift", "drift-tensor"] = "drift" if scale == "rows" else "drift-tensor"
    return fedavg() + Perturb(by=by or Distil(tau=tau), rho=rho, on=on, adaptive=drift if adaptive else "none")


@named
def fedconst() -> Algorithm:
    """FedAvg under FedCONST's convex constraints on the local update."""
    return fedavg() + Constrain()
