"""The neighbours of the recorded cases: the same programs at other switches, run here with torch's own optimiser."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F
from cases import close
from torch import Tensor, nn

import accord
from test_golden import TinyNet

Deal = list[tuple[Tensor, Tensor]]
Named = dict[str, Tensor]
Term = Callable[[nn.Module, Tensor], Tensor]  # of the model and the inputs: what is added to the cross entropy


def tiny(bias: bool = False, seed: int = 0) -> TinyNet:
    torch.manual_seed(seed)
    return TinyNet(bias).double()


def dealt(count: int = 6) -> Deal:
    torch.manual_seed(99)
    three = [(torch.randn(8, 3, 8, 8, dtype=torch.float64), torch.randint(0, 10, (8,))) for _ in range(3)]
    return list(itertools.islice(itertools.cycle(three), count))


def flat(named: Named) -> Tensor:
    return torch.cat([t.detach().flatten() for t in named.values()])


def weights(module: nn.Module) -> Named:
    return {name: p.detach().clone() for name, p in module.named_parameters()}


def loop(
    module: nn.Module,
    deal: Deal,
    *,
    lr: float = 0.05,
    momentum: float = 0.9,
    decay: float = 0.001,
    term: Term | None = None,
    climb: Callable[[Named, Named], Named] | None = None,
    add: Named | None = None,
    project: Callable[[str, Tensor], Tensor] | None = None,
    inside: bool = True,
    after: Callable[[str, Tensor], Tensor] | None = None,
) -> Tensor:
    """A trainer as the authors write it: loss, backward, what is done to the gradients, `torch.optim.SGD`, what is done to the weights."""
    optimiser = torch.optim.SGD(module.parameters(), lr=lr, momentum=momentum, weight_decay=0.0 if inside and project else decay)
    for x, y in deal:

        def loss(x: Tensor = x, y: Tensor = y) -> Tensor:
            total = F.cross_entropy(module(x).logits, y)
            return total + term(module, x) if term else total

        module.zero_grad()
        loss().backward()
        w = weights(module)
        if climb:
            e = climb(w, {n: p.grad.clone() for n, p in module.named_parameters()})  # type: ignore[union-attr]
            with torch.no_grad():
                for n, p in module.named_parameters():
                    p.add_(e[n])
            module.zero_grad()
            loss().backward()
        with torch.no_grad():
            for n, p in module.named_parameters():
                assert p.grad is not None
                p.copy_(w[n])
                if add:
                    p.grad.add_(add[n])
                if project:
                    p.grad.copy_(project(n, p.grad + decay * p if inside else p.grad))
        optimiser.step()
        if after:
            with torch.no_grad():
                for n, p in module.named_parameters():
                    p.copy_(after(n, p))
    return flat(weights(module))


def rows(of: Callable[[Tensor, Tensor], Tensor], against: Named) -> Callable[[str, Tensor], Tensor]:
    """A function of one row and its global weights, applied to each row of each weight and to no bias."""

    def each(name: str, t: Tensor) -> Tensor:
        if t.dim() < 2:
            return t
        pairs = zip(t.flatten(1), against[name].flatten(1), strict=True)
        return torch.stack([of(row, w0) for row, w0 in pairs]).view_as(t)

    return each


def strict(g: Tensor, w0: Tensor) -> Tensor:
    g = g - g.mean()
    return g - (g @ w0) / (w0 @ w0) * w0


def of_2023(d: Tensor, w0: Tensor) -> Tensor:
    c = d - d.mean()
    return c - (c @ w0) / (c.norm() * w0.norm()) * d.norm() / w0.norm() * w0


def sphere(w: Tensor, center: bool = True, scale: bool = True) -> Tensor:
    w = w - w.mean() if center else w
    return 2**0.5 * w / w.norm() if scale else w


def moved(by: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda w, w0: w0 + by(w - w0, w0)


def asam(rho: float) -> Callable[[Named, Named], Named]:
    def climb(w: Named, g: Named) -> Named:
        length = torch.cat([(w[n].abs() * g[n]).flatten() for n in w]).norm() + 1e-12
        return {n: rho * w[n].square() * g[n] / length for n in w}

    return climb


def pulled(w0: Named, mu: float) -> Term:
    return lambda module, x: mu / 2 * sum(((p - w0[n]) ** 2).sum() for n, p in module.named_parameters())  # type: ignore[return-value]


def contrasted(there: nn.Module, past: nn.Module, mu: float, tau: float) -> Term:
    def term(module: nn.Module, x: Tensor) -> Tensor:
        z, zg, zp = module(x).features, there(x).features.detach(), past(x).features.detach()
        scores = torch.stack([F.cosine_similarity(z, zg), F.cosine_similarity(z, zp)], 1) / tau
        return mu * -F.log_softmax(scores, 1)[:, 0].mean()

    return term


def found(text: str, deal: Deal, bias: bool = False, momentum: float = 0.9, **states: object) -> Tensor:
    algorithm = accord.read(text) + accord.sgd(lr=0.05, momentum=momentum, decay=0.001)
    return accord.local_round(algorithm, tiny(bias), deal, **states).w  # type: ignore[arg-type]


W0 = weights(tiny())
ALGORITHM_1: dict[str, tuple[str, dict[str, object]]] = {
    "wd-outside": ("fedavg + constrain(decay=outside)", {"inside": False}),
    "nomomentum": ("fedconst", {"momentum": 0.0}),
    "fedprox": ("fedprox(mu=0.3) + constrain", {"term": pulled(W0, 0.3)}),
    "fedasam": ("fedasam(rho=1) + constrain", {"climb": asam(1.0)}),
}


@pytest.mark.parametrize("name", ALGORITHM_1)
def test_algorithm_1_on_the_total_gradient(name: str) -> None:
    text, how = ALGORITHM_1[name]
    for steps in (1, 2, 6):
        wanted = loop(tiny(), dealt(steps), project=rows(strict, W0), **how)  # type: ignore[arg-type]
        close(found(text, dealt(steps), momentum=how.get("momentum", 0.9)), wanted, 1e-10)  # type: ignore[arg-type]


def test_algorithm_1_with_feddyn_and_moon() -> None:
    h, past = {n: 0.01 * t for n, t in weights(tiny(seed=5)).items()}, tiny(seed=6)
    wanted = loop(tiny(), dealt(), term=pulled(W0, 1.0), add={n: -t for n, t in h.items()}, project=rows(strict, W0))
    close(found("feddyn(alpha=1) + constrain", dealt(), kept={accord.dynamic(1.0): {"h": flat(h)}}), wanted, 1e-10)
    wanted = loop(tiny(), dealt(), term=contrasted(tiny(), past, 0.5, 1.0), project=rows(strict, W0))
    part = accord.contrast(0.5, 1.0)
    close(found("moon(mu=0.5, tau=1) + constrain", dealt(), kept={part: {"w": flat(weights(past))}}), wanted, 1e-10)


def both(by: Callable[[Tensor, Tensor], Tensor], *flags: bool) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda w, w0: sphere(moved(by)(w, w0), *flags)


PROGRAMS: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor], dict[str, object]]] = {
    "last": ('fedavg + constrain(apply=displacement, mode="linear+sphere")', both(strict), {}),
    "last-centred-only": (
        "fedavg + constrain(apply=displacement) + constrain(mode=sphere, orthogonal=False)",
        both(strict, True, False),
        {},
    ),
    "last-fedprox": ("fedprox(mu=0.3) + constrain(mode=sphere)", lambda w, w0: sphere(w), {"term": pulled(W0, 0.3)}),
    "last-fedsam": ("fedasam + constrain(mode=sphere)", lambda w, w0: sphere(w), {"climb": asam(1.0)}),
    "2023": ("fedavg + constrain(apply=displacement, parallel=uncentred)", moved(of_2023), {}),
    "2023-fedsam": ("fedasam + constrain(apply=displacement, parallel=uncentred)", moved(of_2023), {"climb": asam(1.0)}),
    "centred-only": ("fedavg + constrain(apply=displacement, orthogonal=False)", moved(lambda d, w0: d - d.mean()), {}),
}


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_correct_the_weights_after_each_step(name: str, bias: bool) -> None:
    text, by, how = PROGRAMS[name]
    w0 = weights(tiny(bias))
    how = {"term": pulled(w0, 0.3)} if "term" in how else how
    for steps in (1, 2, 6):
        wanted = loop(tiny(bias), dealt(steps), after=rows(by, w0), **how)  # type: ignore[arg-type]
        close(found(text, dealt(steps), bias), wanted, 1e-10)


def test_a_direction_for_fednova_is_scaffolds_correction() -> None:
    """The same arrays as d and d_i, and as c and c_i: the same weights."""
    c, own = flat(weights(tiny(seed=3))), flat(weights(tiny(seed=4)))
    part, control = accord.normalise(variate="moving"), accord.control()
    nova = found("fedavg + normalise(variate=moving)", dealt(), down={part: {"d": c}}, kept={part: {"d": own}})
    close(nova, found("scaffold", dealt(), down={control: {"c": c}}, kept={control: {"c": own}}), 1e-14)
    frozen = accord.normalise(variate="frozen")
    still = found("fedavg + normalise(variate=frozen)", dealt(), kept={frozen: {"d": own}})
    close(still, found("scaffold", dealt(), kept={control: {"c": own}}), 1e-14)


def test_limits_among_the_cases() -> None:
    """A past equal to the present pulls nowhere; FedDyn without history is FedProx; no momentum and no decay are plain steps."""
    plain, start = found("fedavg", dealt()), flat(W0)
    close(found("moon(mu=1)", dealt(), kept={accord.contrast(1.0): {"w": start}}), plain, 1e-12)
    assert found("moon(mu=1)", dealt()).equal(plain)
    close(found("feddyn(alpha=1)", dealt()), found("fedprox(mu=1)", dealt()), 1e-14)
    close(plain, loop(tiny(), dealt()), 1e-12)
    w, lr = tiny(), 0.05
    for x, y in dealt():
        w.zero_grad()
        F.cross_entropy(w(x).logits, y).backward()
        with torch.no_grad():
            for p in w.parameters():
                p.sub_(lr * p.grad)  # type: ignore[operator]
    algorithm = accord.fedavg() + accord.sgd(lr=lr, momentum=0.0)
    close(accord.local_round(algorithm, tiny(), dealt()).w, flat(weights(w)), 1e-12)


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
def test_what_has_no_gradient_moves_or_rests(skip: bool, nesterov: bool) -> None:
    """Torch leaves a parameter alone whose gradient is None, and lets decay and momentum go on where it is zero."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.head(self.a(x) if float(x[0, 0]) > 0 else x)
            return out if float(x[0, 1]) > 0 else out + self.head(self.b(x))

    torch.manual_seed(0)
    module = Twice().double()
    deal = [(torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 1, 0])) for _ in range(30)]
    assert len({(float(x[0, 0]) > 0, float(x[0, 1]) > 0) for x, _ in deal}) == 4
    algorithm = accord.fedavg() + accord.sgd(lr=0.1, momentum=0.9, decay=0.05, nesterov=nesterov, skip=skip)
    reply = accord.local_round(algorithm, module, deal)
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.05, nesterov=nesterov)
    for p in module.parameters():
        p.grad = torch.zeros_like(p)
    for x, y in deal:
        optimiser.zero_grad(set_to_none=skip)
        F.cross_entropy(module(x), y).backward()
        optimiser.step()
    close(reply.w, flat(weights(module)), 1e-12)


def test_server_steps_of_a_row_of_numbers() -> None:
    """Adagrad, damped and Nesterov momentum, FedNova's own, and a learning rate, on three rounds of given mean updates."""
    given: Sequence[float] = (1.0, -0.5, 0.25)

    def walk(text: str) -> list[float]:
        w, state, seen = torch.zeros(1, dtype=torch.float64), None, []
        for d in given:
            up = {accord.normalise(): {"a": torch.tensor([2.0, 2.0], dtype=torch.float64)}}
            w, state = accord.server_step(accord.read(text), w, [accord.Reply(w + d, up=up)], state=state)
            seen.append(float(w))
        return seen

    def steps(step: Callable[[float, dict[str, float]], float]) -> list[float]:
        w, memory, seen = 0.0, {"v": 0.0, "m": 0.0}, []
        for d in given:
            w += step(d, memory)
            seen.append(w)
        return seen

    def heavy(d: float, s: dict[str, float]) -> float:
        s["v"] = 0.7 * s["v"] + d
        return s["v"]

    def damped(d: float, s: dict[str, float]) -> float:
        s["v"] = 0.7 * s["v"] + 0.3 * d
        return s["v"]

    def nesterov(d: float, s: dict[str, float]) -> float:
        s["v"] = 0.7 * s["v"] + d
        return d + 0.7 * s["v"]

    def adagrad(d: float, s: dict[str, float]) -> float:
        s["m"], s["v"] = 0.9 * s["m"] + 0.1 * d, s["v"] + d * d
        return 0.1 * s["m"] / (s["v"] ** 0.5 + 0.001)

    def adam_of_fl_bench(d: float, s: dict[str, float]) -> float:
        s["m"], s["v"] = 0.9 * s["m"] + 0.1 * d, 0.999 * s["v"] + 0.001 * d * d
        return 0.1 * s["m"] / (s["v"] ** 0.5 + 0.001)

    assert walk("fedavgm(0.7)") == pytest.approx(steps(heavy), rel=1e-12)
    assert walk("fednova + inertia(beta=0.7)") == pytest.approx(steps(heavy), rel=1e-12)
    assert walk("fedavgm(0.7, damped)") == pytest.approx(steps(damped), rel=1e-12)
    assert walk("fedavgm(0.7, nesterov)") == pytest.approx(steps(nesterov), rel=1e-12)
    assert walk("fedadagrad(beta1=0.9)") == pytest.approx(steps(adagrad), rel=1e-12)
    assert walk("fedadam(beta2=0.999)") == pytest.approx(steps(adam_of_fl_bench), rel=1e-12)
    assert walk("fedadam(beta2=0.999)")[0] == pytest.approx(0.3065, abs=5e-5)
    assert walk("fedavg + inertia(beta=0, lr=0.5)") == pytest.approx([0.5, 0.25, 0.375], rel=1e-12)
