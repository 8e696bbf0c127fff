"""GSNR, OSGR and Hessians between clients: against loops, the whole Hessian, and the recorded cases."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from test_curvature import whole

import small
from accord.analysis import Diagonal, Moments, against_size, by_update, gradient_moments, hessian_diagonal, hessian_match, one_step
from accord.analysis.curvature import operator
from accord.flat import Flat, Layout
from test_golden import case, tiny


def test_moments_are_those_of_a_loop_over_samples() -> None:
    module, (x, y) = small.net(norm=True).eval(), small.samples(23)
    rows = []
    for k in range(23):
        module.zero_grad()
        F.cross_entropy(module(x[k : k + 1]).logits, y[k : k + 1]).backward()
        rows.append(torch.cat([p.grad.reshape(-1) for p in module.parameters()]))  # type: ignore[union-attr]
    table = torch.stack(rows)
    g, spread = table.mean(0), table.var(0, correction=0)
    found = gradient_moments(module, [(x[:9], y[:9]), (x[9:], y[9:])])
    torch.testing.assert_close(found.mean, g)
    torch.testing.assert_close(found.variance, spread)
    known = spread > 1e-12
    assert 0 < int(known.sum()) < len(known)
    torch.testing.assert_close(found.gsnr[known], (g**2 / spread)[known])
    assert float(found.gsnr[~known].abs().sum()) == 0


def test_the_ratio_by_its_formula_is_what_steps_do_on_average() -> None:
    """To first order a step on D lowers the loss on D by lr g_D g_D and on D' by lr g_D g_D', whose means give the formula back."""
    found = Moments(torch.tensor([0.5, 0.1], dtype=torch.float64), torch.tensor([0.1, 4.0], dtype=torch.float64), 10)
    rng = torch.Generator().manual_seed(0)
    sets = found.mean + torch.randn(2, 400_000, 2, generator=rng, dtype=torch.float64) * (found.variance / found.n).sqrt()
    direct = float((sets[0] * sets[1]).sum(1).mean() / sets[0].square().sum(1).mean())
    assert found.osgr("unbiased") == pytest.approx(direct, abs=0.01)
    assert found.osgr("plain") != pytest.approx(direct, abs=0.03)


def test_one_step_leaves_the_model_as_it_was() -> None:
    module, (x, y) = small.net(), small.samples(20)
    before = Flat(module).w.clone()
    here, there = one_step(module, [(x[:5], y[:5]), (x[5:10], y[5:10])], [(x[10:], y[10:])], 1e-4)
    assert Flat(module).w.equal(before)
    module.zero_grad()
    losses = [F.cross_entropy(module(part).logits, label) for part, label in ((x[:10], y[:10]), (x[10:], y[10:]))]
    g, other = (torch.cat([p.reshape(-1) for p in torch.autograd.grad(loss, list(module.parameters()))]) for loss in losses)
    assert here == pytest.approx(1e-4 * float(g @ g), rel=1e-2)
    assert there == pytest.approx(1e-4 * float(g @ other), rel=1e-2)


def test_what_moved_most() -> None:
    update, w = torch.arange(20.0), -torch.arange(20.0) * 2
    found = by_update(update, w, torch.ones(20))
    assert found == {"top": {"weight": 37.0, "gsnr": 1.0}, "bottom": {"weight": 1.0, "gsnr": 1.0}}
    assert against_size(w, update.square(), bins=4)["rank_correlation"] == pytest.approx(1)
    tied = against_size(torch.tensor([1.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 1.0]))["rank_correlation"]
    assert tied == pytest.approx(-0.5)  # ranks 1.5, 1.5, 3 and 1.5, 3, 1.5


def test_batch_statistics_have_no_gradient_of_one_sample() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3, track_running_stats=False))
    with pytest.raises(ValueError, match="single sample has no gradient"):
        gradient_moments(module, [(torch.randn(4, 4), torch.tensor([0, 1, 2, 0]))])


def test_the_recorded_case_of_gsnr(golden: Path) -> None:
    known = case(golden, "gsnr_osgr")
    wanted, (x, y) = known.arrays, (known.arrays["x"], known.arrays["y"])
    found = gradient_moments(tiny(known), list(zip(x.split(16), y.split(16), strict=True)))
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(found.mean, wanted["expected_mean_grad"], **close)
    torch.testing.assert_close(found.variance, wanted["expected_var_biased"], **close)
    torch.testing.assert_close(found.gsnr, wanted["expected_gsnr"], **close)
    assert found.known.equal(wanted["expected_mask"])
    assert float(found.gsnr.sum()) == pytest.approx(float(wanted["expected_gsnr_sum"]), rel=1e-9)
    assert found.osgr() == pytest.approx(float(wanted["expected_osgr"]), rel=1e-9)
    assert found.osgr("unbiased") == pytest.approx(float(wanted["expected_osgr_unbiased_weights"]), rel=1e-9)


# --- Hessians between clients --------------------------------------------------------------------------------------------------------


def test_a_diagonal_is_exact_where_there_are_probes_for_it() -> None:
    module, (x, y) = small.net(), small.samples(30)
    exact = whole(module, x, y).diag()
    sizes = [p.numel() for p in module.parameters()]
    found = hessian_diagonal(module, [(x[:20], y[:20]), (x[20:], y[20:])], probes=len(exact))
    torch.testing.assert_close(found.mean, exact)
    assert found.square == pytest.approx(float(exact @ exact))
    torch.testing.assert_close(found.tensors, torch.stack([part.sum() for part in exact.split(sizes)]))


def test_estimates_of_a_diagonal_have_no_bias() -> None:
    module, (x, y) = small.net(), small.samples(12)
    exact = whole(module, x, y).diag()
    square = float(exact @ exact)
    found = [hessian_diagonal(module, [(x, y)], probes=4, client=k) for k in range(60)]
    squares = torch.tensor([each.square for each in found])
    error = float(squares.std()) / 60**0.5
    assert abs(float(squares.mean()) - square) < 3 * error
    naive = sum(float(each.mean @ each.mean) for each in found) / 60
    assert naive - square > 3 * error  # what the squared norm of the mean says is too large
    first, others = found[0].mean, torch.stack([each.mean for each in found[1:]])
    products = others @ first
    assert abs(float(products.mean()) - float(exact @ first)) < 3 * float(products.std()) / 59**0.5


def test_the_recorded_case_of_clients(golden: Path) -> None:
    known = case(golden, "hessian_HN_HD")
    wanted, found = known.arrays, []
    for k in range(3):
        module = tiny(case(golden, "hessian_w0"))
        module.load_state_dict(known.group(f"weights/{k}/"))
        layout = Layout.of(dict(module.named_parameters()))
        made = Diagonal.exact(wanted["diag"][k], [slot.stop - slot.start for slot in layout.slots])
        torch.testing.assert_close(made.tensors, wanted["per_tensor_trace"][k], rtol=1e-9, atol=1e-12)
        found.append(made)
    paper, code = hessian_match(found, "paper"), hessian_match(found, "code")
    assert paper["H_N"] == pytest.approx(float(wanted["expected_HN_paper"]), rel=1e-9)
    assert paper["H_D"] == pytest.approx(float(wanted["expected_HD_paper"]), rel=1e-9)
    assert paper["cosine"] == pytest.approx(float(wanted["expected_HD_cosine_pairs"]), rel=1e-9)
    assert code["H_N"] == pytest.approx(float(wanted["expected_HN_code"]), rel=1e-9)
    assert code["H_D"] == pytest.approx(float(wanted["expected_HD_code"]), rel=1e-9)
    with pytest.raises(ValueError, match="at least two"):
        hessian_match(found[:1])


def test_the_diagonal_of_the_recorded_case(golden: Path) -> None:
    known = case(golden, "hessian_w0")
    columns = torch.eye(1106, dtype=torch.float64)[:, ::40]
    product = operator(tiny(known), [(known.arrays["x"], known.arrays["y"])]) @ columns
    torch.testing.assert_close((product * columns).sum(0), known.arrays["expected_diag"][::40], rtol=1e-7, atol=1e-9)
