"""The last stage at a reduced width stretches its input as much as it does at full width."""

from __future__ import annotations

from typing import Annotated

import torch.nn.functional as F
from torch import Tensor, nn

from accord.check import Count, NonNegative, Positive, Range
from accord.client import Batch, Client
from accord.flat import Output
from accord.models.slim import channels, slimmed
from accord.part import Gradient, Part
from accord.recipe import named


@named
class Align(Part):
    """Adds mu (CE / L) L, L = mean over the batch of (K_S - K_F)^2, the fraction being a constant. FedAlign: Mendieta et al., 2022.

    K is the largest singular value of a sample's transmitting matrix A B' / HW, with A = [C, HW] the input of the model's last stage,
    pooled to the size of its output B: K_F at full width, a constant; K_S at `width`, from the first channels of the same input, which
    is a constant too, so that only the leading channels of the last stage's weights move. The norm is found by power iterations from
    ones, through which the gradient flows. The whole gradient is then cut to the norm `clip`, as the authors' program does.

    The paper feeds the whole input to the narrow stage and writes no HW; we take what the program does. `eps` keeps dead features and
    L = 0 from making a NaN; the program has no such guard (`eps=0`). With mu = 0 nothing is cut either. Published: width = 0.25,
    mu = 0.45.
    """

    width: Annotated[float, Range(0, 0.999999, above=True)] = 0.25
    mu: NonNegative = 0.45
    clip: Positive | None = 10.0
    iterations: Count = 10
    eps: NonNegative = 1e-12

    def begin(self, client: Client) -> None:
        if self.mu:
            self.stage(client.model.module)

    def stage(self, module: nn.Module) -> str:
        """The name of the model's last stage, or a `ValueError` when the model does not say what its stages are."""
        names, kind = getattr(module, "stages", ()), type(module).__name__
        if not names or isinstance(names, str):
            children = ", ".join(repr(name) for name, _ in module.named_children()) or "none"
            raise ValueError(
                f"{self.name} runs the last stage of the model by itself, and {kind} does not say what its stages are: give the class "
                f"stages = ('...', '...'), names of its children in the order in which they are passed (its children are {children})"
            )
        if names[-1] not in dict(module.named_modules()):
            raise ValueError(f"{kind} names {names[-1]!r} as its last stage and has no such child")
        return str(names[-1])

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        if not self.mu:
            inner(batch)
            return
        with client.watching(self.stage(client.model.module)):
            inner(batch)
        if self.clip is not None:
            client.g.mul_((self.clip / (client.g.norm() + 1e-6)).clamp(max=1.0))

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        if not self.mu:
            return out.logits.new_zeros(())
        assert client.seen is not None
        stage, (before, after) = client.model.module.get_submodule(self.stage(client.model.module)), client.seen
        part = before[:, : channels(before.shape[1], self.width)]
        with slimmed(stage, self.width, stage=True):
            narrow = stretch(part, stage(part), self.iterations, self.eps)
        gap = F.mse_loss(narrow, stretch(before, after, self.iterations, self.eps))
        task = F.cross_entropy(out.logits.detach().flatten(0, -2), batch.y.flatten())
        return self.mu * (task / gap.detach().clamp(min=self.eps)) * gap


def transmission(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The two factors whose product is each sample's transmitting matrix: a, pooled to the size of b, over HW, and b turned."""
    if a.shape[2:] != b.shape[2:]:
        a = F.adaptive_avg_pool2d(a, b.shape[2:])  # type: ignore[arg-type]
    a, b = a.reshape(*a.shape[:2], -1), b.reshape(*b.shape[:2], -1)
    return a / a.shape[2], b.mT


def stretch(a: Tensor, b: Tensor, iterations: int = 10, eps: float = 0.0) -> Tensor:
    """The largest singular value of X = A B' / HW for each sample: v <- X X' v / ||X X' v|| from ones; the root of the last norm.

    Where there are fewer places than channels, X = L R is never made: s = L' v is followed instead, as s <- L' L R R' s.

    >>> a = torch.eye(2).reshape(1, 2, 2, 1)
    >>> stretch(a, 3 * a)
    tensor([1.5000])
    """
    left, right = transmission(a, b)
    ones, turn = left.new_ones(*left.shape[:2], 1), None
    if left.shape[1] <= left.shape[2]:
        x = left @ right
        square, s = x @ x.mT, ones
    else:
        square, turn, s = right @ right.mT, left.mT @ left, left.mT @ ones
    norm = s
    for _ in range(iterations):
        t = square @ s
        s = t if turn is None else turn @ t
        norm = (t * s).sum(1, keepdim=True).clamp(min=eps * eps).sqrt()
        s = s / norm
    return norm.sqrt().flatten()
