"""What is measured, and on whose data: `global`, `local`, `personal` and `new` are never the same number."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import numpy as np

from accord.cohort import Cohort
from accord.data.federation import Federation
from accord.engines import Engine, Lookup, stateless
from accord.jobs import CHUNK, Evaluate, Score
from accord.server import Server

Kind: TypeAlias = Literal["global", "local", "personal", "new"]
KINDS: tuple[Kind, ...] = ("global", "local", "personal", "new")


def evaluate(
    server: Server,
    federation: Federation,
    engine: Engine,
    *,
    kept: Lookup = stateless,
    seed: int = 0,
    personal: bool = False,
    kinds: Sequence[Kind] = KINDS,
) -> dict[str, Any]:
    """The server's model on everything there is to test it on, of the `kinds` asked for.

    - `global`: on the global test set, with the accuracy of each class;
    - `local`: on each client's own test data: mean, spread (standard deviation) and the mean of the worst tenth of the clients;
    - `new`: the same for held-out clients, who never trained;
    - `personal`, when asked for: each client's own test data, with the model that the algorithm's personalisation makes for it.
    """
    found: dict[str, Any] = {}
    if len(federation.test) and "global" in kinds:
        whole = on_test_set(server, federation, engine, kept=kept, seed=seed)
        each = [r / t if t else None for r, t in zip(whole.right.tolist(), whole.total.tolist(), strict=True)]
        loss = whole.loss / max(whole.samples, 1)
        found["global"] = {"accuracy": whole.accuracy, "loss": loss if math.isfinite(loss) else None, "classes": each}
    tested = [k for k in range(len(federation.tests)) if len(federation.tests[k])]
    ours, new = [k for k in tested if k < federation.population], [k for k in tested if k >= federation.population]
    if ours and "local" in kinds:
        _add(found, "local", _scores(server, engine, "own", ours, kept, seed))
    if ours and personal and "personal" in kinds:
        _add(found, "personal", _scores(server, engine, "personal", ours, kept, seed))
    if new and "new" in kinds:
        _add(found, "new", _scores(server, engine, "own", new, kept, seed))
    return found


def _add(found: dict[str, Any], kind: Kind, scores: Sequence[Score]) -> None:
    """The spread over the clients that gave a score; across real sites some may not have."""
    given = [score.accuracy for score in scores if score.samples]
    if given:
        found[kind] = spread(given)


def on_test_set(server: Server, federation: Federation, engine: Engine, *, kept: Lookup = stateless, seed: int = 0) -> Score:
    """The server's model on the global test set."""
    scores = _scores(server, engine, "test", range(math.ceil(len(federation.test) / CHUNK)), kept, seed)
    return sum(scores[1:], start=scores[0])


def knowledge(cohort: Cohort, federation: Federation, engine: Engine) -> dict[str, Any]:
    """What each client's model knows right after its training: its accuracy on the global test set (FedSOL, Figure 7a)."""
    server = cohort.server
    models = (dataclasses.replace(server, w=reply.w, b=reply.b if len(reply.b) else server.b) for reply in cohort.replies)
    each = [on_test_set(model, federation, engine).accuracy for model in models]
    return {"mean": float(np.mean(each)), "spread": float(np.std(each)), "accuracies": each}


def _scores(
    server: Server, engine: Engine, of: Literal["test", "own", "personal"], whom: Sequence[int], kept: Lookup, seed: int
) -> list[Score]:
    job = Evaluate(server.algorithm, server.w, server.b, server.round, seed, server.down, of=of)
    found = dict(engine.map(job, whom, kept))
    return [found[k] for k in whom]


def spread(accuracies: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation over clients, and the mean of the worst tenth of them (at least one).

    >>> spread([0.5, 0.7, 0.9])
    {'mean': 0.7, 'spread': 0.163299, 'worst': 0.5, 'clients': 3}
    """
    values = np.sort(np.asarray(accuracies))
    worst = values[: max(1, len(values) // 10)]
    return {
        "mean": round(float(values.mean()), 6),
        "spread": round(float(values.std()), 6),
        "worst": round(float(worst.mean()), 6),
        "clients": len(values),
    }
