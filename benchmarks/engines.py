"""Seconds a round of FedAvg for 10 and 100 clients on the engines `process`, `processes` and `ray`, which take turns within one run.

Every engine does the same rounds, with all clients in each; the figures are medians over repeats, the ratios are within one repeat.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Iterator

import torch

import accord
from accord.engines import open_engine
from accord.experiment import Experiment

ENGINES = ("process", "processes", "ray")


def turns(clients: int, workers: int, rounds: int, repeats: int) -> None:
    """Let the engines take turns, and print what came out."""
    asked = Experiment(
        data="synthetic_images(samples=4000)", split="iid", clients=clients, per_round=0, epochs=1, model="lenet5(bias=True)"
    )
    federation = asked.federation()
    module, algorithm = asked.module(federation), asked.recipe()
    seconds: dict[str, list[float]] = {}
    digests: dict[str, torch.Tensor] = {}
    with contextlib.ExitStack() as stack:
        running: dict[str, Iterator[accord.Cohort]] = {}
        for name in ENGINES:
            try:
                engine = stack.enter_context(open_engine(name, module, federation, workers=workers))
            except ValueError as error:
                print(f"  {name}: {error}")
                continue
            running[name] = accord.rounds(algorithm, module, federation, rounds=10**9, engine=engine)
            next(running[name])
        for _ in range(repeats):
            for name, each in running.items():
                started = time.perf_counter()
                for _ in range(rounds):
                    cohort = next(each)
                seconds.setdefault(name, []).append((time.perf_counter() - started) / rounds)
                digests[name] = cohort.server.w
    assert all(w.equal(digests["process"]) for w in digests.values()), "the engines disagree"
    print(f"\n{clients} clients of {4000 // clients} images, LeNet-5, one epoch, {workers} workers")
    for name, values in seconds.items():
        ratios = [a / b for a, b in zip(values, seconds["process"], strict=True)]
        median, low, high = statistics.median(ratios), min(ratios), max(ratios)
        print(f"  {name:10} {statistics.median(values):8.4f} s a round   {median:.2f} of process ({low:.2f} to {high:.2f})")


def main() -> None:
    """Run both sizes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for clients in (10, 100):
        turns(clients, min(2, os.cpu_count() or 1), asked.rounds, asked.repeats)


if __name__ == "__main__":
    main()
