"""Lanczos' method with full re-orthogonalisation: the ends of a large symmetric operator's spectrum, and how sure they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from accord.analysis.scratch import Scratch

Multiply: TypeAlias = Callable[[Tensor], Tensor]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Ritz:
    """The eigenvalues of H seen from the Krylov space, ascending, with the first entries and the ends of their vectors.

    `errors` bound how far each is from an eigenvalue: min(r, r^2 / gap), r = beta |s_m| being the residual and the gap the distance to
    the next Ritz value that is not within r (Kato and Temple).
    """

    values: Floats
    vectors: Floats  # one column a Ritz value, in coordinates of the Krylov space
    errors: Floats

    @classmethod
    def of(cls, alpha: list[float], beta: list[float]) -> Ritz:
        """The Ritz values of the tridiagonal matrix with this diagonal; `beta` ends with the norm of what is left over."""
        from scipy.linalg import eigh_tridiagonal

        values, vectors = eigh_tridiagonal(np.array(alpha), np.array(beta[: len(alpha) - 1]))
        left = beta[len(alpha) - 1]
        residual = left * np.abs(vectors[-1])
        apart = np.abs(values[:, None] - values[None, :])
        apart[apart <= residual[:, None]] = np.inf
        gap = apart.min(axis=1, initial=np.inf)
        return cls(values, vectors, np.minimum(residual, residual**2 / gap))

    def weights(self) -> Floats:
        """The weights of Gauss quadrature: the squared first entries of the vectors, which sum to 1."""
        return np.asarray(self.vectors[0] ** 2)

    def largest(self, count: int) -> NDArray[np.intp]:
        """The places of the largest values, the largest first."""
        return np.argsort(-self.values)[:count]

    def strongest(self, count: int) -> NDArray[np.intp]:
        """The places of the values largest in magnitude, the largest first."""
        return np.argsort(-np.abs(self.values))[:count]

    def vector(self, place: int, scratch: Scratch) -> Tensor:
        """A Ritz vector of unit norm in the weights' own coordinates."""
        total: Tensor = torch.zeros_like(scratch.vector(0))
        for k, share in enumerate(self.vectors[:, place]):
            total.add_(scratch.vector(k), alpha=float(share))
        return total.div_(total.norm())


def lanczos(
    multiply: Multiply,
    start: Tensor,
    steps: int,
    scratch: Scratch | None = None,
    enough: Callable[[Ritz], bool] | None = None,
    told: Callable[[int], None] = lambda step: None,
) -> Ritz:
    """At most so many steps from a start vector, fewer once it is `enough`, or when the whole space is spanned.

    Where the Krylov space closes early, the method goes on from a new direction, so that repeated eigenvalues are found as often as
    they occur. `scratch` holds the vectors q_0, q_1, ... and goes on from those that it holds already.

    >>> matrix = torch.diag(torch.tensor([3.0, 1.0, 1.0, -2.0], dtype=torch.float64))
    >>> ritz = lanczos(lambda v: matrix @ v, torch.ones(4, dtype=torch.float64), 10)
    >>> ritz.values.round(6).tolist()
    [-2.0, 1.0, 1.0, 3.0]
    """
    scratch = Scratch() if scratch is None else scratch
    alpha, beta = scratch.numbers.setdefault("alpha", []), scratch.numbers.setdefault("beta", [])
    if not len(scratch):
        scratch.add(start / start.norm())
    steps = min(steps, start.numel())
    while len(alpha) < steps and not (alpha and enough is not None and enough(Ritz.of(alpha, beta))):
        told(len(alpha))
        q = scratch.vector(len(alpha))
        v = multiply(q)
        alpha.append(_dot(q, v))
        v = _orthogonal(v, scratch)
        beta.append(float(v.norm()))
        scale = max(map(abs, (*alpha, *beta)))
        if beta[-1] <= 64 * torch.finfo(v.dtype).eps * max(scale, 1e-30):
            beta[-1] = 0.0
            rng = torch.Generator().manual_seed(len(alpha))
            v = _orthogonal(torch.randn(v.numel(), generator=rng, dtype=v.dtype).to(v.device), scratch)
        if len(alpha) < start.numel():
            scratch.add(v / v.norm())
        scratch.save()
    scratch.save(now=True)
    told(len(alpha))
    return Ritz.of(alpha, beta)


def _orthogonal(v: Tensor, scratch: Scratch) -> Tensor:
    """What of a vector is orthogonal to all that are held, by Gram and Schmidt twice."""
    v = v.clone()
    for _ in range(2):
        for k in range(len(scratch)):
            q = scratch.vector(k)
            v.sub_(q, alpha=_dot(q, v))
    return v


def _dot(a: Tensor, b: Tensor) -> float:
    """The inner product, in double precision where that is cheap."""
    return float(a.double() @ b.double()) if a.numel() <= 1 << 20 else float(torch.dot(a, b))
