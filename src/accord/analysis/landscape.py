"""The loss around a model: over the plane of two eigenvectors, along a random direction, and along a filter-normalised one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from accord.analysis.curvature import ritz_values
from accord.analysis.piece import Analysis, Progress, Values, quiet
from accord.analysis.scratch import Scratch
from accord.analysis.subject import On, Subject
from accord.check import Count, Positive, Whole
from accord.flat import Flat, Layout, logits
from accord.recipe import named
from accord.seeds import stream

Batches = Sequence[tuple[Tensor, Tensor]]


def mean_loss(module: nn.Module, batches: Batches) -> float:
    """The mean cross-entropy over some batches, as the module stands.

    >>> round(mean_loss(nn.Linear(3, 2), [(torch.zeros(2, 3), torch.tensor([0, 1]))]), 1) > 0
    True
    """
    total, count = 0.0, 0
    with torch.no_grad():
        for x, y in batches:
            total += float(F.cross_entropy(logits(module(x)).flatten(0, -2), y.flatten(), reduction="sum").double())
            count += y.numel()
    return total / max(count, 1)


def losses(
    module: nn.Module,
    batches: Batches,
    directions: Sequence[Tensor],
    points: Sequence[Sequence[float]],
    *,
    scratch: Scratch | None = None,
    label: str = "landscape",
    progress: Progress = quiet,
) -> list[float | None]:
    """The mean cross-entropy at w + sum_i p_i d_i for each point p; the module ends as it began. None where it is not finite.

    >>> net = nn.Linear(2, 2)
    >>> found = losses(net, [(torch.ones(1, 2), torch.tensor([0]))], [torch.zeros(6)], [[0.0], [1.0]])
    >>> found[0] == found[1] == mean_loss(net, [(torch.ones(1, 2), torch.tensor([0]))])
    True
    """
    scratch = Scratch() if scratch is None else scratch
    done: list[float | None] = scratch.numbers.setdefault(label, [])
    flat = Flat(module.eval())
    w = flat.w.clone()
    for k in range(len(done), len(points)):
        progress(label, k, len(points))
        flat.load(w)
        for share, direction in zip(points[k], directions, strict=True):
            flat.w.add_(direction, alpha=share)
        found = mean_loss(module, batches)
        done.append(found if np.isfinite(found) else None)
        scratch.save()
    progress(label, len(points), len(points))
    flat.load(w)
    return list(done)


def random_direction(w: Tensor, layout: Layout, seed: int = 0, *, by: Literal["all", "tensor", "filter"] = "all") -> Tensor:
    """A direction of normal numbers as long as the weights: all together, each tensor, or each filter (Li et al. 2018).

    Filters are the rows of weights with two dimensions or more; what has fewer does not move along a filter-normalised direction.

    >>> layout = Layout.of({"a": torch.zeros(2, 2), "b": torch.zeros(3)})
    >>> w = torch.tensor([3.0, 4.0, 0.0, 5.0, 1.0, 1.0, 1.0])
    >>> d = random_direction(w, layout, by="filter")
    >>> d[:2].norm().round(decimals=4), d[2:4].norm().round(decimals=4), d[4:]
    (tensor(5.), tensor(5.), tensor([0., 0., 0.]))
    """
    d = torch.randn(w.numel(), generator=stream(seed, "direction"), dtype=torch.float64).to(w)
    if by == "all":
        return d.mul_(w.norm() / d.norm())
    for part, own in zip(layout.views(d), layout.views(w), strict=True):
        if by == "tensor":
            part.mul_(own.norm() / part.norm())
        elif part.dim() < 2:
            part.zero_()
        else:
            rows, like = part.view(len(part), -1), own.reshape(len(own), -1)
            rows.mul_(like.norm(dim=1, keepdim=True) / (rows.norm(dim=1, keepdim=True) + 1e-10))
    return d


@named
class Landscape(Analysis):
    """The mean cross-entropy around the model: a plane and two lines.

    `plane`: w + a v1 + b v2, a and b in [-reach, reach], v1 and v2 the eigenvectors of the two largest eigenvalues, of norm 1
    (FedAlign Figure 1 and FedSOL Figure 8; FedAlign's program has 41 points a side). `random`: w + a e, a in [-1, 1], e a normal
    direction with ||e|| = ||w|| (FedCONST Figure 10; its program scales each tensor by itself, `scaled="tensor"`). `filter`: the same
    with each filter of e as long as that of w (Li et al. 2018). FedCONST's figure shows |a| from 0 to 1.
    """

    samples: Count = 256
    points: Count = 15
    line: Count = 41
    reach: Positive = 1.0
    scaled: Literal["all", "tensor"] = "all"
    steps: Count = 60
    tolerance: Positive = 1e-2
    on: On = "train"
    batch: Count = 64
    seed: Whole = 0

    def of(self, subject: Subject, progress: Progress) -> Values:
        module, batches = subject.module, subject.batches(self.samples, self.batch, on=self.on)
        about = (self.samples, self.batch, self.on, self.seed)
        space = subject.scratch("landscape", "lanczos", *about)
        ritz = ritz_values(
            module,
            batches,
            top=2,
            steps=self.steps,
            tolerance=self.tolerance,
            seed=self.seed,
            scratch=space,
            progress=progress,
        )
        places = ritz.largest(2)
        axes = [ritz.vector(int(place), space) for place in places]
        flat = Flat(module)
        side, line = np.linspace(-self.reach, self.reach, self.points), np.linspace(-1, 1, self.line)
        found = subject.scratch("landscape", "losses", *about, self.points, self.line, self.reach, self.scaled)

        def along(label: str, directions: list[Tensor], points: list[list[float]]) -> list[float | None]:
            return losses(module, batches, directions, points, scratch=found, label=label, progress=progress)

        plane = along("plane", axes, [[float(a), float(b)][: len(axes)] for a in side for b in side])
        random, filters = (random_direction(flat.w, flat.layout, self.seed, by=by) for by in (self.scaled, "filter"))
        return {
            "eigenvalues": ritz.values[places].tolist(),
            "loss": mean_loss(module, batches),
            "side": side.tolist(),
            "plane": [plane[k : k + self.points] for k in range(0, len(plane), self.points)],  # a row for each a
            "line": line.tolist(),
            "random": along("random direction", [random], [[float(a)] for a in line]),
            "filter": along("filter-normalised direction", [filters], [[float(a)] for a in line]),
        }
