"""What FedSOL's paper proves: orthogonality that grows with the perturbation, and the toy example of its Appendix L."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import accord
from test_limits import Parabola, Points

MU = 0.7


def path(parts: Sequence[accord.Part], start: Sequence[float], a: Sequence[float], m: Sequence[float], steps: int, lr: float) -> Tensor:
    """Where one client ends that starts at w0 = `start` and goes down (1/2) sum a (w - m)^2 by these parts."""
    batch = (torch.tensor([[*a, *m]], dtype=torch.float64), torch.zeros(1, dtype=torch.long))
    algorithm = accord.Algorithm((Parabola(), *parts)) + accord.sgd(lr=lr, momentum=0.0)
    w0 = torch.tensor(start, dtype=torch.float64)
    return accord.local_round(algorithm, Points(len(a)), [batch] * steps, w0=w0).w


def update(rho: float, w0: Tensor, a: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """FedSOL's second update gradient of a round, and the weights it was taken at, read off the weights after one and two steps."""
    parts, lr = (accord.perturb(by=accord.proximal(MU), rho=rho),), 0.1
    one, two = (path(parts, w0.tolist(), a.tolist(), m.tolist(), steps, lr) for steps in (1, 2))
    return (one - two) / lr, one


@given(seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_the_update_turns_orthogonal_to_the_proximal_gradient_as_rho_grows(seed: int) -> None:
    """Proposition 1: <g_u, g_p> = <g_l, g_p> + rho g_p' H g_p / |g_p|, so its cosine goes from below 0 to 0 and no further at that rho."""
    rng = torch.Generator().manual_seed(seed)
    a = torch.rand(5, generator=rng, dtype=torch.float64) + 0.2
    w0, m = (torch.randn(5, generator=rng, dtype=torch.float64) for _ in range(2))
    local, w = update(0.0, w0, a, m)
    torch.testing.assert_close(local, a * (w - m))
    p = MU * (w - w0)
    assert float(local @ p) < 0, "the step away from the global weights and the way back oppose each other"
    unit = p / p.norm()
    enough = -float(local @ unit) / float((a * unit) @ unit)
    cosines = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        g, at = update(share * enough, w0, a, m)
        torch.testing.assert_close(at, w, msg="the first step of a round is a plain one, whatever rho is")
        torch.testing.assert_close(g, local + share * enough * a * unit)
        cosines.append(float(g @ p / (g.norm() * p.norm())))
    assert all(before < after for before, after in itertools.pairwise(cosines)), cosines
    assert math.isclose(cosines[-1], 0.0, abs_tol=1e-9)


@pytest.mark.parametrize("rho", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("delta", [0.1, 0.5, 3.0])
def test_fedsol_lands_on_the_line_to_the_local_minimum(delta: float, rho: float) -> None:
    """Appendix L: FedSOL comes to rest in the direction of the local minimum, rho short of it; FedProx leans to the steeper axis."""
    minimum, a = (1.0, 1.0), (1.0, delta)
    steps, lr = 60_000 if delta < 0.5 else 12_000, 0.01
    w = path((accord.perturb(by=accord.proximal(), rho=rho),), (0.0, 0.0), a, minimum, steps // 4, lr)
    r = math.sqrt(2) - rho
    torch.testing.assert_close(w, torch.full((2,), r / math.sqrt(2), dtype=torch.float64), rtol=1e-4, atol=1e-4)
    prox = path((accord.proximal(rho),), (0.0, 0.0), a, minimum, steps // 4, lr)
    torch.testing.assert_close(prox, torch.tensor([1 / (1 + rho), delta / (delta + rho)], dtype=torch.float64), rtol=1e-4, atol=1e-4)
    assert abs(float(prox[0] - prox[1])) > 0.04, "FedProx is off the line"


def test_figure_13_after_its_4000_steps() -> None:
    """delta = 0.1, 4,000 steps of 0.01 from the server's weights: FedSOL is close to the line, FedProx is not."""
    fedsol = path((accord.perturb(by=accord.proximal(), rho=0.5),), (0.0, 0.0), (1.0, 0.1), (1.0, 1.0), 4000, 0.01)
    fedprox = path((accord.proximal(0.5),), (0.0, 0.0), (1.0, 0.1), (1.0, 1.0), 4000, 0.01)
    angle = [math.degrees(math.atan2(float(w[1]), float(w[0]))) for w in (fedsol, fedprox)]
    assert abs(angle[0] - 45) < 1, angle
    assert abs(angle[1] - math.degrees(math.atan2(0.1 / 0.6, 1 / 1.5))) < 0.2, angle
    assert angle[1] < 16, angle
