"""What one local step of each algorithm costs beside FedAvg's, on ResNet-18, and what the algebra of its parts costs alone.

The second table is measured on a model with ResNet-18's 11 million parameters whose forward and backward passes do nothing, so that
only the reading and writing of long vectors remains. Algorithms take turns within each repeat, all on one thread; the figures are
medians over repeats, and ratios within one repeat.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

import accord
from accord.client import first_down
from accord.flat import Flat

# the text of an algorithm, and the most that a step may cost in units of FedAvg's
LIMITS: dict[str, float | None] = {
    "fedavg": None,
    "fedprox": None,
    "fedconst": 1.10,
    "fedavg + constrain(order=joint)": 1.10,
    "scaffold": 1.05,
    "feddyn": 1.05,
    "fedsol": 1.40,
    "fedsam": 2.05,
    "fedalign": 1.15,
}
_T = TypeVar("_T")


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
    algorithm = accord.read(text) + accord.sgd(lr=0.001)
    w0 = model.w.clone()

    def go(steps: int) -> float:
        model.load(w0)
        client = accord.Client(algorithm, model, w0, down=first_down(algorithm, w0), kept={}, rng=torch.Generator, samples=len(batch.y))
        client.begin()
        client.run([batch])
        started = time.perf_counter()
        client.run([batch] * steps)
        return (time.perf_counter() - started) / steps

    return go


def turns(model: Flat, texts: Sequence[str], batch: accord.Batch, repeats: int, steps: int) -> dict[str, list[float]]:
    """Seconds a step of each algorithm, in each repeat; the first repeat is not counted."""
    steppers = {text: stepper(model, text, batch) for text in texts}
    found: dict[str, list[float]] = {text: [] for text in texts}
    for k in range(repeats + 1):
        for text, go in steppers.items():
            seconds = go(steps if k else 1)
            if k:
                found[text].append(seconds)
    return found


def report(title: str, found: dict[str, list[float]], unit: str, scale: float, limits: bool) -> None:
    """The time of a step and its ratio to FedAvg's, with the limit it is held to."""
    print(f"\n{title}")
    for text, values in found.items():
        ratios = [a / b for a, b in zip(values, found["fedavg"], strict=True)]
        ratio, most = statistics.median(ratios), LIMITS[text] if limits else None
        held = "" if most is None else f"   at most {most:.2f}: {'yes' if ratio <= most else 'NO'}"
        time_of = f"{statistics.median(values) * scale:9,.1f} {unit}"
        print(f"  {text:34} {time_of}   {ratio:.3f} of fedavg ({min(ratios):.2f} to {max(ratios):.2f}){held}")


def main() -> None:
    """Measure the algorithms named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("texts", nargs="*", default=list(LIMITS), help="texts of algorithms, of " + ", ".join(LIMITS))
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", choices=("steps", "algebra"))
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} thread, medians of {asked.repeats} interleaved repeats")
    texts = ["fedavg", *(t for t in asked.texts if t != "fedavg")]
    x, y = torch.randn(asked.batch, 3, 32, 32), torch.arange(asked.batch) % 10
    module = accord.read("resnet18", "model").build((3, 32, 32), 10)
    if asked.only != "steps":
        idle = Flat(Idle(module))
        light = [t for t in texts if t != "fedalign"]  # which needs the answers of the stages
        found = turns(idle, light, accord.Batch(x, y), asked.repeats, 5)
        report(f"(a) the algebra alone, {idle.layout.size:,} parameters", found, "ms", 1e3, limits=False)
    if asked.only != "algebra":
        module = accord.read("resnet18", "model").build((3, 32, 32), 10)
        found = turns(Flat(module), texts, accord.Batch(x, y), asked.repeats, 1)
        report(f"(b) one step on ResNet-18, batch {asked.batch} of 3x32x32", found, "ms", 1e3, limits=True)


if __name__ == "__main__":
    main()
