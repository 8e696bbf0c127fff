"""What one local step of each algorithm costs beside FedAvg's, on ResNet-18, and what the algebra of its parts costs alone.

The second table is measured on a model with ResNet-18's 11 million parameters whose forward and backward passes do nothing, so that
only the reading and writing of long vectors remains. In every repeat each algorithm takes its steps right beside as many of FedAvg's,
on one thread. The figures are medians over repeats of processor time, of differences and of ratios within a pair.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

import accord
from accord.client import first_down
from accord.flat import Flat

# the text of an algorithm, and the most that a step may cost in units of FedAvg's
LIMITS: dict[str, float] = {
    "fedconst": 1.10,
    "fedavg + constrain(order=joint)": 1.10,
    "scaffold": 1.05,
    "feddyn": 1.05,
    "fedsol": 1.40,
    "fedsam": 2.05,
    "fedalign": 1.15,
}


class Idle(nn.Module):
    """The parameters of another model, and an answer that reads one number of its last."""

    def __init__(self, of: nn.Module) -> None:
        nn.Module.__init__(self)
        self.of = of

    @property
    def head_name(self) -> str:
        """The head of the model itself."""
        return f"of.{Flat(self.of).layout.head}"

    def forward(self, x: Tensor) -> Tensor:
        last = list(self.of.parameters())[-1]
        return x.new_zeros(len(x), 10) + last.view(-1)[0]


def stepper(model: Flat, text: str, batch: accord.Batch) -> Callable[[int], float]:
    """A client of this algorithm in the middle of its round; each call takes so many steps and says how long one took."""
    algorithm, w0 = accord.read(text) + accord.sgd(lr=1e-5), model.w.clone()
    client = accord.Client(algorithm, model, w0, down=first_down(algorithm, w0), kept={}, rng=torch.Generator, samples=len(batch.y))
    client.begin()

    def go(steps: int) -> float:
        fresh = [accord.Batch(batch.x.clone(), batch.y) for _ in range(steps)]  # what another model says of a batch is remembered
        started = time.process_time()
        client.run(fresh)
        return (time.process_time() - started) / steps

    return go


def turns(model: Flat, texts: Sequence[str], batch: accord.Batch, repeats: int, steps: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds a step of each algorithm and of FedAvg right beside it, in each repeat, taking turns at going first."""
    plain, others = stepper(model, "fedavg", batch), {text: stepper(model, text, batch) for text in texts}
    found: dict[str, list[tuple[float, float]]] = {text: [] for text in texts}
    for go in (plain, *others.values()):
        go(2)
    for k in range(repeats):
        for text, go in others.items():
            if k % 2:
                mine, its = go(steps), plain(steps)
            else:
                its, mine = plain(steps), go(steps)
            found[text].append((mine, its))
    return found


def report(title: str, found: dict[str, list[tuple[float, float]]], limits: bool) -> None:
    """The time of a step, what it has more than FedAvg's, and its ratio to that with the limit it is held to."""
    print(f"\n{title}")
    print(f"  {'fedavg':34} {1e6 * statistics.median(its for pairs in found.values() for _, its in pairs):11,.0f} us")
    for text, pairs in found.items():
        ratios = [mine / its for mine, its in pairs]
        ratio, more = statistics.median(ratios), statistics.median(mine - its for mine, its in pairs)
        held = f"   at most {LIMITS[text]:.2f}: {'yes' if ratio <= LIMITS[text] else 'NO'}" if limits and text in LIMITS else ""
        mine = statistics.median(mine for mine, _ in pairs)
        print(f"  {text:34} {1e6 * mine:11,.0f} us   {1e6 * more:+11,.0f} us   {ratio:.3f} ({min(ratios):.2f} to {max(ratios):.2f}){held}")


def main() -> None:
    """Measure the algorithms named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="*", default=["fedprox", *LIMITS], help="texts of algorithms, by default " + ", ".join(LIMITS))
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--only", choices=("steps", "algebra"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, medians of {asked.repeats} interleaved repeats, processor time")
    x, y = torch.randn(asked.batch, 3, 32, 32), torch.arange(asked.batch) % 10
    build = accord.read("resnet18", "model").build
    if asked.only != "steps":
        idle = Flat(Idle(build((3, 32, 32), 10)))
        light = [text for text in asked.texts if text != "fedalign"]  # which needs the answers of the stages
        found = turns(idle, light, accord.Batch(x, y), asked.repeats, 5)
        report(f"(a) the algebra alone, {idle.layout.size:,} parameters", found, limits=False)
    if asked.only != "algebra":
        model = Flat(build((3, 32, 32), 10))
        found = turns(model, asked.texts, accord.Batch(x, y), asked.repeats, 1)
        report(f"(b) one step on ResNet-18, batch {asked.batch} of 3x32x32", found, limits=True)


if __name__ == "__main__":
    main()
