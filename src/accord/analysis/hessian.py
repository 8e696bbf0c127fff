"""The Hessian of a model's mean cross-entropy as a linear operator, made with curvlinops."""

from __future__ import annotations

from collections.abc import Iterable

from curvlinops import HessianLinearOperator
from torch import Tensor, channels_last, nn, no_grad
from torch.func import functional_call, grad, jvp
from torch.nn import functional as F

from accord.analysis.recurrent import unfused
from accord.flat import logits


class Answers(nn.Module):
    """A model that answers with bare logits, one row a label."""

    def __init__(self, module: nn.Module) -> None:
        nn.Module.__init__(self)
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return logits(self.module(x)).flatten(0, -2)


class Hessian(HessianLinearOperator):  # type: ignore[misc]
    """H = the second derivative of the mean cross-entropy over some batches by all trainable weights, the model in evaluation mode.

    A single vector is multiplied forward over reverse without the copies that a block of vectors needs, which takes two thirds of the
    time; the products are the same. The order of the weights is that of `Flat`.

    >>> net, x, y = nn.Linear(2, 2, bias=False), torch.eye(2), torch.tensor([0, 1])
    >>> _ = nn.init.zeros_(net.weight)
    >>> (Hessian(net, [(x, y)]) @ torch.tensor([1.0, 0.0, 0.0, 0.0])).tolist()
    [0.125, 0.0, -0.125, 0.0]
    """

    def __init__(self, module: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> None:
        data = [(_laid_out(x), y.flatten()) for x, y in batches]
        self.answers = Answers(module.eval())
        named = {name: p for name, p in self.answers.named_parameters() if p.requires_grad}
        self.names = tuple(named)
        HessianLinearOperator.__init__(
            self,
            self.answers,
            nn.CrossEntropyLoss(),
            list(named.values()),
            data,
            check_deterministic=False,
            num_data=sum(len(x) for x, _ in data),
        )

    def _matmat_batch(self, X: Tensor, y: Tensor, M: list[Tensor]) -> list[Tensor]:
        if M[0].shape[-1] > 1:
            with unfused(self.answers):
                products: list[Tensor] = HessianLinearOperator._matmat_batch(self, X, y, M)
            return products

        def loss(weights: dict[str, Tensor]) -> Tensor:
            return F.cross_entropy(functional_call(self.answers, weights, (X,)), y)

        weights = {name: p.detach() for name, p in zip(self.names, self._params, strict=True)}
        along = {name: m.squeeze(-1) for name, m in zip(self.names, M, strict=True)}
        with no_grad(), unfused(self.answers):
            product = jvp(grad(loss), (weights,), (along,))[1]
        return [product[name].unsqueeze(-1) for name in self.names]


def _laid_out(x: Tensor) -> Tensor:
    """Images channels last, where convolutions are quicker."""
    return x.contiguous(memory_format=channels_last) if x.dim() == 4 else x
