"""The curvature of the loss at a model: the ends of the Hessian's spectrum, its trace, and its density."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from accord.analysis.lanczos import Ritz, lanczos
from accord.analysis.piece import Analysis, Progress, Values, quiet
from accord.analysis.scratch import Scratch
from accord.analysis.subject import On, Subject
from accord.check import Count, Positive, Whole
from accord.recipe import named
from accord.seeds import stream

Batches = Sequence[tuple[Tensor, Tensor]]
_LARGE = 1_000_000  # weights
_PARTS = 10  # of the data; a probe of the trace looks at one of them


def eigenvalues(
    module: nn.Module,
    batches: Batches,
    *,
    top: int = 5,
    steps: int = 100,
    tolerance: float = 1e-4,
    seed: int = 0,
    scratch: Scratch | None = None,
    progress: Progress = quiet,
) -> Values:
    """The largest eigenvalues of the Hessian of the mean cross-entropy, and the most negative one.

    Lanczos' method with full re-orthogonalisation, until the bound on the error of each of them is below `tolerance` of its size, or
    `steps` are done (`errors` says how sure they are). `lambda1`, `lambda5` are the largest and the `top`-th largest, `ratio` is
    lambda1 / lambda5, `convexity` |lambda_max / lambda_min| (FedCONST, Tables 2 and 3). Programs of papers order by magnitude (power
    iteration with deflation): `strongest` does, and `absolute_ratio` is |lambda1 / lambda5| in that order (FedSOL Figure 8, FedCONST
    Table 4). Only as many eigenvalues are told as the model has weights.

    >>> found = eigenvalues(nn.Linear(3, 2), [(torch.eye(3), torch.tensor([0, 1, 1]))], top=2)
    >>> len(found["eigenvalues"]), found["lambda1"] == found["eigenvalues"][0], found["converged"]
    (2, True, True)
    """
    scratch = Scratch() if scratch is None else scratch
    ritz = ritz_values(module, batches, top=top, steps=steps, tolerance=tolerance, seed=seed, scratch=scratch, progress=progress)
    return summary(ritz, top, tolerance) | {"steps": len(ritz.values)}


def ritz_values(
    module: nn.Module,
    batches: Batches,
    *,
    top: int,
    steps: int,
    tolerance: float,
    seed: int,
    scratch: Scratch,
    progress: Progress = quiet,
) -> Ritz:
    """Lanczos' method on the Hessian until both ends of its spectrum are known."""
    multiply, size, like = product(module, batches)
    start = torch.randn(size, generator=stream(seed, "lanczos"), dtype=torch.float64).to(like)

    def enough(ritz: Ritz) -> bool:
        return len(ritz.values) >= min(2 * top + 2, size) and bool(_settled(ritz, top, tolerance).all())

    return lanczos(multiply, start, steps, scratch, enough, lambda step: progress("eigenvalues", step, steps))


def product(module: nn.Module, batches: Batches) -> tuple[Callable[[Tensor], Tensor], int, Tensor]:
    """The product of the Hessian with a vector, the vector's length, and a tensor of the weights' type and device."""
    found = operator(module, batches)
    return (lambda v: found @ v), found.shape[1], next(module.parameters())


def operator(module: nn.Module, batches: Batches) -> Any:
    """The Hessian as an operator of curvlinops."""
    try:
        from accord.analysis.hessian import Hessian
    except ModuleNotFoundError as error:
        raise ValueError(f"curvature needs the package {error.name}, which is not here: pip install 'accord[analysis]'") from None
    if not batches:
        raise ValueError("there are no samples to take the loss over: give at least one batch")
    return Hessian(module, batches)


def _wanted(ritz: Ritz, top: int) -> list[int]:
    """The places of the Ritz values that are asked for."""
    return sorted({*ritz.largest(top).tolist(), *ritz.strongest(top).tolist(), 0})


def _settled(ritz: Ritz, top: int, tolerance: float) -> Any:
    """For each wanted Ritz value whether its error is small, by its own size or, where that is nothing, by the largest."""
    places = _wanted(ritz, top)
    floor = 1e-6 * np.abs(ritz.values).max()
    return ritz.errors[places] <= tolerance * np.maximum(np.abs(ritz.values[places]), floor)


def summary(ritz: Ritz, top: int, tolerance: float) -> Values:
    """What is said of the ends of a spectrum."""
    largest, strongest = ritz.largest(top), ritz.values[ritz.strongest(top)]
    values, smallest = ritz.values[largest], float(ritz.values[0])
    return {
        "eigenvalues": values.tolist(),
        "errors": ritz.errors[largest].tolist(),
        "strongest": strongest.tolist(),
        "smallest": smallest,
        "smallest_error": float(ritz.errors[0]),
        "lambda1": float(values[0]),
        "lambda5": float(values[-1]),
        "ratio": _over(float(values[0]), float(values[-1])),
        "absolute_ratio": _over(abs(float(strongest[0])), abs(float(strongest[-1]))),
        "convexity": _over(abs(float(values[0])), abs(smallest)),
        "converged": bool(_settled(ritz, top, tolerance).all()),
    }


def _over(a: float, b: float) -> float | None:
    """a / b; None where that is no number."""
    return a / b if b and math.isfinite(a / b) else None


def trace(
    module: nn.Module,
    batches: Batches,
    *,
    probes: int = 50,
    parts: int = _PARTS,
    seed: int = 0,
    scratch: Scratch | None = None,
    progress: Progress = quiet,
) -> Values:
    """Hutchinson's estimate of the Hessian's trace: the mean of v' H v over vectors v of random signs, with its standard error.

    Each probe looks at one of `parts` of the data in turn, and the parts' means are added up by their sizes. That is as unbiased as
    probes of all data (`parts=1`), takes 1/parts of the time, and its variance lies between that of probes / parts and that of all
    probes on all data. There are no more parts than leave five probes to each. `by_tensor` splits the trace by the model's tensors.
    The number of probes is fixed: programs of papers stop when the running mean moves by less than 0.1 %, which happens by chance.

    >>> found = trace(nn.Linear(3, 2), [(torch.eye(3), torch.tensor([0, 1, 1]))], probes=10)
    >>> found["probes"], found["trace_error"] >= 0
    (10, True)
    """
    scratch = Scratch() if scratch is None else scratch
    pieces = divided(batches, max(1, min(parts, len(batches), probes // 5)))
    operators = [operator(module, piece) for piece in pieces]
    done: list[list[float]] = scratch.numbers.setdefault("probes", [])
    like = next(module.parameters())
    sizes = [p.numel() for p in module.parameters() if p.requires_grad]
    for k in range(len(done), probes):
        progress("trace", k, probes)
        v = signs(sum(sizes), seed, k).to(like)
        terms = (v * (operators[k % len(pieces)] @ v)).double()
        done.append([float(each.sum()) for each in terms.split(sizes)])
        scratch.save()
    progress("trace", probes, probes)
    shares = torch.tensor([sum(len(y) for _, y in piece) for piece in pieces], dtype=torch.float64)
    names = [name for name, p in module.named_parameters() if p.requires_grad]
    return estimate(torch.tensor(done[:probes], dtype=torch.float64), shares / shares.sum(), names)


def divided(batches: Batches, parts: int) -> list[Batches]:
    """Batches in so many parts, dealt in turn.

    >>> [len(part) for part in divided([(torch.ones(1), torch.ones(1))] * 5, 2)]
    [3, 2]
    """
    return [batches[k::parts] for k in range(parts)]


def signs(size: int, seed: int, probe: int) -> Tensor:
    """A vector of random signs for one probe.

    >>> signs(5, 0, 0).abs().tolist()
    [1.0, 1.0, 1.0, 1.0, 1.0]
    """
    return torch.randint(0, 2, (size,), generator=stream(seed, "probe", probe)).float() * 2 - 1


def estimate(terms: Tensor, shares: Tensor, names: Sequence[str]) -> Values:
    """The trace from the terms of each probe (rows) and tensor (columns), the parts of the data taking turns."""
    parts = len(shares)
    by_part = [terms[k::parts] for k in range(parts)]
    by_tensor = sum((share * part.mean(0) for share, part in zip(shares, by_part, strict=True)), start=torch.zeros(len(names)).double())
    variance = sum(float(share) ** 2 * float(part.sum(1).var()) / len(part) for share, part in zip(shares, by_part, strict=True))
    return {
        "trace": float(by_tensor.sum()),
        "trace_error": math.sqrt(variance) if len(terms) > parts else None,
        "probes": len(terms),
        "parts": parts,
        "by_tensor": dict(zip(names, by_tensor.tolist(), strict=True)),
    }


@named
class Curvature(Analysis):
    """The largest and the most negative eigenvalues of the Hessian of the mean cross-entropy over `samples`, and its trace.

    `on` are everybody's training samples, unchanged, or the global test set. FedAlign's program takes 640 training samples, augmented,
    FedCONST's the pooled tenth of the clients' data that is held out. Without `steps` there are at most 100, or 20 for a model of a
    million weights or more, where each takes long; `errors` then say how sure the eigenvalues are.
    """

    samples: Count = 1000
    top: Count = 5
    probes: Count = 50
    steps: Count | None = None
    tolerance: Positive = 1e-3
    parts: Count = _PARTS
    on: On = "train"
    batch: Count = 50
    seed: Whole = 0

    def of(self, subject: Subject, progress: Progress) -> Values:
        batches, module = subject.batches(self.samples, self.batch, on=self.on), subject.module
        steps = self.steps or (20 if sum(p.numel() for p in module.parameters()) >= _LARGE else 100)
        about = (self.samples, self.batch, self.on, self.seed)
        found = eigenvalues(
            module,
            batches,
            top=self.top,
            steps=steps,
            tolerance=self.tolerance,
            seed=self.seed,
            scratch=subject.scratch("curvature", "lanczos", *about),
            progress=progress,
        )
        found |= trace(
            module,
            batches,
            probes=self.probes,
            parts=self.parts,
            seed=self.seed,
            scratch=subject.scratch("curvature", "probes", *about, self.probes, self.parts),
            progress=progress,
        )
        return found | {"samples": sum(len(y) for _, y in batches)}
