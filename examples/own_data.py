"""Compare two algorithms on your own arrays, over seeds, with the differences paired by seed."""

import argparse

import numpy as np
import torch
from torch import nn

import accord
from accord.reports.statistics import interval


def federation(seed: int) -> accord.Federation:
    """Stand-in for your arrays: 1,500 samples of three classes in clouds that overlap, dealt to 15 clients by their labels."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, 1500)
    x = (rng.normal(size=(1500, 20)) + 0.6 * np.eye(3, 20)[y] * 3).astype("float32")
    return accord.Federation.from_arrays(x, y, split="dirichlet(0.1)", clients=15)


def accuracy(recipe: str, data: accord.Federation, rounds: int, seed: int) -> float:
    """The test accuracy of an algorithm after so many rounds; one seed gives every algorithm the same first weights and batches."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 3))
    algorithm = accord.read(f"{recipe} + sgd(lr=0.05, epochs=2, batch=20) + uniform(5)")
    *_, last = accord.rounds(algorithm, net, data, rounds=rounds, seed=seed)
    model = last.server.model(net).eval()
    with torch.no_grad():
        x, y = data.test.gather(torch.arange(len(data.test)))
        return float((model(x).argmax(1) == y).float().mean())


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=20)
    options.add_argument("--seeds", type=int, default=5)
    chosen = options.parse_args()
    data = federation(0)
    print(f"heterogeneity {data.heterogeneity:.2f}, fingerprint {data.fingerprint}")
    differences = []
    for seed in range(chosen.seeds):
        plain, corrected = (accuracy(recipe, data, chosen.rounds, seed) for recipe in ("fedavg", "scaffold"))
        differences.append(corrected - plain)
        print(f"seed {seed}: fedavg {plain:.3f}, scaffold {corrected:.3f}")
    ends = interval(differences)
    if ends is not None:
        print(f"scaffold - fedavg: {np.mean(differences):+.3f}, 95 % interval {ends[0]:+.3f} to {ends[1]:+.3f}")


if __name__ == "__main__":
    main()
