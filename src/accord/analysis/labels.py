"""The split in numbers: how many samples of each class each client has, and how unlike the clients are."""

from __future__ import annotations

import torch

from accord.analysis.piece import Analysis, Progress, Values
from accord.analysis.subject import Subject
from accord.data.federation import Federation
from accord.recipe import named


class Labels(Analysis):
    """Class counts of every client (FedAlign Figure 3, FedSOL Figure 2) and figures of heterogeneity."""

    def of(self, subject: Subject, progress: Progress) -> Values:
        return heterogeneity(subject.federation)


named(Labels, "federation")


def heterogeneity(federation: Federation) -> Values:
    """Counts and figures of the clients that train.

    `heterogeneity` is the mean over clients of half the L1 distance between a client's label distribution p_k and the pooled one,
    `divergence` the mean of KL(p_k || p) in nats, `classes_held` the mean number of classes of which a client has a sample,
    `effective_classes` the mean of e to the entropy of p_k.

    >>> from accord.data import federate
    >>> heterogeneity(federate("digits", "shards(2)", 10))["classes_held"]
    2.0
    """
    counts = federation.label_counts[: federation.population]
    held = counts[counts.sum(1) > 0].double()
    shares, pooled = held / held.sum(1, keepdim=True), held.sum(0) / held.sum()
    entropy = -torch.special.xlogy(shares, shares).sum(1)
    divergence = (torch.special.xlogy(shares, shares) - torch.special.xlogy(shares, pooled)).sum(1)
    sizes = counts.sum(1).double()
    spread = float(sizes.std(correction=0))
    return {
        "counts": counts.tolist(),
        "population": federation.population,
        "classes": federation.classes,
        "samples": {
            "least": int(sizes.min()),
            "mean": float(sizes.mean()),
            "most": int(sizes.max()),
            "spread": spread,
        },
        "heterogeneity": federation.heterogeneity,
        "divergence": float(divergence.mean()),
        "classes_held": float((held > 0).sum(1).double().mean()),
        "effective_classes": float(entropy.exp().mean()),
        "fingerprint": federation.fingerprint,
    }
