"""What the model's features look like: in the plane by t-SNE, with large or small weights removed, and how alike clients' are by CKA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from accord.analysis.piece import Analysis, Progress, Values
from accord.analysis.subject import On, Subject
from accord.check import Count, Range, Whole
from accord.flat import Flat, Layout, Output, logits
from accord.recipe import named

Batches: TypeAlias = Sequence[tuple[Tensor, Tensor]]


def features(module: nn.Module, batches: Batches) -> tuple[Tensor, float]:
    """The features of all samples, one row each, and the accuracy; `ValueError` where the model tells none.

    >>> class Net(nn.Linear):
    ...     def forward(self, x):
    ...         return Output(nn.Linear.forward(self, x), x)
    >>> features(Net(2, 2), [(torch.ones(3, 2), torch.tensor([0, 0, 0]))])[0].shape
    torch.Size([3, 2])
    """
    rows, right, count = [], 0, 0
    with torch.no_grad():
        for x, y in batches:
            out = module.eval()(x)
            if not isinstance(out, Output) or out.features is None:
                raise ValueError(
                    f"this reads the model's features, and {type(module).__name__} returns logits only: "
                    "return accord.Output(logits, features) from its forward"
                )
            rows.append(out.features.flatten(1))
            right, count = right + int((logits(out).argmax(-1) == y).sum()), count + y.numel()
    return torch.cat(rows), right / max(count, 1)


def cka(a: Tensor, b: Tensor) -> float:
    """Linear CKA of two sets of features of the same samples: ||B'A||^2 / (||A'A|| ||B'B||), the columns centred. Kornblith et al., 2019.

    >>> a = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    >>> round(cka(a, 3 * a + 1), 6), round(cka(a, a @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]])), 6)
    (1.0, 1.0)
    """
    a, b = (each.double() - each.double().mean(0) for each in (a, b))
    if min(a.shape[1], b.shape[1]) > len(a):  # the same by the samples' products, where there are fewer samples than features
        k, m = a @ a.T, b @ b.T
        top, bottom = float((k * m).sum()), float(k.norm() * m.norm())
    else:
        top, bottom = float((b.T @ a).square().sum()), float((a.T @ a).norm() * (b.T @ b).norm())
    return top / bottom if bottom > 0 else float("nan")


def without(
    w: Tensor,
    layout: Layout,
    share: float,
    which: Literal["largest", "smallest"],
    *,
    by: Literal["model", "tensor"] = "model",
) -> Tensor:
    """The weights with a share of them set to zero, the largest or the smallest in magnitude, of the whole model or of each tensor.

    Only weights of two dimensions or more are removed: without the scales of normalisation nothing would pass.

    >>> layout = Layout.of({"a": torch.zeros(2, 2), "b": torch.zeros(1)})
    >>> without(torch.tensor([1.0, -4.0, 2.0, 3.0, 9.0]), layout, 0.25, "largest").tolist()
    [1.0, 0.0, 2.0, 3.0, 9.0]
    """
    out = w.clone()
    rows = [row.view(-1) for row in layout.rows(out)]
    for group in [rows] if by == "model" else [[row] for row in rows]:
        sizes = torch.cat([row.abs() for row in group])
        removed = torch.zeros(len(sizes), dtype=torch.bool)
        order = sizes.argsort(stable=True, descending=which == "largest")
        removed[order[: int(share * len(sizes))]] = True
        for row, gone in zip(group, torch.split(removed, [len(row) for row in group]), strict=True):
            row[gone] = 0
    return out


def in_the_plane(rows: Tensor, seed: int = 0, perplexity: float = 30.0) -> list[list[float]]:
    """Points in the plane whose neighbourhoods are those of the rows: t-SNE of scikit-learn, begun with principal components.

    >>> len(in_the_plane(torch.randn(12, 3, generator=torch.Generator().manual_seed(0)), perplexity=3))
    12
    """
    from sklearn.manifold import TSNE

    made = TSNE(init="pca", perplexity=min(perplexity, (len(rows) - 1) / 3), random_state=seed, n_jobs=1)
    points: list[list[float]] = made.fit_transform(rows.double().numpy()).astype(np.float64).tolist()
    return points


def silhouette(rows: Tensor, y: Tensor) -> float | None:
    """How well the classes stand apart in the features, from -1 to 1; None where there are fewer than two."""
    from sklearn.metrics import silhouette_score

    if not 2 <= len(torch.unique(y)) < len(y):
        return None
    return float(silhouette_score(rows.double().numpy(), y.numpy()))


@named
class Features(Analysis):
    """t-SNE of the global model's features with a share of its weights removed (FedCONST Figure 8), and CKA between clients' models.

    `views` has the features of the whole model (`none`), without the `largest` and without the `smallest` weights: points in the plane,
    accuracy, and how well the classes stand apart in the features themselves. Whether the paper ranks weights over the model or in
    each layer it does not say: `by`. `cka` compares clients' models after one more local round, on the same samples; `to_global`
    compares each with the global model. These are samples of the global test set, where there is one.
    """

    samples: Count = 500
    share: Annotated[float, Range(0, 1)] = 0.2
    by: Literal["model", "tensor"] = "model"
    clients: Count = 8
    on: On | None = None  # None: the test set if there is one
    batch: Count = 100
    seed: Whole = 0

    def of(self, subject: Subject, progress: Progress) -> Values:
        on: On = self.on or ("test" if len(subject.federation.test) else "train")
        batches, flat = subject.batches(self.samples, self.batch, on=on), Flat(subject.module)
        y, views = torch.cat([y for _, y in batches]), {}
        whole, _ = features(subject.module, batches)
        for place, name in enumerate(("none", "largest", "smallest")):
            progress("t-SNE", place, 3)
            w = flat.w if name == "none" else without(flat.w, flat.layout, self.share, name, by=self.by)  # type: ignore[arg-type]
            rows, accuracy = features(subject.at(w), batches)
            views[name] = {"points": in_the_plane(rows, self.seed), "accuracy": accuracy, "silhouette": silhouette(rows, y)}
        progress("t-SNE", 3, 3)
        whom = subject.clients(self.clients)
        local = [features(subject.at(w, b), batches)[0] for w, b in subject.locals(whom, progress)]
        return {"labels": y.tolist(), "views": views, "clients": whom, **alike(local, whole)}


def alike(local: Sequence[Tensor], whole: Tensor) -> Values:
    """CKA between clients' features, its mean over pairs, and CKA of each with the global model's; None where features do not vary.

    >>> alike([torch.eye(3), torch.eye(3)], torch.eye(3))["cka"]
    1.0
    """
    table: list[list[Any]] = [[_finite(cka(a, b)) for b in local] for a in local]
    pairs = [table[k][j] for k in range(len(local)) for j in range(k) if table[k][j] is not None]
    mean = sum(pairs) / len(pairs) if pairs else None
    return {"cka": mean, "table": table, "to_global": [_finite(cka(a, whole)) for a in local]}


def _finite(value: float) -> float | None:
    return round(value, 12) if value == value else None
