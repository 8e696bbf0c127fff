"""Parts that change the server's step: FedAvgM, FedAdam, FedYogi, FedAdagrad, renormalisation, corrective weights."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import case, close, compare, stepped, vector
from torch import Tensor

import accord
from test_golden import tiny


def test_fedavgm_heavy_ball(golden: Path) -> None:
    stepped(golden, "agg_fedavgm_heavyball", "fedavgm(beta=0.7)", {"inertia(beta=0.7)": {"v": "-message/{round}/v/"}})


@pytest.mark.parametrize(("name", "text"), [("agg_fedadam", "adam"), ("agg_fedyogi", "yogi")])
def test_adaptive(name: str, text: str, golden: Path) -> None:
    stepped(golden, name, f"fed{text}", {f"adapt({text})": {"m": "message/{round}/m/", "v": "message/{round}/v/"}})


@pytest.mark.parametrize(("name", "text"), [("agg_fedavgm_heavyball", "fedavgm(0.7, damped)"), ("agg_fedyogi", "fedadam")])
def test_the_wrong_form_fails(name: str, text: str, golden: Path) -> None:
    with pytest.raises(AssertionError):
        stepped(golden, name, text, {})


def moves(seed: int, count: int = 3, size: int = 6) -> list[Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=rng, dtype=torch.float64) for _ in range(count)]


def path(algorithm: accord.Algorithm, rounds: int = 4) -> list[Tensor]:
    """The steps that the server makes when the clients' mean update of round r is `moves(r)`."""
    w, state, made = torch.zeros(6, dtype=torch.float64), None, []
    for r in range(rounds):
        new, state = accord.server_step(algorithm, w, [accord.Reply(w + d, samples=1) for d in moves(r)], state=state)
        made.append(new - w)
        w = new
    return made


def means(rounds: int = 4) -> list[Tensor]:
    return [torch.stack(moves(r)).mean(0) for r in range(rounds)]


@pytest.mark.parametrize("form", ["heavy", "damped", "nesterov"])
def test_three_forms_of_server_momentum(form: str) -> None:
    """Nesterov's is torch's own optimiser on minus the mean update; the others are written out."""
    made, v = path(accord.fedavgm(0.8, form)), torch.zeros(6, dtype=torch.float64)  # type: ignore[arg-type]
    leaf = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    torchs = torch.optim.SGD([leaf], lr=1.0, momentum=0.8, nesterov=True)
    for step, d in zip(made, means(), strict=True):
        if form == "nesterov":
            before = leaf.detach().clone()
            leaf.grad = -d
            torchs.step()
            close(step, leaf.detach() - before, 1e-12)
        else:
            v = 0.8 * v + (d if form == "heavy" else 0.2 * d)
            close(step, v, 1e-12)


def test_corrected_adam_is_torchs() -> None:
    leaf = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    torchs = torch.optim.Adam([leaf], lr=0.3, betas=(0.9, 0.99), eps=0.1)
    for step, d in zip(path(accord.fedavg() + accord.adapt(lr=0.3, tau=0.1, corrected=True)), means(), strict=True):
        before = leaf.detach().clone()
        leaf.grad = -d
        torchs.step()
        close(step, leaf.detach() - before, 1e-12)


def test_adagrad_written_out() -> None:
    v = m = torch.zeros(6, dtype=torch.float64)
    for step, d in zip(path(accord.fedadagrad(lr=0.3, beta1=0.5, tau=0.01)), means(), strict=True):
        m, v = 0.5 * m + 0.5 * d, v + d**2
        close(step, 0.3 * m / (v.sqrt() + 0.01), 1e-12)


def test_no_inertia_is_fedavg_bit_for_bit() -> None:
    for a, b in zip(path(accord.fedavgm(0.0)), path(accord.fedavg()), strict=True):
        assert a.equal(b)


def test_renormalised_step_is_as_long_as_the_clients_are_on_average() -> None:
    for r, step in enumerate(path(accord.fedavg() + accord.renormalise())):
        lengths = torch.stack([d.norm() for d in moves(r)])
        close(step.norm(), lengths.mean(), 1e-12)
        close(step / step.norm(), means()[r] / means()[r].norm(), 1e-12)
    w = torch.ones(3)
    still = accord.server_step(accord.fedavg() + accord.renormalise(), w, [accord.Reply(w.clone()), accord.Reply(w.clone())])[0]
    assert still.equal(w)


# --- corrective weights ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedoptz_alpha0.2", "fedoptz_fedavg"])
def test_fedoptz(name: str, golden: Path) -> None:
    known = case(golden, name)
    h = known.hyper
    algorithm = accord.fedoptz(h["alpha"], means="batches") + accord.sgd(lr=h["lr"], momentum=h["momentum"])
    ends, replies = np.cumsum([0, *h["n_k"]]), []
    layout = accord.Flat(tiny(known)).layout
    for i, (a, b) in enumerate(itertools.pairwise(ends)):
        x, y = known.arrays["x"][a:b], known.arrays["y"][a:b]
        deal = [pair for pair in zip(x.split(4), y.split(4), strict=True) if len(pair[1]) == 4]
        replies.append(accord.local_round(algorithm, tiny(known), deal, data=(x, y)))
        if h["alpha"]:
            compare(known, layout, replies[-1].w, f"message/W/{i}/")
            compare(known, layout, replies[-1].up[algorithm.parts[-1]]["gradient"], f"message/D/{i}/")
            close(replies[-1].up[algorithm.parts[-1]]["loss"], known.arrays["message/L"][i], 1e-9)
    w, _ = accord.server_step(algorithm, vector(known, "init/"), replies)
    compare(known, layout, w, "expected/")
    if h["alpha"]:
        part = algorithm.parts[-1]
        assert isinstance(part, accord.corrective)
        d = torch.stack([reply.up[part]["gradient"] for reply in replies])
        close(part.weigh(d @ d.T, known.arrays["message/L"]), known.arrays["message/x"], 1e-7)


def gradients(seed: int, clients: int = 5, size: int = 12) -> Tensor:
    return torch.randn(clients, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("seed", range(3))
def test_equation_24_holds(seed: int) -> None:
    """With x of eq. 29, sum_i (x_i ||D_i||)^2 = (alpha min_i L_i / ||D_i||)^2."""
    d, losses = gradients(seed), torch.rand(5, dtype=torch.float64) + 0.1
    x = accord.corrective(0.3).weigh(d @ d.T, losses)
    c = 0.3 * (losses / d.norm(dim=1)).min()
    close((x * d.norm(dim=1)).norm(), c, 1e-12)
    plain = accord.corrective(0.3, "plain").weigh(d @ d.T, losses)
    close((plain @ d).norm(), c, 1e-12)
    assert torch.allclose(plain, plain[0].expand(5))


def test_a_client_without_gradient_has_no_weight_and_no_say() -> None:
    d, losses = gradients(0), torch.rand(5, dtype=torch.float64) + 0.1
    d[2] = 0
    rest = [0, 1, 3, 4]
    x = accord.corrective(0.3).weigh(d @ d.T, losses)
    assert float(x[2]) == 0.0
    close(x[rest], accord.corrective(0.3).weigh(d[rest] @ d[rest].T, losses[rest]), 1e-12)


@pytest.mark.parametrize("constraint", ["weighted", "plain"])
def test_gradients_that_vanish_or_cancel_add_nothing(constraint: str) -> None:
    part = accord.corrective(0.3, constraint)  # type: ignore[arg-type]
    for d in (torch.zeros(2, 3), torch.tensor([[1.0, 2.0, 0.0], [-1.0, -2.0, 0.0]])):
        assert part.weigh(d @ d.T, torch.ones(2)).tolist() == [0.0, 0.0]


def test_mean_over_samples_differs_from_the_mean_of_batches() -> None:
    """The last short batch weighs more in the program; over all samples the size of the pieces does not matter."""
    torch.manual_seed(0)
    module = torch.nn.Linear(4, 3).double()
    x, y = torch.randn(10, 4, dtype=torch.float64), torch.randint(0, 3, (10,))

    def sent(part: accord.corrective) -> Tensor:
        return accord.local_round(accord.fedavg() + part, module, [(x[:5], y[:5])], data=(x, y)).up[part]["gradient"]

    close(sent(accord.corrective(batch=3)), sent(accord.corrective(batch=10)), 1e-12)
    close(sent(accord.corrective(batch=10, means="batches")), sent(accord.corrective(batch=10)), 1e-12)
    assert (sent(accord.corrective(batch=3, means="batches")) - sent(accord.corrective())).abs().max() > 1e-4
