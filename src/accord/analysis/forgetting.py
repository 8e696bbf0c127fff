"""What the global model knew and lost: the accuracy of every class over the rounds, and forgetting."""

from __future__ import annotations

from collections.abc import Sequence

from accord.analysis.piece import Analysis, Progress, Values
from accord.analysis.subject import Subject
from accord.recipe import named


@named
class Forgetting(Analysis):
    """Class-wise accuracy of the server's model on the global test set after each evaluated round, and forgetting (FedSOL Figure 7b)."""

    def of(self, subject: Subject, progress: Progress) -> Values:
        found = [(r, each["classes"]) for r, each in subject.record.evaluations("global") if each.get("classes")]
        if not found:
            raise ValueError(f"{subject.path} has no class-wise accuracies: they come from evaluation on a global test set")
        rounds, classes = [r for r, _ in found], [c for _, c in found]
        return {"rounds": rounds, "classes": classes, "forgetting": forgetting(classes), "by_round": by_round(classes)}


def forgetting(classes: Sequence[Sequence[float | None]]) -> float | None:
    """F = (1/C) sum over classes of max_{t<T} (A_c^t - A_c^T), A_c^t being the accuracy of class c after evaluation t (FedNTD).

    It is negative where every class ends higher than it ever was. Classes without test samples (None) are left out.

    >>> round(forgetting([[0.5, 0.2], [0.9, 0.1], [0.4, 0.8]]), 3)
    -0.05
    """
    *before, last = classes
    gaps = [max(a - b for a in (row[c] for row in before) if a is not None) for c, b in enumerate(last) if b is not None and before]
    return sum(gaps) / len(gaps) if gaps else None


def by_round(classes: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Forgetting had the run ended after each evaluation; none after the first.

    >>> by_round([[0.5], [0.25]])
    [None, 0.25]
    """
    return [forgetting(classes[: t + 1]) for t in range(len(classes))]
