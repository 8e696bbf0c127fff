"""The density of the Hessian's eigenvalues, by stochastic Lanczos quadrature."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor, nn

from accord.analysis.curvature import product, signs
from accord.analysis.lanczos import Floats, lanczos
from accord.analysis.piece import Analysis, Progress, Values, quiet
from accord.analysis.scratch import Scratch
from accord.analysis.subject import On, Subject
from accord.check import Count, Positive, Whole
from accord.recipe import named


def spectral_density(
    module: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    steps: int = 100,
    starts: int = 1,
    points: int = 1000,
    width: float = 1e-5,
    seed: int = 0,
    scratches: Sequence[Scratch] = (),
    progress: Progress = quiet,
) -> Values:
    """The density phi(t) = (1/P) sum_i N(t; lambda_i, sigma^2) of the Hessian's eigenvalues, and the nodes it is made of.

    Each of `starts` random sign vectors starts Lanczos' method; its Ritz values are nodes, the squared first entries of their
    vectors weights, sigma^2 = `width` max(1, lambda_max - lambda_min) as in PyHessian. `negative` is the share of eigenvalues below 0,
    the weight that lies more than 1e-6 of the range below it.

    >>> found = spectral_density(nn.Linear(3, 2), [(torch.eye(3), torch.tensor([0, 1, 1]))], points=50)
    >>> len(found["grid"]), len(found["density"]), round(sum(found["weights"]), 6)
    (50, 50, 1.0)
    """
    multiply, size, like = product(module, batches)
    nodes: list[Floats] = []
    weights: list[Floats] = []
    for k in range(starts):
        scratch = scratches[k] if scratches else Scratch()
        start = signs(size, seed, k).to(like)
        ritz = lanczos(multiply, start, steps, scratch, told=partial(_tell, progress, k, steps))
        nodes.append(ritz.values)
        weights.append(ritz.weights() / starts)
    return density(np.concatenate(nodes), np.concatenate(weights), points, width)


def _tell(progress: Progress, start: int, steps: int, step: int) -> None:
    progress(f"spectrum, start {start + 1}", step, steps)


def density(nodes: Floats, weights: Floats, points: int, width: float) -> Values:
    """Nodes with weights, smoothed onto a grid that reaches four deviations beyond them.

    >>> found = density(np.array([-1.0, 3.0]), np.array([0.25, 0.75]), 2001, 1e-3)
    >>> bool(abs(np.trapezoid(found["density"], found["grid"]) - 1) < 1e-3), found["negative"]
    (True, 0.25)
    """
    span = float(nodes.max() - nodes.min())
    sigma = math.sqrt(width * max(1.0, span))
    grid = np.linspace(nodes.min() - 4 * sigma, nodes.max() + 4 * sigma, points)
    bumps = np.exp(-((grid[:, None] - nodes) ** 2) / (2 * sigma**2)) / math.sqrt(2 * math.pi * sigma**2)
    order = np.argsort(nodes)
    return {
        "grid": grid.tolist(),
        "density": (bumps @ weights).tolist(),
        "nodes": nodes[order].tolist(),
        "weights": weights[order].tolist(),
        "sigma": sigma,
        "negative": float(weights[nodes < -1e-6 * max(span, 1e-30)].sum()),
    }


@named
class Spectrum(Analysis):
    """The density of the Hessian's eigenvalues over `samples`, by stochastic Lanczos quadrature (FedCONST Figure 11)."""

    samples: Count = 500
    steps: Count = 60
    starts: Count = 1
    points: Count = 1000
    width: Positive = 1e-5
    on: On = "train"
    batch: Count = 50
    seed: Whole = 0

    def of(self, subject: Subject, progress: Progress) -> Values:
        about: tuple[Any, ...] = (self.samples, self.batch, self.on, self.seed)
        return spectral_density(
            subject.module,
            subject.batches(self.samples, self.batch, on=self.on),
            steps=self.steps,
            starts=self.starts,
            points=self.points,
            width=self.width,
            seed=self.seed,
            scratches=[subject.scratch("spectrum", f"start{k}", *about) for k in range(self.starts)],
            progress=progress,
        )
