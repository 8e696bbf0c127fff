"""Eigenvalues and traces against the whole Hessian of networks small enough to have one, and against the authors' recorded cases."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.functional import hessian

import small
from accord.analysis import eigenvalues, gradient_moments, trace
from accord.analysis.curvature import estimate, operator
from accord.analysis.lanczos import lanczos
from accord.analysis.recurrent import unfused
from accord.analysis.scratch import Scratch
from accord.flat import Layout, logits
from test_golden import case, tiny


def whole(module: nn.Module, x: Tensor, y: Tensor, *, flat: bool = False) -> Tensor:
    """The Hessian, by differentiating twice; `flat` for answers at each place of a sequence."""
    layout = Layout.of(dict(module.eval().named_parameters()))

    def loss(w: Tensor) -> Tensor:
        answers = logits(torch.func.functional_call(module, layout.named(w), (x,)))
        return F.cross_entropy(answers.flatten(0, 1) if flat else answers, y.flatten())

    return hessian(loss, torch.cat([p.detach().reshape(-1) for p in module.parameters()]))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def known() -> tuple[nn.Module, list[tuple[Tensor, Tensor]], Tensor]:
    """A model with BatchNorm, its batches, and its Hessian."""
    module = small.net(norm=True)
    x, y = small.samples(60)
    with torch.no_grad():
        module.train()(x)  # statistics that are not those of the batch
    return module, list(zip(x.split(7), y.split(7), strict=True)), whole(module, x, y)


def test_the_operator_is_the_hessian(known: tuple[nn.Module, list[tuple[Tensor, Tensor]], Tensor]) -> None:
    module, batches, exact = known
    found = operator(module, batches)
    block = torch.randn(len(exact), 3, dtype=torch.float64)
    torch.testing.assert_close(found @ block[:, 0], exact @ block[:, 0])
    torch.testing.assert_close(found @ block, exact @ block)


def test_eigenvalues(known: tuple[nn.Module, list[tuple[Tensor, Tensor]], Tensor]) -> None:
    module, batches, exact = known
    values = torch.linalg.eigvalsh(exact).numpy()
    found = eigenvalues(module, batches, tolerance=1e-5)
    np.testing.assert_allclose(found["eigenvalues"], values[::-1][:5], rtol=1e-4)
    np.testing.assert_allclose(found["smallest"], values[0], rtol=1e-4)
    strongest = values[np.argsort(-np.abs(values))][:5]
    np.testing.assert_allclose(found["strongest"], strongest, rtol=1e-4)
    assert found["convexity"] == pytest.approx(abs(values[-1] / values[0]), rel=1e-4)
    assert found["ratio"] == pytest.approx(values[-1] / values[-5], rel=1e-4)
    assert found["absolute_ratio"] == pytest.approx(abs(strongest[0] / strongest[4]), rel=1e-4)
    assert found["converged"]
    assert np.all(np.abs(found["eigenvalues"] - values[::-1][:5]) <= np.array(found["errors"]) + 1e-9)


@pytest.mark.parametrize("parts", [1, 3])
def test_trace(known: tuple[nn.Module, list[tuple[Tensor, Tensor]], Tensor], parts: int) -> None:
    module, batches, exact = known
    found = trace(module, batches, probes=60, parts=parts)
    assert abs(found["trace"] - float(exact.trace())) < 3 * found["trace_error"]
    assert found["parts"] == parts
    assert sum(found["by_tensor"].values()) == pytest.approx(found["trace"])
    wrong = trace(module, batches, probes=60, parts=parts, seed=1)
    assert wrong["trace"] != found["trace"]


def test_estimates_spread_as_their_standard_errors_say(known: tuple[nn.Module, list[tuple[Tensor, Tensor]], Tensor]) -> None:
    module, batches, _ = known
    found = [trace(module, batches[:6], probes=10, parts=2, seed=seed) for seed in range(20)]
    spread = float(np.std([each["trace"] for each in found], ddof=1))
    said = float(np.sqrt(np.mean([each["trace_error"] ** 2 for each in found])))
    assert 0.5 < spread / said < 2


def test_parts_of_unequal_size_count_by_their_samples() -> None:
    terms = torch.tensor([[1.0, 2.0], [10.0, 20.0], [3.0, 4.0], [12.0, 20.0]], dtype=torch.float64)  # parts take turns
    found = estimate(terms, torch.tensor([0.75, 0.25], dtype=torch.float64), ["a", "b"])
    assert found["by_tensor"] == {"a": 0.75 * 2 + 0.25 * 11, "b": 0.75 * 3 + 0.25 * 20}
    assert found["trace"] == 0.75 * 5 + 0.25 * 31
    assert found["trace_error"] == pytest.approx(np.sqrt(0.75**2 * 8 / 2 + 0.25**2 * 2 / 2))


class Reader(nn.Module):
    """A recurrent layer and a head that answer at each place of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.core, self.head = nn.Embedding(5, 2), nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        answers: Tensor = self.head(self.core(self.table(x))[0])
        return answers


def test_sequences_of_a_recurrent_network() -> None:
    torch.manual_seed(0)
    module, x, y = Reader().double(), torch.randint(0, 5, (6, 3)), torch.randint(0, 4, (6, 3))
    with unfused(module):
        exact = whole(module, x.clone(), y, flat=True)
    found = operator(module, [(x[:4], y[:4]), (x[4:], y[4:])])
    v = torch.randn(len(exact), dtype=torch.float64)
    torch.testing.assert_close(found @ v, exact @ v)
    moments = gradient_moments(module, [(x, y)])
    module.zero_grad()
    F.cross_entropy(module(x).flatten(0, 1), y.flatten()).backward()
    torch.testing.assert_close(moments.mean, torch.cat([p.grad.reshape(-1) for p in module.parameters()]))  # type: ignore[union-attr]


def test_repeated_eigenvalues_and_the_whole_space() -> None:
    values = torch.tensor([5.0, 5.0, 5.0, 1.0, 1.0, 0.0, 0.0, -3.0, -3.0], dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    ritz = lanczos(lambda v: turn @ (values * (turn.T @ v)), torch.ones(9, dtype=torch.float64), 50)
    np.testing.assert_allclose(ritz.values, values.sort().values.numpy(), atol=1e-12)


def test_an_interrupted_one_goes_on_where_it_was(tmp_path: Path, known: tuple[nn.Module, list[tuple[Tensor, Tensor]], Tensor]) -> None:
    module, batches, _ = known
    options = {"tolerance": 1e-5, "seed": 3}
    at_once = eigenvalues(module, batches, **options)
    first = Scratch(tmp_path, "key")
    eigenvalues(module, batches, steps=9, scratch=first, **options)
    again = Scratch(tmp_path, "key")
    assert len(again) == 10
    steps: list[int] = []
    found = eigenvalues(module, batches, scratch=again, progress=lambda what, done, total: steps.append(done), **options)
    assert min(steps) == 9
    assert found == at_once
    assert len(Scratch(tmp_path, "another")) == 0
    assert not (tmp_path / "state.json").exists()


def test_the_authors_network(golden: Path) -> None:
    known = case(golden, "hessian_w0")
    batches = list(zip(known.arrays["x"].split(16), known.arrays["y"].split(16), strict=True))
    module = tiny(known).eval()
    product = operator(module, batches) @ known.arrays["v"]
    torch.testing.assert_close(product, known.arrays["expected_Hv"], rtol=1e-7, atol=1e-9)
    found = eigenvalues(module, batches, tolerance=1e-5)
    np.testing.assert_allclose(found["eigenvalues"], known.arrays["expected_top10"][:5], rtol=1e-4)
    np.testing.assert_allclose(found["smallest"], known.arrays["expected_bottom10"][0], rtol=1e-4)
    assert found["convexity"] == pytest.approx(float(known.arrays["expected_convexity"]), rel=1e-4)
    assert found["absolute_ratio"] == pytest.approx(float(known.arrays["expected_lambda_ratio_1_5"]), rel=1e-4)
    # the program normalises with norm + 1e-6, which makes its values about 2e-6 too small
    np.testing.assert_allclose(found["strongest"], known.arrays["pyhessian_eigenvalues"], rtol=1e-4)
    probed = trace(module, batches, probes=100, parts=1)
    exact, error = float(known.arrays["expected_trace"]), probed["trace_error"]
    assert abs(probed["trace"] - exact) < 3 * error
    assert 0.6 < error / float(known.arrays["pyhessian_trace_100_stderr"]) < 1.6
