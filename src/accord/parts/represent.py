"""Representations that are short, and say no more of a sample than its class does."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from accord.check import NonNegative
from accord.client import Batch, Client
from accord.flat import Output
from accord.part import Gradient, Part
from accord.recipe import named


@named
class Represent(Part):
    """Adds l2r mean ||z|| + cmi mean KL(N(C mu, C sigma) || N(r_y, softplus(s_y))) to the local objective. FedSR: Nguyen et al., 2022.

    z ~ N(mu, sigma) comes from a model such as `stochastic`. Every client has its own r (at first 0) and s (1) for each class, and
    C (1), which its optimiser trains beside the model and which it keeps; they do not travel. The norm of z is not squared, as in
    the authors' program, which runs l2r = 0.01 and cmi = 0.001 with the uniform mean. FedOptz's study leaves r, s and C as they
    begin (`trained=False`).
    """

    l2r: NonNegative = 0.01
    cmi: NonNegative = 0.001
    trained: bool = True

    def gradient(self, client: Client, batch: Batch, inner: Gradient) -> None:
        client.memo.pop((self, "leaves"), None)
        inner(batch)

    def loss(self, client: Client, batch: Batch, out: Output) -> Tensor:
        if not self.l2r and not self.cmi:
            return out.logits.new_zeros(())
        if out.latent is None or out.features is None:
            raise ValueError(
                f"represent reads a distribution of features, and {type(client.model.module).__name__} gives none: choose the model "
                "stochastic(of=...), or return accord.Output(logits, z, (mean, spread)) from its forward"
            )
        r, s, c = self.leaves(client, out)
        mean, spread, to = c * out.latent[0], c * out.latent[1], F.softplus(s[batch.y])
        apart = to.log() - spread.log() + (spread.square() + (mean - r[batch.y]).square()) / (2 * to.square()) - 0.5
        penalty: Tensor = self.l2r * out.features.norm(dim=-1).mean() + self.cmi * apart.sum(dim=-1).mean()
        return penalty

    def leaves(self, client: Client, out: Output) -> tuple[Tensor, Tensor, Tensor]:
        """r, s and C as they stand, ready to receive this step's gradients."""
        if (self, "leaves") not in client.memo:
            held = client.kept[self]
            if not held:
                assert out.features is not None
                r = client.w.new_zeros(out.logits.shape[-1], out.features.shape[-1])
                held = {"r": r, "s": torch.ones_like(r), "c": torch.ones_like(r[0, 0])}
                client.kept[self] = held
            client.memo[self, "leaves"] = {name: t.detach().clone().requires_grad_(self.trained) for name, t in held.items()}
        leaves = client.memo[self, "leaves"]
        return leaves["r"], leaves["s"], leaves["c"]

    def moved(self, client: Client) -> None:
        leaves = client.memo.pop((self, "leaves"), None)
        if leaves is None or not self.trained:
            return
        held, rule, speeds = client.kept[self], client.rule, dict(client.memo.get((self, "v"), {}))
        after = {}
        for name, leaf in leaves.items():
            d = (torch.zeros_like(leaf) if leaf.grad is None else leaf.grad) + rule.decay * held[name]
            speeds[name] = rule.momentum * speeds[name] + d if name in speeds else d
            after[name] = held[name] - client.lr * (d + rule.momentum * speeds[name] if rule.nesterov else speeds[name])
        client.kept[self], client.memo[self, "v"] = after, speeds
