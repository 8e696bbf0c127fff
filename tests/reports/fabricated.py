"""Made-up comparison directories: random walks, no run of anything."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

CLASSES = 10


def write_run(
    path: Path,
    name: str,
    seed: int,
    *,
    lift: float = 0.0,
    rounds: int = 20,
    every: int = 2,
    finished: bool = True,
    track: bool = False,
    analyse: bool = False,
    **keys: Any,
) -> Path:
    """One run directory whose accuracy climbs to about 0.7 + lift; with `track`, drift and knowledge in every round."""
    path.mkdir(parents=True, exist_ok=True)
    draw = random.Random(f"{name}/{seed}")
    experiment = {"algorithm": f"{name}()", "name": name, "data": "digits", "split": "dirichlet(0.1)", "clients": 20, "model": "mlp"}
    experiment |= {"rounds": rounds, "per_round": 5, "seed": seed, **keys}
    (path / "experiment.toml").write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in experiment.items()))
    shared = random.Random(seed).uniform(-0.03, 0.03)
    rows = [_round(r, rounds, every, lift + shared, draw) for r in range(1, (rounds if finished else rounds // 2) + 1)]
    if track:
        experiment["track"] = ["drift", "knowledge"]
        rows = [row | tracked(row["round"], seed, lift, draw) for row in rows]
    (path / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    counts = [[draw.choice([0, 0, 0, 5, 30, 80]) for _ in range(CLASSES)] for _ in range(20)]
    federation = {"counts": counts, "population": 20, "classes": CLASSES, "fingerprint": f"f00d{seed}", "heterogeneity": 0.71}
    write_json(path / "federation.json", federation | {"data": "digits", "split": "dirichlet(0.1)"})
    write_json(path / "environment.json", {"python": "3.11.7", "torch": "2.13.0", "platform": "made up", "cpu": "none", "threads": 2})
    for name, values in (analysed(seed, lift) if analyse else {}).items():
        (path / "analysis").mkdir(exist_ok=True)
        write_json(path / "analysis" / f"{name}.json", {"name": name, "values": values, "settings": {"text": f"{name}(samples=100)"}})
    if finished:
        write_json(path / "result.json", _result(path, name, seed, rows))
    return path


def _round(r: int, rounds: int, every: int, lift: float, draw: random.Random) -> dict[str, Any]:
    accuracy = min(1.0, max(0.0, (0.7 + lift) * (1 - 0.9 ** (1 + 40 * r / rounds)) + draw.gauss(0, 0.008)))
    row = {"round": r, "clients": draw.sample(range(20), 5), "absent": [], "rejected": [], "loss": 2.3 * 0.93**r + draw.uniform(0, 0.05)}
    row |= {"bytes_down": 500_000, "bytes_up": 500_000 if lift < 0.05 else 900_000, "seconds": 0.5}
    if r % every == 0:
        clients = {"mean": accuracy - 0.05, "spread": 0.12, "worst": max(0.0, accuracy - 0.3), "clients": 20}
        classes = [min(1.0, max(0.0, accuracy + draw.gauss(0, 0.1))) for _ in range(CLASSES - 1)] + [None]
        row["evaluation"] = {"global": {"accuracy": accuracy, "loss": 1 - accuracy, "classes": classes}, "local": clients}
        row["evaluation"]["personal"] = {**clients, "mean": min(1.0, accuracy + 0.1)}
    return row


def tracked(r: int, seed: int, lift: float, draw: random.Random) -> dict[str, Any]:
    """What tracking adds to a round's record."""
    fall, noise = 0.95**r, lambda: draw.uniform(0.9, 1.1)
    names = ("gradient_variance", "consistency", "consistency_dev", "divergence", "divergence_locals", "proximal_loss")
    drift: dict[str, Any] = {name: (place + 1 - 2 * lift) * fall * noise() for place, name in enumerate(names)}
    drift |= {
        "diversity": 1.5 + lift * noise(),
        "orthogonality": 0.4 * fall - lift,
        "gradient_variance_code": 0.1 * fall,
        "norm": [10 + r / 10, 10.1 + r / 10, 10.3 + r / 10],
    }
    drift |= {"cosine": [1.0, 1 - 0.01 * fall, 1 - 0.02 * fall], "lambda": {f"layer{k}.weight": 0.1 * (k + 1) + seed for k in range(6)}}
    accuracies = [draw.uniform(0.2, 0.5) for _ in range(5)]
    mean = sum(accuracies) / 5
    return {"drift": drift, "knowledge": {"mean": mean, "spread": 0.07, "accuracies": accuracies}}


def analysed(seed: int, lift: float) -> dict[str, dict[str, Any]]:
    """What `accord analyze` leaves of a run, by the names of the analyses."""
    top = [(9.0 - 20 * lift) / (place + 1) + seed / 10 for place in range(5)]
    curvature = {"eigenvalues": top, "smallest": -2.0 - seed / 10, "lambda1": top[0], "lambda5": top[4], "ratio": top[0] / top[4]}
    curvature |= {
        "convexity": top[0] / 2,
        "trace": 40.0 + seed,
        "trace_error": 1.5,
        "converged": True,
        "by_tensor": {"a.weight": 40.0 + seed},
    }
    cost = {"forward_flops": 4e6 * (1 + lift), "stored_parameters": 650_000, "passes": {"forward": 1, "backward": 1}, "text": "one pass"}
    found = {"curvature": curvature, "cost": cost, "clients": clients_of(lift), "gsnr": gsnr_of(seed, lift)}
    return {**found, **around(seed, lift), "features": features_of(seed)}


def around(seed: int, lift: float) -> dict[str, dict[str, Any]]:
    """The loss around a model: 2 a^2 + b^2 over the plane, a^2 along the lines, all plus a level; and a spectrum."""
    level, side, line = 0.5 - lift + seed / 100, [-1.0, -0.5, 0.0, 0.5, 1.0], [k / 10 for k in range(-10, 11)]
    plane = [[level + 2 * a * a + b * b for b in side] for a in side]
    landscape = {"eigenvalues": [4.0, 2.0], "loss": level, "side": side, "plane": plane, "line": line}
    landscape |= {"random": [level + a * a for a in line], "filter": [level + 0.5 * a * a for a in line]}
    grid = [k / 10 for k in range(-20, 101)]
    density = [math.exp(-(t**2) / 0.1) + 1e-3 * math.exp(-((t - 6 + 10 * lift) ** 2) / 0.1) for t in grid]
    return {"landscape": landscape, "spectrum": {"grid": grid, "density": density, "nodes": [0.0], "weights": [1.0], "negative": 0.4}}


def clients_of(lift: float) -> dict[str, Any]:
    """What the Hessians of four clients' models are to each other."""
    norms = [1.0, 2.0, 3.0, 4.0 - lift]
    gaps = [[(a - b) ** 2 for b in norms] for a in norms]
    code = {"H_N": sum(map(sum, gaps)) / 16, "H_D": 0.625, "norms": norms, "gaps": gaps}
    code["directions"] = [[1.0 if j == k else 0.5 - lift for k in range(4)] for j in range(4)]
    return {"clients": [3, 5, 8, 13], "H_N": code["H_N"], "H_D": code["H_D"], "code": code, "paper": {**code, "cosine": 0.5}}


def gsnr_of(seed: int, lift: float) -> dict[str, Any]:
    """Signal and noise of gradients."""
    size = {"weight": [0.001 * 2**k for k in range(8)], "gsnr": [0.01 * (k + 1) for k in range(8)], "rank_correlation": 0.8, "points": []}
    ends = {"top": {"weight": 0.2, "gsnr": 0.05 + lift}, "bottom": {"weight": 0.01, "gsnr": 0.02}}
    return {"first": 100.0 + seed + 100 * lift, "last": 40.0 + seed, **ends, "clients": [], "against_size": size, "osgr": {"formula": 0.9}}


def features_of(seed: int) -> dict[str, Any]:
    """Points in the plane for three views of a model, and how alike the features of four clients are."""
    draw, labels = random.Random(seed), [k % CLASSES for k in range(60)]
    points = [[math.cos(y) + draw.gauss(0, 0.1), math.sin(y) + draw.gauss(0, 0.1)] for y in labels]
    views = {name: {"points": points, "accuracy": 0.8, "silhouette": 0.25} for name in ("none", "largest", "smallest")}
    table = [[1.0 if j == k else 0.75 for k in range(4)] for j in range(4)]
    return {"labels": labels, "views": views, "clients": [3, 5, 8, 13], "cka": 0.75, "table": table, "to_global": [0.9] * 4}


def _result(path: Path, name: str, seed: int, rows: list[dict[str, Any]]) -> dict[str, Any]:
    last = rows[-1]["evaluation"]
    result = {"algorithm": name, "recipe": f"{name}()", "digest": f"{seed:02d}" * 32, "accuracy": last["global"]["accuracy"]}
    result |= {"rounds": len(rows), "seconds": 0.5 * len(rows), "bytes_up": sum(row["bytes_up"] for row in rows)}
    result |= {"bytes_down": sum(row["bytes_down"] for row in rows), "out": str(path), "evaluation": last, "parameters": 1234}
    return result | {"fingerprint": f"f00d{seed}", "heterogeneity": 0.71, "header": {"buffers": "none", "heterogeneity": 0.71}}


def write_json(path: Path, value: object) -> None:
    """The value as JSON in a file."""
    path.write_text(json.dumps(value))


def write_comparison(
    path: Path, lifts: dict[str, float], seeds: tuple[int, ...] = (0, 1, 2), target: float | None = None, **keys: Any
) -> Path:
    """A comparison of made-up algorithms, each with its lift over 0.7."""
    runs = {name: [f"runs/{i}-{seed}" for seed in seeds] for i, name in enumerate(lifts)}
    for name, places in runs.items():
        for seed, place in zip(seeds, places, strict=True):
            write_run(path / place, name, seed, lift=lifts[name], **keys)
    plan = {"algorithms": list(lifts), "seeds": list(seeds), "runs": runs, "target": target, "set_up": {"data": "digits"}}
    write_json(path / "comparison.json", plan)
    return path
