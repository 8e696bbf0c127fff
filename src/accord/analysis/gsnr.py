"""Signal and noise of gradients: GSNR of every parameter from the gradients of single samples, and the one-step generalisation ratio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from accord.analysis.landscape import mean_loss
from accord.analysis.piece import Analysis, Progress, Values, quiet
from accord.analysis.recurrent import recurrent
from accord.analysis.subject import Subject
from accord.check import Count, Whole
from accord.data.pool import Batch
from accord.flat import Flat, logits
from accord.recipe import named
from accord.seeds import stream

Batches: TypeAlias = Sequence[tuple[Tensor, Tensor]]
_EPS = 1e-12  # a parameter whose gradient varies no more than this has no ratio
_MEMORY = 256 << 20  # bytes of single samples' gradients at a time


@dataclass(frozen=True)
class Moments:
    """The mean g and the biased variance rho^2 over n samples of each parameter's gradient, flat and in double precision."""

    mean: Tensor
    variance: Tensor
    n: int

    @property
    def known(self) -> Tensor:
        """Which parameters have a ratio: those whose gradient varies."""
        return self.variance > _EPS

    @property
    def gsnr(self) -> Tensor:
        """r_j = g_j^2 / rho_j^2, 0 where the gradient does not vary.

        >>> Moments(torch.tensor([1.0, 2.0]), torch.tensor([0.5, 0.0]), 4).gsnr.tolist()
        [2.0, 0.0]
        """
        return torch.where(self.known, self.mean.square() / self.variance.clamp(min=_EPS), 0.0)

    def osgr(self, weights: Literal["plain", "unbiased"] = "plain") -> float:
        """R = 1 - (1/n) sum_j W_j / (r_j + 1/n), W_j in proportion to E[g_j^2] (Liu et al. 2020; FedCONST, equation 2).

        The expectation is over data sets of n samples: `unbiased` takes g_j^2 + rho_j^2 / n for it, `plain` the square of the mean g_j^2.
        """
        power = self.mean.square() + (self.variance / self.n if weights == "unbiased" else 0.0)
        power = torch.where(self.known, power, 0.0)
        total = float(power.sum())
        return float(1 - (power / (self.gsnr + 1 / self.n)).sum() / (total * self.n)) if total else float("nan")


def gradient_moments(module: nn.Module, batches: Batches, progress: Progress = quiet, label: str = "gradients") -> Moments:
    """Mean and variance of the gradients of single samples' cross-entropy, the model in evaluation mode.

    The gradients of a few samples at a time are held, and added up by Chan's formula.

    >>> net = nn.Linear(2, 2, bias=False)
    >>> found = gradient_moments(net, [(torch.eye(2), torch.tensor([0, 1]))])
    >>> found.n, found.gsnr.shape
    (2, torch.Size([4]))
    """
    _refuse_batch_statistics(module)
    flat = Flat(module.eval())
    weights = {name: p.detach() for name, p in flat.parameters.items()}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = logits(functional_call(module, weights, (x[None],)))
        return F.cross_entropy(out.flatten(0, -2), y[None].flatten())

    def one_by_one(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
        rows = [grad(loss)(weights, x[k], y[k]) for k in range(len(x))]
        return {name: torch.stack([row[name] for row in rows]) for name in weights}

    each = one_by_one if recurrent(module) else vmap(grad(loss), in_dims=(None, 0, 0), randomness="same")
    mean, spread, n = torch.zeros(flat.layout.size, dtype=torch.float64), torch.zeros(flat.layout.size, dtype=torch.float64), 0
    room = max(1, min(64, _MEMORY // max(flat.w.nbytes, 1)))
    pieces = [(x[k : k + room], y[k : k + room]) for x, y in batches for k in range(0, len(x), room)]
    for done, (x, y) in enumerate(pieces):
        progress(label, done, len(pieces))
        found = each(weights, x, y)
        rows = torch.cat([found[name].reshape(len(x), -1) for name in weights], dim=1).cpu()
        variance, here = torch.var_mean(rows.double() if rows.numel() < 1 << 24 else rows, 0, correction=0)
        m, apart = len(x), here.double() - mean
        spread += variance.double() * m + apart.square() * (n * m / (n + m))
        mean += apart * (m / (n + m))
        n += m
    progress(label, len(pieces), len(pieces))
    if not n:
        raise ValueError("there are no samples to take gradients of: give at least one batch")
    return Moments(mean, spread / n, n)


def _refuse_batch_statistics(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is None:
            raise ValueError(
                f"{name} of {type(module).__name__} normalises by the batch's statistics, so that a single sample has no gradient of its "
                "own: use norm=batch, group or none"
            )


def one_step(module: nn.Module, train: Batches, test: Batches, lr: float) -> tuple[float, float]:
    """How far one gradient step on `train` lowers the mean loss on `train` and on `test`; the module ends as it began.

    >>> batch = (torch.eye(3), torch.tensor([0, 1, 0]))
    >>> here, there = one_step(nn.Linear(3, 2), [batch], [batch], 0.01)
    >>> here == there > 0
    True
    """
    flat = Flat(module.eval())
    w, count = flat.w.clone(), sum(y.numel() for _, y in train)
    before = mean_loss(module, train), mean_loss(module, test)
    flat.g.zero_()
    for x, y in train:
        F.cross_entropy(logits(module(x)).flatten(0, -2), y.flatten(), reduction="sum").div(count).backward()  # type: ignore[no-untyped-call]
    flat.w.add_(flat.g, alpha=-lr)
    after = mean_loss(module, train), mean_loss(module, test)
    flat.load(w)
    return before[0] - after[0], before[1] - after[1]


def by_update(update: Tensor, w: Tensor, gsnr: Tensor, share: float = 0.1) -> dict[str, dict[str, float]]:
    """Mean |w| and mean GSNR of the parameters that moved most and of those that moved least (FedCONST Figure 5).

    >>> by_update(torch.tensor([3.0, 0.1, -5.0]), torch.tensor([1.0, 2.0, -4.0]), torch.tensor([0.0, 1.0, 2.0]), 0.34)["top"]
    {'weight': 4.0, 'gsnr': 2.0}
    """
    count = max(1, int(share * len(update)))
    order = update.abs().argsort(stable=True)
    groups = {"top": order[-count:], "bottom": order[:count]}
    return {
        name: {"weight": float(w[places].abs().double().mean()), "gsnr": float(gsnr[places].double().mean())}
        for name, places in groups.items()
    }


def against_size(w: Tensor, gsnr: Tensor, bins: int = 20, points: int = 500, seed: int = 0) -> Values:
    """GSNR against |w|: its mean in bins that hold equally many parameters, the two ranks' correlation (Spearman's), and some points.

    >>> against_size(torch.tensor([1.0, -2.0, 3.0, 4.0]), torch.tensor([1.0, 2.0, 3.0, 4.0]), bins=2)["gsnr"]
    [1.5, 3.5]
    """
    size, gsnr = w.abs().double(), gsnr.double()
    order = size.argsort(stable=True)
    parts = [part for part in order.tensor_split(bins) if len(part)]
    drawn = torch.randperm(len(w), generator=stream(seed, "points"))[:points]
    ranks = torch.stack([_ranks(size), _ranks(gsnr)])
    correlation = float(torch.corrcoef(ranks)[0, 1]) if len(w) > 1 else float("nan")
    return {
        "weight": [float(size[part].mean()) for part in parts],
        "gsnr": [float(gsnr[part].mean()) for part in parts],
        "rank_correlation": correlation if correlation == correlation else None,
        "points": [[float(size[k]), float(gsnr[k])] for k in drawn.tolist()],
    }


def _ranks(values: Tensor) -> Tensor:
    """The ranks, equal values sharing the mean of theirs."""
    _, group, sizes = torch.unique(values, return_inverse=True, return_counts=True)
    last: Tensor = sizes.cumsum(0).double()
    middle: Tensor = last - (sizes.double() - 1) / 2
    return middle.index_select(0, group)


def means(rows: Sequence[dict[str, Any]]) -> Values:
    """The mean over clients of every number that they have.

    >>> means([{"client": 0, "first": 1.0, "top": {"gsnr": 2.0}}, {"client": 1, "first": 3.0, "top": {"gsnr": 4.0}}])
    {'first': 2.0, 'top': {'gsnr': 3.0}}
    """
    found: Values = {}
    for key, value in rows[0].items():
        if isinstance(value, dict):
            found[key] = means([row[key] for row in rows])
        elif key != "client":
            found[key] = sum(row[key] for row in rows) / len(rows)
    return found


@named
class Gsnr(Analysis):
    """GSNR of clients at the first and the last step of one more local round, what moves most, and OSGR (FedCONST Figures 5, 6 and 14).

    `clients` holds for each client the sum over parameters of r_j = g_j^2 / rho_j^2 at the global model (`first`) and at its own model
    after the round (`last`), on its own `samples`, and the tenth of the parameters that moved most and least. `osgr` compares equation 2,
    from everyone's samples, with equation 1 itself: over `draws` of n samples D of training data and D' of test data, the mean drop of
    the loss on D' after a gradient step on D over that on D (the paper's text swaps the two names). No program of it is public.
    """

    clients: Count = 8
    samples: Count = 256
    bins: Count = 20
    points: Count = 500
    draws: Count = 5
    batch: Count = 64
    seed: Whole = 0

    def of(self, subject: Subject, progress: Progress) -> Values:
        whom, w, rows, total = subject.clients(self.clients), Flat(subject.module).w.clone(), [], torch.zeros(0)
        for client, (local, b) in zip(whom, subject.locals(whom, progress), strict=True):
            batches = subject.batches(self.samples, self.batch, client=client)
            first = gradient_moments(subject.module, batches, progress, f"client {client}").gsnr
            last = gradient_moments(subject.at(local, b), batches, progress, f"client {client}").gsnr
            groups = by_update(local - w, w, first)
            rows.append({"client": client, "first": float(first.sum()), "last": float(last.sum()), **groups})
            total = first / len(whom) if not len(total) else total + first / len(whom)
        return {
            **means(rows),
            "clients": rows,
            "against_size": against_size(w, total, self.bins, self.points, self.seed),
            "osgr": self.osgr(subject, progress),
        }

    def osgr(self, subject: Subject, progress: Progress) -> Values:
        """The one-step generalisation ratio by its formula and by its definition."""
        lr = subject.algorithm.rule.lr
        pooled = gradient_moments(subject.module, subject.batches(self.samples, self.batch), progress, "everyone's gradients")
        found = {"formula": pooled.osgr(), "formula_unbiased": pooled.osgr("unbiased"), "n": pooled.n, "lr": lr}
        if not len(subject.federation.test):
            return found | {"direct": None}
        draw = partial(self.drawn, subject)
        drops = [one_step(subject.module, draw("train", k), draw("test", k), lr) for k in range(self.draws)]
        on_train, on_test = (sum(drop[side] for drop in drops) for side in (0, 1))
        return found | {"direct": on_test / on_train if on_train else None}

    def drawn(self, subject: Subject, on: Literal["train", "test"], k: int) -> list[Batch]:
        """A data set of n samples, drawn anew for each k."""
        data: Any = subject.federation
        pool, index = (data.train, data.clients.order) if on == "train" else (data.test, torch.arange(len(data.test)))
        chosen = torch.randint(len(index), (self.samples,), generator=stream(self.seed, "osgr", on, k))
        return list(pool.batches(index[chosen], self.batch))
