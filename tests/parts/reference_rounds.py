"""Textbook loops of the methods with memory, one parameter at a time: nothing here comes from the library under test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from reference import Batches, Setting, Weights, cross_entropy, effective_steps, gradient, logits, weighted_mean

Deal = Callable[[int, int], Batches]
Extra = Callable[[Weights, Tensor, Tensor], Weights]  # w, x, y -> what is added to the gradient of the cross entropy


def zeros(w: Weights) -> Weights:
    return {name: torch.zeros_like(t) for name, t in w.items()}


def minus(a: Weights, b: Weights) -> Weights:
    return {name: a[name] - b[name] for name in a}


def train(model: nn.Module, w0: Weights, deal: Batches, setting: Setting, lr: float, extra: Extra | None = None) -> Weights:
    """SGD with momentum and weight decay, as printed in a textbook."""
    w, v = dict(w0), zeros(w0)
    for x, y in deal:
        g = gradient(cross_entropy(model, x, y), w)
        added = extra(w, x, y) if extra else zeros(w)
        for name in w:
            d = g[name] + added[name] + setting.decay * w[name]
            v[name] = setting.momentum * v[name] + d
            u = d + setting.momentum * v[name] if setting.nesterov else v[name]
            w[name] = w[name] - lr * u
    return w


def fednova(
    model: nn.Module, w: Weights, asked: Sequence[Sequence[int]], deal: Deal, sizes: Mapping[int, int], setting: Setting
) -> Weights:
    for r, participants in enumerate(asked):
        total = sum(sizes[k] for k in participants)
        reach, direction = 0.0, zeros(w)
        for k in participants:
            a = effective_steps(len(deal(r, k)), setting.momentum)
            moved = train(model, w, deal(r, k), setting, setting.lr * setting.lr_decay**r)
            reach += sizes[k] / total * a
            direction = {name: direction[name] + sizes[k] / total * (w[name] - moved[name]) / a for name in w}
        w = {name: w[name] - reach * direction[name] for name in w}
    return w


def feddyn(
    model: nn.Module,
    w: Weights,
    asked: Sequence[Sequence[int]],
    deal: Deal,
    sizes: Mapping[int, int],
    setting: Setting,
    *,
    alpha: float,
    uniform: bool = True,
    scaled: bool = False,
) -> Weights:
    """The loss gains -<h_k, w> + (alpha / 2) ||w - w0||^2 and is differentiated as it stands."""
    h, own = zeros(w), {k: zeros(w) for k in sizes}
    mean = sum(sizes.values()) / len(sizes)
    for r, participants in enumerate(asked):
        models, w0 = [], w
        for k in participants:
            alpha_k = alpha * mean / sizes[k] if scaled else alpha

            def bend(at: Weights, x: Tensor, y: Tensor, k: int = k, w0: Weights = w0, alpha_k: float = alpha_k) -> Weights:
                def term(u: Weights) -> Tensor:
                    return sum(  # type: ignore[return-value]
                        (-(own[k][name] * u[name]).sum() + alpha_k / 2 * ((u[name] - w0[name]) ** 2).sum() for name in u),
                        start=torch.zeros(()),
                    )

                return gradient(term, at)

            moved = train(model, w0, deal(r, k), setting, setting.lr * setting.lr_decay**r, bend)
            models.append(moved)
            own[k] = {name: own[k][name] - alpha_k * (moved[name] - w0[name]) for name in w0}
            h = {name: h[name] - alpha / len(sizes) * (moved[name] - w0[name]) for name in w0}
        middle = weighted_mean(models, [1.0 if uniform else float(sizes[k]) for k in participants])
        w = {name: middle[name] - h[name] / alpha for name in w}
    return w


def moon(
    model: nn.Module,
    w: Weights,
    asked: Sequence[Sequence[int]],
    deal: Deal,
    sizes: Mapping[int, int],
    setting: Setting,
    *,
    mu: float,
    tau: float,
) -> Weights:
    """A client without a previous model takes the global one, whose gradient is zero."""
    past: dict[int, Weights] = {}

    def features(u: Weights, x: Tensor) -> Tensor:
        return functional_call(model, u, (x,)).features

    for r, participants in enumerate(asked):
        models = []
        for k in participants:

            def pull(at: Weights, x: Tensor, y: Tensor, k: int = k, w0: Weights = w) -> Weights:
                z0, zp = features(w0, x).detach(), features(past[k], x).detach()

                def term(u: Weights) -> Tensor:
                    z, total = features(u, x), torch.zeros((), dtype=x.dtype)
                    for a, b, c in zip(z, z0, zp, strict=True):
                        near = torch.exp((a @ b) / (a.norm() * b.norm()).clamp(min=1e-16) / tau)
                        far = torch.exp((a @ c) / (a.norm() * c.norm()).clamp(min=1e-16) / tau)
                        total = total - torch.log(near / (near + far)) / len(z)
                    return mu * total

                return gradient(term, at)

            past_k = past.get(k)
            moved = train(model, w, deal(r, k), setting, setting.lr * setting.lr_decay**r, pull if past_k else None)
            past[k] = moved
            models.append(moved)
        w = weighted_mean(models, [float(sizes[k]) for k in participants])
    return w


def fedntd(
    model: nn.Module,
    w: Weights,
    asked: Sequence[Sequence[int]],
    deal: Deal,
    sizes: Mapping[int, int],
    setting: Setting,
    *,
    beta: float,
    tau: float,
) -> Weights:
    for r, participants in enumerate(asked):
        models = []
        for k in participants:

            def pull(at: Weights, x: Tensor, y: Tensor, w0: Weights = w) -> Weights:
                def term(u: Weights) -> Tensor:
                    total = torch.zeros((), dtype=x.dtype)
                    for a, b, label in zip(logits(model, w0, x).detach(), logits(model, u, x), y.tolist(), strict=True):
                        rest = [c for c in range(len(a)) if c != label]
                        p, q = torch.softmax(a[rest] / tau, 0), torch.softmax(b[rest] / tau, 0)
                        total = total + (p * (p.log() - q.log())).sum() / len(y)
                    return beta * tau**2 * total

                return gradient(term, at)

            models.append(train(model, w, deal(r, k), setting, setting.lr * setting.lr_decay**r, pull))
        w = weighted_mean(models, [float(sizes[k]) for k in participants])
    return w


def adabest(
    model: nn.Module,
    w: Weights,
    asked: Sequence[Sequence[int]],
    deal: Deal,
    sizes: Mapping[int, int],
    setting: Setting,
    *,
    mu: float,
    beta: float,
) -> Weights:
    own, last, seen, mean = {k: zeros(w) for k in sizes}, dict.fromkeys(sizes, -1), [], w
    for r, participants in enumerate(asked):
        models, typical = [], sum(seen) / len(seen) if seen else 0.0
        for k in participants:
            push = {name: -mu * typical / sizes[k] * t for name, t in own[k].items()}
            moved = train(model, w, deal(r, k), setting, setting.lr * setting.lr_decay**r, lambda at, x, y, push=push: push)
            own[k] = {name: own[k][name] / (r - last[k]) + w[name] - moved[name] for name in w}
            last[k] = r
            models.append(moved)
        seen += [sizes[k] for k in participants]
        middle = weighted_mean(models, [1.0] * len(models))
        w = {name: middle[name] - beta * (mean[name] - middle[name]) for name in w}
        mean = middle
    return w


def fedoptz(
    model: nn.Module,
    w: Weights,
    asked: Sequence[Sequence[int]],
    deal: Deal,
    whole: Mapping[int, tuple[Tensor, Tensor]],
    setting: Setting,
    *,
    alpha: float,
    plain: bool = False,
) -> Weights:
    """Equations 8, 24 and 29, or 15 and 23, with sums over clients written as sums."""

    def dot(a: Weights, b: Weights) -> float:
        return sum(float((a[name] * b[name]).sum()) for name in a)

    for r, participants in enumerate(asked):
        models = [train(model, w, deal(r, k), setting, setting.lr * setting.lr_decay**r) for k in participants]
        losses = [float(F.cross_entropy(logits(model, m, whole[k][0]), whole[k][1])) for m, k in zip(models, participants, strict=True)]
        d = [gradient(cross_entropy(model, *whole[k]), m) for m, k in zip(models, participants, strict=True)]
        c = alpha * min(loss / dot(g, g) ** 0.5 for loss, g in zip(losses, d, strict=True))
        m = [sum(dot(g, other) for other in d) for g in d]
        if plain:
            x = [c / sum(m) ** 0.5 for _ in d]
        else:
            length = sum(m_j**2 / dot(g, g) for m_j, g in zip(m, d, strict=True)) ** 0.5
            x = [c / length * m_i / dot(g, g) for m_i, g in zip(m, d, strict=True)]
        middle = weighted_mean(models, [1.0] * len(models))
        w = {name: middle[name] - sum(x_i * g[name] for x_i, g in zip(x, d, strict=True)) for name in w}
    return w
