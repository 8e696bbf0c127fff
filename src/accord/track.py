"""What `--track` records of a round beside its loss: how the clients drift apart, and what each of them still knows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from accord.client import Batch, Client
from accord.cohort import Cohort, Reply
from accord.part import Gradient, Part, State
from accord.parts.distil import Distil
from accord.parts.perturb import Perturb

_STRIDE = 50  # steps between two looks at the proximal gradient, each of which costs a step and a third
_MEMORY, _SUMMARY = 0.99, 50  # of the moving averages of FedCONST's program, and the steps after which it forgets their mean
_BLOCK, _ROWS = 1 << 20, 1 << 20  # numbers at a time: of all clients on the server, and of the last gradients on a client
_PULL = Distil()


@dataclass(frozen=True)
class Watch(Part):
    """Looks at a client's training and changes nothing in it; `local` adds the measurements made along the local steps.

    It stands outside all other parts, so that the gradients it sees are those that the local optimiser is given.
    """

    name = "watch"
    reads_all: ClassVar[bool] = True

    local: bool = True

    def begin(self, client: Client) -> None:
        if self.local:
            client.memo[self] = _Seen.start(client)

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        inner(batch)
        if not self.local:
            return
        seen, step = _seen(client, self), client.step
        rows = len(seen.latest)
        seen.latest[step % rows].copy_(client.g)
        if step % rows == rows - 1:
            seen.fold(step, rows)
        if (client.round * seen.steps + step) % _STRIDE == _STRIDE - 1:
            seen.pulls.append(self.pull(client, batch))

    def pull(self, client: Client, batch: Batch) -> Tensor:
        """The cosine between `g` and the gradient of the proximal loss (FedSOL's, tau = 3), and this loss."""
        g, passes, device = client.g.clone(), client.passes, client.w.device
        with client.still(), torch.random.fork_rng(devices=() if device.type == "cpu" else (device,)):
            loss = _PULL.loss(client, batch, client.forward(batch.x))
            client.g.zero_()
            client.backward(loss)
        cosine = F.cosine_similarity(client.g, g, dim=0)
        client.g.copy_(g)
        client.passes = passes
        return torch.stack([cosine, loss.detach()])

    def moved(self, client: Client) -> None:
        if self.local and (client.step + 1) % _seen(client, self).steps == 0:
            self.epoch(client)

    def epoch(self, client: Client) -> None:
        """Note the weights' square and their product with the global ones."""
        _seen(client, self).epochs.extend((torch.dot(client.w, client.w), torch.dot(client.w, client.w0)))

    def end(self, client: Client) -> None:
        if not self.local:
            return
        seen, count = _seen(client, self), client.step
        if count % seen.steps:
            self.epoch(client)
        if count % len(seen.latest):
            seen.fold(count - 1, count % len(seen.latest))
        (mean, square), whole = seen.averages, torch.dot(seen.gradients, seen.gradients)
        once = [seen.squares, whole, (square - mean.square()).abs().sum(), torch.dot(client.w0, client.w0)]
        client.up[self] = {
            "once": torch.stack(once),
            "epochs": torch.stack(seen.epochs) if seen.epochs else client.w.new_zeros(0),
            "pulls": torch.stack(seen.pulls) if seen.pulls else client.w.new_zeros(0, 2),
        }
        for part in client.algorithm.all_parts:
            if isinstance(part, Perturb) and part.adaptive.startswith("drift"):
                client.up[self] = {**client.up[self], "lambda": torch.stack([part.drift(client, s).mean() for s in client.layout.slots])}

    def taken(self, reply: Reply) -> State:
        """What the watch on this client's side saw, taken out of its reply: it is no part of what the algorithm sends."""
        seen = reply.up.get(self, {})
        reply.up = {part: state for part, state in reply.up.items() if part != self}
        return seen


class _Seen(NamedTuple):
    """What was seen of a round so far."""

    steps: int  # in one epoch of this client
    latest: Tensor  # gradients of the last steps, a row each, that are not in the sums yet
    gradients: Tensor  # their sum
    squares: Tensor  # the sum of their squared lengths
    averages: Tensor  # of the last tensor's gradient and of its square, as in FedCONST's program
    epochs: list[Tensor]  # the weights' square and their product with the global ones, by turns, epoch by epoch
    pulls: list[Tensor]  # cosine and loss of the proximal pull

    @classmethod
    def start(cls, client: Client) -> _Seen:
        """Nothing, at the start of a client's round."""
        batches, last = client.samples / client.rule.batch, client.layout.slots[-1]
        steps = max(1, math.floor(batches) if client.rule.drop_last else math.ceil(batches))
        rows = next(rows for rows in (50, 25, 10, 5, 2, 1) if rows == 1 or rows * len(client.w) <= _ROWS)
        zeros = client.w.new_zeros
        return cls(
            steps, client.w.new_empty(rows, len(client.w)), zeros(len(client.w)), zeros(()), zeros(2, last.stop - last.start), [], []
        )

    def fold(self, step: int, count: int) -> None:
        """Add the latest `count` gradients, the last of which is that of `step`, to the sums and the moving averages."""
        rows = self.latest[:count]
        self.gradients.addmv_(rows.T, rows.new_ones(count))
        self.squares.add_(torch.dot(rows.view(-1), rows.view(-1)))
        last, (mean, square) = rows[:, -self.averages.shape[1] :], self.averages
        weights = (1 - _MEMORY) * _MEMORY ** torch.arange(count - 1, -1, -1, dtype=rows.dtype, device=rows.device)
        mean.mul_(0.0 if (step + 1 - count) % _SUMMARY == 0 else _MEMORY**count).add_(weights @ last)
        square.mul_(_MEMORY**count).add_(weights @ last.square())


def _seen(client: Client, watch: Watch) -> _Seen:
    found: _Seen = client.memo[watch]
    return found


def drift(deltas: Sequence[Tensor], p: Tensor, step: Tensor) -> dict[str, float]:
    """How far clients went, and how far apart; `deltas` are their w_k - w, `p` their shares and `step` what the server made of them.

    - diversity = sum p_k |dw_k|^2 / |dw|^2 and consistency = sum p_k |dw_k|^2 (FedCONST, Figures 3b and 4, as printed);
    - consistency_dev = sum p_k |dw_k - dw|^2, the dispersion that the word means;
    - divergence = mean |dw_k| and divergence_locals = mean over pairs |w_i - w_j| (FedSOL, Figures 6a and 6b).

    >>> drift([torch.tensor([3.0, 4.0]), torch.zeros(2)], torch.tensor([0.5, 0.5]), torch.tensor([1.5, 2.0]))["diversity"]
    2.0
    """
    gram = _gram([*deltas, step])
    m, lengths, whole = len(deltas), gram.diagonal()[:-1], gram[-1, -1]
    p = p.to(gram)
    apart = (lengths[:, None] + lengths - 2 * gram[:m, :m]).clamp(min=0).sqrt()
    consistency = (p * lengths).sum()
    found = {
        "diversity": consistency / whole,
        "consistency": consistency,
        "consistency_dev": (p * (lengths + whole - 2 * gram[:m, -1])).sum(),
        "divergence": lengths.sqrt().mean(),
        "divergence_locals": apart.sum() / (m * (m - 1)) if m > 1 else gram.new_tensor(math.nan),
    }
    return {name: float(value) for name, value in found.items()}


def _gram(rows: Sequence[Tensor]) -> Tensor:
    """The inner products of vectors, in double precision and in blocks, so that no large copy is made."""
    found = torch.zeros(len(rows), len(rows), dtype=torch.float64)
    for start in range(0, rows[0].numel(), _BLOCK):
        block = torch.stack([row[start : start + _BLOCK] for row in rows]).double()
        found += block @ block.T
    return found


def drift_of(cohort: Cohort, layers: Sequence[str]) -> dict[str, Any]:
    """The drift of a round: of its clients' steps, and of what was seen along them; means over clients, None where there is nothing.

    `layers` are the names of the tensors that the weights are made of.
    """
    replies, seen = cohort.replies, [cohort.seen[reply.client] for reply in cohort.replies]
    shares = torch.tensor([reply.samples for reply in replies], dtype=torch.float64)
    found: dict[str, Any] = drift([reply.delta for reply in replies], shares / shares.sum(), cohort.server.w - cohort.w)
    pulls = torch.cat([state["pulls"] for state in seen])
    local = [_local(state, reply.steps) for state, reply in zip(seen, replies, strict=True)]
    found |= {key: sum(one[key] for one in local) / len(local) for key in ("gradient_variance", "gradient_variance_code")}
    found |= {key: _by_row([one[key] for one in local]) for key in ("norm", "cosine")}
    found["orthogonality"], found["proximal_loss"] = pulls.double().mean(0).tolist() if len(pulls) else (None, None)
    if all("lambda" in state for state in seen):
        found["lambda"] = dict(zip(layers, torch.stack([state["lambda"] for state in seen]).mean(0).tolist(), strict=True))
    return {name: _finite(value) for name, value in found.items()}


def _local(seen: State, steps: int) -> dict[str, Any]:
    """What was seen along one client's steps, in words that can be averaged over clients.

    The variance of its gradients is mean |g_t|^2 - |mean g_t|^2.
    """
    squares, whole, code, start = seen["once"].double().tolist()
    length, product = seen["epochs"].double().view(-1, 2).T
    return {
        "gradient_variance": squares / max(steps, 1) - whole / max(steps, 1) ** 2,
        "gradient_variance_code": code,
        "norm": length.sqrt().tolist(),
        "cosine": (product / (length * start).sqrt()).tolist(),
    }


def _by_row(lists: Sequence[Sequence[float]]) -> list[float]:
    """The mean of each place over the lists that have it.

    >>> _by_row([[1.0, 4.0], [3.0]])
    [2.0, 4.0]
    """
    places = [[values[k] for values in lists if len(values) > k] for k in range(max(map(len, lists)))]
    return [sum(values) / len(values) for values in places]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
