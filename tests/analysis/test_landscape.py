"""The loss around a model and the density of its Hessian's eigenvalues, where both are known exactly."""

from __future__ import annotations

import numpy as np
import torch
from test_curvature import whole

import small
from accord.analysis import eigenvalues, losses, mean_loss, random_direction, spectral_density
from accord.analysis.curvature import ritz_values
from accord.analysis.lanczos import lanczos
from accord.analysis.scratch import Scratch
from accord.analysis.spectrum import density
from accord.flat import Flat


def test_the_loss_along_an_eigenvector_bends_by_its_eigenvalue() -> None:
    module, (x, y) = small.net().eval(), small.samples(30)
    batches, space = [(x[:20], y[:20]), (x[20:], y[20:])], Scratch()
    ritz = ritz_values(module, batches, top=2, steps=60, tolerance=1e-8, seed=0, scratch=space)
    place = int(ritz.largest(1)[0])
    v = ritz.vector(place, space)
    exact = whole(module, x, y)
    torch.testing.assert_close(exact @ v, ritz.values[place] * v, rtol=1e-5, atol=1e-5 * float(exact.norm()))
    step = 1e-3
    before = Flat(module).w.clone()
    left, middle, right = losses(module, batches, [v], [[-step], [0.0], [step]])
    assert left is not None
    assert middle == mean_loss(module, batches)
    assert right is not None
    np.testing.assert_allclose((left - 2 * middle + right) / step**2, ritz.values[place], rtol=1e-3)
    assert Flat(module).w.equal(before)


def test_directions() -> None:
    flat = Flat(small.net())
    whole_model, tensors, filters = (random_direction(flat.w, flat.layout, by=by) for by in ("all", "tensor", "filter"))
    torch.testing.assert_close(whole_model.norm(), flat.w.norm())
    for part, filtered, own in zip(*(flat.layout.views(v) for v in (tensors, filters, flat.w)), strict=True):
        torch.testing.assert_close(part.norm(), own.norm())
        if own.dim() > 1:
            torch.testing.assert_close(filtered.flatten(1).norm(dim=1), own.flatten(1).norm(dim=1))
        else:
            assert float(filtered.abs().sum()) == 0


def test_a_plane_is_taken_up_where_it_was_left(tmp_path) -> None:  # type: ignore[no-untyped-def]
    module, batches = small.net(), small.batches(2)
    d, points = torch.ones_like(Flat(module).w), [[0.0], [0.5], [1.0]]
    wanted = losses(module, batches, [d], points)
    first = Scratch(tmp_path, "k")
    losses(module, batches, [d], points[:2], scratch=first)
    first.save(now=True)
    asked: list[int] = []
    again = losses(module, batches, [d], points, scratch=Scratch(tmp_path, "k"), progress=lambda what, done, total: asked.append(done))
    assert again == wanted
    assert asked == [2, 3]


def test_quadrature_gives_the_moments_of_the_spectrum() -> None:
    """From a start of equal weights m Lanczos steps integrate polynomials of degree 2m - 1 exactly."""
    values = torch.linspace(-1, 3, 40, dtype=torch.float64)
    ritz = lanczos(lambda v: values * v, torch.ones(40, dtype=torch.float64), 6)
    for power in range(12):
        np.testing.assert_allclose(ritz.weights() @ ritz.values**power, float((values**power).mean()), rtol=1e-9, atol=1e-12)


def test_the_density_of_a_network() -> None:
    module, (x, y) = small.net(), small.samples(30)
    found = spectral_density(module, [(x, y)], steps=40, starts=8, points=400)
    values = torch.linalg.eigvalsh(whole(module, x, y)).numpy()
    nodes, weights = np.array(found["nodes"]), np.array(found["weights"])
    assert abs(weights.sum() - 1) < 1e-9
    np.testing.assert_allclose(nodes.max(), values[-1], rtol=1e-6)
    assert abs((weights * nodes).sum() - values.mean()) < 4 * np.sqrt(2 * (values**2).mean() / len(values) / 8)
    share = float((values < -1e-6 * (values.max() - values.min())).mean())
    assert abs(found["negative"] - share) < 0.1
    exact = density(values, np.full(len(values), 1 / len(values)), 400, 1e-5)
    assert abs(np.trapezoid(found["density"], found["grid"]) - np.trapezoid(exact["density"], exact["grid"])) < 0.02


def test_the_ends_agree_with_the_spectrum() -> None:
    module, batches = small.net(), small.batches(1, 24)
    found, spectrum = eigenvalues(module, batches, tolerance=1e-7), spectral_density(module, batches, steps=60)
    np.testing.assert_allclose([found["smallest"], found["lambda1"]], [spectrum["nodes"][0], spectrum["nodes"][-1]], rtol=1e-5)
