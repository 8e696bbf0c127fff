"""How fast rounds of FedAvg run, beside the best plain PyTorch loop and two of those loops side by side.

Every contestant does the same work on the same data: rounds of local training over a few clients each, batches in an order drawn
anew, momentum, the mean of the results. Contestants take turns of a second or less within each repeat, all on one thread a process;
the figures are medians over repeats of samples per second, and of ratios within one repeat, so that a machine whose speed drifts
does not decide.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

import accord
import accord.run
import accord.server
from accord.engines import open_engine
from accord.engines.crew import Hand, dismiss, hire
from accord.experiment import Experiment
from accord.run import Run


@dataclass(frozen=True)
class Workload:
    """One federation and model, how many rounds make a turn, and how many turns each contestant has."""

    title: str
    data: str
    clients: int
    per_round: int
    batch: int
    model: str
    rounds: int
    repeats: int

    def experiment(self, rounds: int = 10_000) -> Experiment:
        """The same as an experiment."""
        return Experiment(
            data=self.data,
            split="iid",
            clients=self.clients,
            per_round=self.per_round,
            batch_size=self.batch,
            epochs=1,
            model=self.model,
            rounds=rounds,
            evaluate_every=10,
            engine="process",
        )


_IMAGES = "synthetic_images(samples=10000, shape=(3, 32, 32))"
WORKLOADS = {
    "lenet": Workload(
        "(a) LeNet-5, 20 clients x 500 images of 3x32x32", "synthetic_images(samples=10000)", 20, 5, 50, "lenet5(bias=True)", 3, 31
    ),
    "cnn": Workload("(b) two-convolution CNN, 20 clients x 500 images", _IMAGES, 20, 5, 50, "cnn", 1, 9),
    "digits": Workload("(c) digits, MLP, 100 clients", "digits", 100, 20, 10, "mlp", 60, 31),
}


def by_hand(work: Workload) -> Callable[[], int]:
    """The best loop that we can write for this one algorithm: data normalised once, channels last, fused SGD, nothing general."""
    federation = work.experiment().federation()
    model = work.experiment().module(federation)
    everything = torch.arange(len(federation.train))
    x = torch.cat([b.x for b in federation.train.batches(everything, 500)])
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
        model = model.to(memory_format=torch.channels_last)
    y, shards = federation.train.y, [federation.clients[k] for k in range(work.clients)]
    parameters = list(model.parameters())
    weights: list[Tensor] = [p.detach().clone() for p in parameters]
    rng = torch.Generator().manual_seed(0)

    def a_round() -> int:
        nonlocal weights
        total, samples = [torch.zeros_like(w) for w in weights], 0
        model.train()
        for client in torch.randperm(work.clients, generator=rng)[: work.per_round].tolist():
            with torch.no_grad():
                torch._foreach_copy_(parameters, weights)
            optimiser = torch.optim.SGD(parameters, lr=0.01, momentum=0.9, fused=True)
            index = shards[client][torch.randperm(len(shards[client]), generator=rng)]
            for part in index.split(work.batch):
                optimiser.zero_grad()
                F.cross_entropy(model(x[part]).logits, y[part]).backward()
                optimiser.step()
            samples += len(index)
            with torch.no_grad():
                torch._foreach_add_(total, parameters, alpha=len(index))
        weights = [t / samples for t in total]
        return samples

    return a_round


def by_accord(work: Workload, engine: str, workers: int) -> Callable[[], int]:
    """Rounds of the library, through the same calls as a user's."""
    experiment = work.experiment()
    federation = experiment.federation()
    module, algorithm = experiment.module(federation), experiment.recipe()
    opened = open_engine(engine, module, federation, workers=workers)
    running: Iterator[accord.Cohort] = accord.rounds(algorithm, module, federation, rounds=10**9, engine=opened)
    return lambda: sum(next(running).samples)


def serve(pipe: Connection, work: Workload, make: Callable[[Workload], Callable[[], int]]) -> None:
    """A contestant's process: on each message do so many rounds, and say how many samples that was."""
    a_round = make(work)
    for _ in range(3):
        a_round()
    pipe.send(0)
    while True:
        pipe.send(sum(a_round() for _ in range(pipe.recv())))


def turn(hands: list[Hand], rounds: int) -> float:
    """Samples per second of one contestant's processes, side by side."""
    started = time.perf_counter()
    for hand in hands:
        hand.pipe.send(rounds)
    samples = sum(hand.pipe.recv() for hand in hands)
    return samples / (time.perf_counter() - started)


def contest(work: Workload, repeats: int) -> None:
    """Let the contestants take turns and print what came out."""
    here = functools.partial(by_accord, engine="process", workers=1)
    alone = by_accord(work, "processes", 2)
    contestants = {
        "one loop by hand": [hire(serve, work, by_hand)],
        "accord, process": [hire(serve, work, here)],
        "two loops by hand": [hire(serve, work, by_hand) for _ in range(2)],
        "accord, two runs side by side": [hire(serve, work, here) for _ in range(2)],
    }
    everyone = [hand for hands in contestants.values() for hand in hands]
    try:
        for hand in everyone:
            hand.pipe.recv()
        for _ in range(3):
            alone()
        speeds: dict[str, list[float]] = {name: [] for name in (*contestants, "accord, processes, two workers")}
        for _ in range(repeats):
            for name, hands in contestants.items():
                speeds[name].append(turn(hands, work.rounds))
            started = time.perf_counter()
            samples = sum(alone() for _ in range(2 * work.rounds))
            speeds["accord, processes, two workers"].append(samples / (time.perf_counter() - started))
    finally:
        dismiss(everyone)
    report(work, speeds)


def report(work: Workload, speeds: dict[str, list[float]]) -> None:
    """Samples per second, and the ratio to the loop that each is compared with."""
    print(f"\n{work.title}; {work.per_round} a round, batch {work.batch}, one epoch")
    for name, values in speeds.items():
        other = "one loop by hand" if name in ("one loop by hand", "accord, process") else "two loops by hand"
        ratios = [a / b for a, b in zip(values, speeds[other], strict=True)]
        low, median, high = statistics.quantiles(ratios, n=4)
        print(f"  {name:32} {statistics.median(values):9,.0f} samples/s   {median:.3f} of {other} (half of them {low:.2f} to {high:.2f})")


def overhead(work: Workload) -> None:
    """What evaluation every ten rounds, checkpoints and the selection of clients cost in a whole run."""
    rounds = 20 * work.rounds
    spent: dict[str, float] = {}

    def clocked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **named)
            finally:
                spent[name] = spent.get(name, 0.0) + time.perf_counter() - started

        return call

    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch("accord.run.evaluate", clocked("evaluation", accord.run.evaluate)),
        mock.patch("accord.server.choose", clocked("selection", accord.server.choose)),
        mock.patch.object(Run, "save", clocked("checkpoints", Run.save)),
    ):
        this = Run.open(work.experiment(rounds), Path(folder))
        with open_engine("process", this.module, this.federation, workers=1) as engine:
            started = time.perf_counter()
            this.go(engine, lambda line: None)
            whole = time.perf_counter() - started
    shares = ", ".join(f"{name} {100 * seconds / whole:.1f} %" for name, seconds in spent.items())
    print(f"  a run of {rounds} rounds spends {100 * sum(spent.values()) / whole:.1f} % of its time on {shares}")


def main() -> None:
    """Run the workloads named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(WORKLOADS), help=" ".join(WORKLOADS))
    parser.add_argument("--repeats", type=int, help="turns of each contestant, instead of what each workload says")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread a process, medians of interleaved turns")
    for name in asked.names:
        contest(WORKLOADS[name], asked.repeats or WORKLOADS[name].repeats)
        overhead(WORKLOADS[name])


if __name__ == "__main__":
    main()
