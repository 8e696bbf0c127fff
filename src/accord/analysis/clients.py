"""How alike the loss is curved for different clients: H_N and H_D, as the paper prints them and as its program computes them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Annotated, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from accord.analysis.curvature import operator, signs
from accord.analysis.piece import Analysis, Progress, Values, quiet
from accord.analysis.subject import Subject
from accord.check import Count, Range, Whole
from accord.recipe import named

Form: TypeAlias = Literal["paper", "code"]


@dataclass(frozen=True)
class Diagonal:
    """What is known of a Hessian's diagonal d: an unbiased estimate of it, and one of its squared norm.

    Of m probes x_p = v_p * H v_p the estimate is their mean, and that of ||d||^2 is sum over p != q of <x_p, x_q> / (m (m - 1)), since the
    squared norm of a mean is too large by the mean's variance. Where there are as many probes as
    weights the diagonal is exact instead.
    """

    mean: Tensor
    square: float
    tensors: Tensor  # the trace of each tensor's block

    @classmethod
    def exact(cls, d: Tensor, sizes: Sequence[int]) -> Diagonal:
        """A diagonal that is known.

        >>> Diagonal.exact(torch.tensor([3.0, 4.0, 1.0]), [2, 1]).tensors.tolist()
        [7.0, 1.0]
        """
        d = d.double()
        return cls(d, float(d @ d), torch.stack([each.sum() for each in torch.split(d, list(sizes))]))


def hessian_diagonal(
    module: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    probes: int = 20,
    seed: int = 0,
    client: int = 0,
    progress: Progress = quiet,
) -> Diagonal:
    """The diagonal of the Hessian of the mean cross-entropy, by random signs; `client` gives each model probes of its own.

    >>> net, x, y = nn.Linear(2, 2, bias=False), torch.eye(2), torch.tensor([0, 1])
    >>> _ = nn.init.zeros_(net.weight)
    >>> hessian_diagonal(net, [(x, y)], probes=4).mean.tolist()
    [0.125, 0.125, 0.125, 0.125]
    """
    if probes < 2:
        raise ValueError(f"probes is {probes}; how long a diagonal is takes at least two to say")
    found, like = operator(module, batches), next(module.parameters())
    size = found.shape[1]
    sizes = [p.numel() for p in module.parameters() if p.requires_grad]
    exact, total, squares = probes >= size, torch.zeros(size, dtype=torch.float64), 0.0
    count = size if exact else probes
    for k in range(count):
        progress(f"Hessian of client {client}", k, count)
        v = torch.zeros(size) if exact else signs(size, seed + 7919 * client, k)
        if exact:
            v[k] = 1
        x = (v.to(like) * (found @ v.to(like))).double()
        total, squares = total + x, squares + float(x @ x)
    if exact:
        return Diagonal.exact(total, sizes)
    square = (float(total @ total) - squares) / (probes * (probes - 1))
    mean = total / probes
    return Diagonal(mean, square, torch.stack([each.sum() for each in torch.split(mean, sizes)]))


def hessian_match(diagonals: Sequence[Diagonal], form: Form = "code") -> Values:
    """H_N and H_D between clients: lower is more alike in norm, higher more alike in direction. FedAlign: Mendieta et al., 2022.

    `paper`, equations 3 and 4, with d the Hessian's diagonal: H_N = mean over pairs of (||d_k||^2 - ||d_j||^2)^2 and H_D = mean over
    pairs of <d_k, d_j> / (||d_k||^2 ||d_j||^2); `cosine` is H_D with plain norms, "essentially the cosine similarity".
    `code`, as in its program, with d the traces of the blocks of the model's tensors: H_N = mean over all k, j, k = j too, of
    (||d_k|| - ||d_j||)^2, H_D the mean of the cosines over all k, j.

    >>> one, two = (Diagonal.exact(torch.tensor(d), [1, 1]) for d in ([1.0, 0.0], [0.0, 2.0]))
    >>> hessian_match([one, two], "paper")["H_N"], hessian_match([one, two])["H_N"], hessian_match([one, two])["H_D"]
    (9.0, 0.5, 0.5)
    """
    if len(diagonals) < 2:
        raise ValueError(f"H_N and H_D compare clients, and there is {len(diagonals)}: give at least two")
    vectors = [d.mean if form == "paper" else d.tensors for d in diagonals]
    squares = [max(d.square, 0.0) for d in diagonals] if form == "paper" else [float(v @ v) for v in vectors]
    norms, every = [math.sqrt(a) for a in squares], range(len(diagonals))
    dots = [[float(a @ b) for b in vectors] for a in vectors]
    cosine = [[1.0 if k == j else _share(dots[k][j], norms[k] * norms[j]) for j in every] for k in every]
    sizes = squares if form == "paper" else norms
    gaps = [[(a - b) ** 2 for b in sizes] for a in sizes]
    told: Values = {"norms": norms, "gaps": gaps, "directions": cosine}
    if form == "code":
        return {"H_N": _mean([each for row in gaps for each in row]), "H_D": _mean([each for row in cosine for each in row]), **told}
    pairs = list(combinations(every, 2))
    aligned = [_share(dots[k][j], squares[k] * squares[j]) for k, j in pairs]
    return {"H_N": _mean([gaps[k][j] for k, j in pairs]), "H_D": _mean(aligned), "cosine": _mean([cosine[k][j] for k, j in pairs]), **told}


def _share(a: float, b: float) -> float | None:
    return a / b if b > 0 else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if known else None


@named
class Clients(Analysis):
    """H_N and H_D between the Hessians of clients' models after one more local round (FedAlign, Tables 1 and 9).

    `on="global"`: all models on the same training samples of everyone, as in FedAlign's program; `"local"`: each on its own client's.
    `H_N` and `H_D` are the program's form, `paper` holds the equations'; a Hessian's diagonal is estimated by `probes`.
    """

    clients: Count = 8
    samples: Count = 320
    probes: Annotated[int, Range(2)] = 10
    on: Literal["global", "local"] = "global"
    batch: Count = 64
    seed: Whole = 0

    def of(self, subject: Subject, progress: Progress) -> Values:
        whom = subject.clients(self.clients)
        shared = subject.batches(self.samples, self.batch)
        found: list[Diagonal] = []
        for client, (w, b) in zip(whom, subject.locals(whom, progress), strict=True):
            scratch = subject.scratch("clients", f"client{client}", *self.settings())
            if "tensors" not in scratch.numbers:
                batches = shared if self.on == "global" else subject.batches(self.samples, self.batch, client=client)
                made = hessian_diagonal(subject.at(w, b), batches, probes=self.probes, seed=self.seed, client=client, progress=progress)
                scratch.add(made.mean)
                scratch.numbers |= {"square": made.square, "tensors": made.tensors.tolist()}
                scratch.save(now=True)
            kept = scratch.numbers
            found.append(Diagonal(scratch.vector(0), kept["square"], torch.tensor(kept["tensors"], dtype=torch.float64)))
        code = hessian_match(found, "code")
        return {"clients": whom, "H_N": code["H_N"], "H_D": code["H_D"], "code": code, "paper": hessian_match(found, "paper")}

    def settings(self) -> tuple[Any, ...]:
        """What a client's part of the answer depends on."""
        return self.samples, self.probes, self.on, self.batch, self.seed
