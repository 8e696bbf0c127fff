"""Textbook loops, one parameter at a time: dictionaries of tensors, autograd, and nothing from the library under test."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

Weights = dict[str, Tensor]
Batches = Sequence[tuple[Tensor, Tensor]]


@dataclass
class Setting:
    """The constants of the local optimiser."""

    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    decay: float = 0.0
    lr_decay: float = 1.0


@dataclass
class Answer:
    """What a client sends back."""

    w: Weights
    steps: int


def logits(model: nn.Module, w: Weights, x: Tensor) -> Tensor:
    out = functional_call(model, w, (x,))
    return out if isinstance(out, Tensor) else out.logits


def gradient(loss: Callable[[Weights], Tensor], w: Weights) -> Weights:
    """The gradient of a loss with respect to every parameter."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in w.items()}
    found = torch.autograd.grad(loss(leaves), list(leaves.values()), allow_unused=True)
    return {name: torch.zeros_like(w[name]) if g is None else g for name, g in zip(leaves, found, strict=True)}


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[Weights], Tensor]:
    return lambda w: F.cross_entropy(logits(model, w, x), y)


def divergence(model: nn.Module, w0: Weights, x: Tensor, tau: float) -> Callable[[Weights], Tensor]:
    """KL(softmax(z0 / tau) || softmax(z / tau)), the mean over the batch, written out."""
    with torch.no_grad():
        teacher = torch.softmax(logits(model, w0, x) / tau, dim=1)

    def loss(w: Weights) -> Tensor:
        student = torch.log_softmax(logits(model, w, x) / tau, dim=1)
        return (teacher * (teacher.log() - student)).sum() / len(x)

    return loss


def norm(g: Weights, names: Sequence[str]) -> float:
    return math.sqrt(sum(float((g[name] ** 2).sum()) for name in names))


# --- the three ways to turn a batch into a gradient ------------------------------------------------------------------------------------


def plain(model: nn.Module, w: Weights, w0: Weights, x: Tensor, y: Tensor) -> Weights:
    return gradient(cross_entropy(model, x, y), w)


def sam(rho: float, adaptive: bool = False) -> Callable[..., Weights]:
    """SAM and ASAM, over all parameters."""

    def compute(model: nn.Module, w: Weights, w0: Weights, x: Tensor, y: Tensor) -> Weights:
        g = gradient(cross_entropy(model, x, y), w)
        scale = {name: w[name].abs() if adaptive else torch.ones_like(w[name]) for name in w}
        length = norm({name: scale[name] * g[name] for name in w}, list(w)) + 1e-12
        moved = {name: w[name] + rho * scale[name] ** 2 * g[name] / length for name in w}
        return gradient(cross_entropy(model, x, y), moved)

    return compute


def sol(rho: float, tau: float, on: str, head: str, scale: str) -> Callable[..., Weights]:
    """FedSOL: the perturbation along the gradient of the distillation loss. `scale` is rows, layer or off."""

    def compute(model: nn.Module, w: Weights, w0: Weights, x: Tensor, y: Tensor) -> Weights:
        chosen = [name for name in w if on == "all" or (name.split(".")[0] == head) == (on == "head")]
        p = gradient(divergence(model, w0, x, tau), w)
        length = norm(p, chosen) + 1e-12
        moved = dict(w)
        for name in chosen:
            weight = torch.ones_like(w[name])
            drift = (w[name] - w0[name]).abs()
            if scale == "rows":
                weight = F.normalize(drift, p=2, dim=0, eps=1e-12)
            elif scale == "layer":
                weight = drift / max(float((drift**2).sum().sqrt()), 1e-12)
            moved[name] = w[name] + rho * weight * p[name] / length
        return gradient(cross_entropy(model, x, y), moved)

    return compute


def distilled(beta: float, tau: float) -> Callable[..., Weights]:
    """Cross entropy plus beta times the divergence from the global model's answers."""

    def compute(model: nn.Module, w: Weights, w0: Weights, x: Tensor, y: Tensor) -> Weights:
        task, close = cross_entropy(model, x, y), divergence(model, w0, x, tau)
        return gradient(lambda at: task(at) + beta * close(at), w)

    return compute


def by_vector(rho: float, direction: Weights) -> Callable[..., Weights]:
    """The perturbation along a fixed vector, as FedSOL by SCAFFOLD's control variates."""

    def compute(model: nn.Module, w: Weights, w0: Weights, x: Tensor, y: Tensor) -> Weights:
        length = norm(direction, list(w)) + 1e-12
        return gradient(cross_entropy(model, x, y), {name: w[name] + rho * direction[name] / length for name in w})

    return compute


# --- what may be done to a gradient ----------------------------------------------------------------------------------------------------


def constrained(g: Weights, w0: Weights, order: str = "sequential") -> Weights:
    """FedCONST's two projections, one output row at a time."""
    done = {}
    for name, tensor in g.items():
        if tensor.dim() < 2:
            done[name] = tensor
            continue
        rows = []
        for row, base in zip(tensor.flatten(1), w0[name].flatten(1), strict=True):
            row = row - row.mean()
            direction = base - base.mean() if order == "joint" else base
            if float(direction.norm()) > 1e-12:
                unit = direction / direction.norm()
                row = row - unit * float((unit * row).sum())
            rows.append(row)
        done[name] = torch.stack(rows).reshape(tensor.shape)
    return done


# --- one client's round ----------------------------------------------------------------------------------------------------------------


def client(
    model: nn.Module,
    w0: Weights,
    batches: Batches,
    setting: Setting,
    lr: float,
    *,
    compute: Callable[..., Weights] = plain,
    mu: float = 0.0,
    correction: Weights | None = None,
    const: str | None = None,
    inside: bool = True,
    start: Weights | None = None,
) -> Answer:
    """Local training: gradient, proximal term, control variate, weight decay, constraint, momentum, step, in that order."""
    w = {name: tensor.clone() for name, tensor in (start or w0).items()}
    buffer: Weights = {}
    for x, y in batches:
        g = compute(model, w, w0, x, y)
        for name in w:
            g[name] = g[name] + mu * (w[name] - w0[name])
            if correction is not None:
                g[name] = g[name] + correction[name]
            if const is None or inside:
                g[name] = g[name] + setting.decay * w[name]
        if const is not None:
            g = constrained(g, w0, const)
        for name in w:
            d = g[name] if const is None or inside else g[name] + setting.decay * w[name]
            buffer[name] = setting.momentum * buffer[name] + d if name in buffer else d.clone()
            u = d + setting.momentum * buffer[name] if setting.nesterov else buffer[name]
            w[name] = w[name] - lr * u
    return Answer(w, len(batches))


def effective_steps(steps: int, momentum: float) -> float:
    """How far so many equal gradients carry the weights, by running the recursion."""
    v = total = 0.0
    for _ in range(steps):
        v = momentum * v + 1.0
        total += v
    return total


def weighted_mean(answers: Sequence[Weights], sizes: Sequence[float]) -> Weights:
    total = sum(sizes)
    return {name: sum(n / total * a[name] for n, a in zip(sizes, answers, strict=True)) for name in answers[0]}  # type: ignore[misc]


# --- several rounds --------------------------------------------------------------------------------------------------------------------


def fedavg(
    model: nn.Module,
    w: Weights,
    rounds: Sequence[Sequence[int]],
    batches: Callable[[int, int], Batches],
    sizes: Mapping[int, int],
    setting: Setting,
    *,
    uniform: bool = False,
    **local: object,
) -> Weights:
    """FedAvg and everything that differs from it on the client only; `rounds` lists the participants of each round."""
    for r, participants in enumerate(rounds):
        lr = setting.lr * setting.lr_decay**r
        answers = [client(model, w, batches(r, k), setting, lr, **local).w for k in participants]  # type: ignore[arg-type]
        w = weighted_mean(answers, [1.0 if uniform else float(sizes[k]) for k in participants])
    return w


def scaffold(
    model: nn.Module,
    w: Weights,
    rounds: Sequence[Sequence[int]],
    batches: Callable[[int, int], Batches],
    sizes: Mapping[int, int],
    setting: Setting,
    *,
    divisor: str = "momentum",
    perturb_by_control: float | None = None,
    **local: object,
) -> tuple[Weights, Weights, dict[int, Weights]]:
    """SCAFFOLD, option II; with `perturb_by_control` the variates only say where the gradient is taken. Returns w, c and every c_i."""
    c = {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    own = {k: {name: torch.zeros_like(tensor) for name, tensor in w.items()} for k in sizes}
    for r, participants in enumerate(rounds):
        lr = setting.lr * setting.lr_decay**r
        answers, changes = [], []
        for k in participants:
            difference = {name: c[name] - own[k][name] for name in w}
            how: dict[str, object] = dict(local)
            if perturb_by_control is None:
                how["correction"] = difference
            else:
                how["compute"] = by_vector(perturb_by_control, difference)
            answer = client(model, w, batches(r, k), setting, lr, **how)  # type: ignore[arg-type]
            steps = effective_steps(answer.steps, setting.momentum) if divisor == "momentum" else float(answer.steps)
            new = {name: own[k][name] - c[name] + (w[name] - answer.w[name]) / (steps * lr) for name in w}
            changes.append({name: new[name] - own[k][name] for name in w})
            own[k] = new
            answers.append(answer.w)
        w = weighted_mean(answers, [float(sizes[k]) for k in participants])
        c = {name: c[name] + sum(change[name] for change in changes) / len(sizes) for name in c}
    return w, c, own
