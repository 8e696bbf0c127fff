"""What a study will cost here: samples, floating-point operations, and hours by a short measurement of each model."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from accord.algorithm import Algorithm
from accord.algorithms import fedavg
from accord.client import local_round
from accord.cost import cost
from accord.data.read import read_data
from accord.data.source import Facts
from accord.experiment import Experiment, cores, model_for
from accord.recipe import read
from accord.reproduce.study import Study
from accord.rules import SGD
from accord.select import Draw

_BATCH = 8  # samples a step of the measurement
_STRENGTH = re.compile(r"\b(mu|rho|alpha|beta|tau)=(?!0\.0\b)[\d.]+")  # of a part: unless it is zero, a batch costs the same


@dataclass(frozen=True)
class Shape:
    """A model as the measurement sees it: its text and the data it reads."""

    model: str
    shape: tuple[int, ...]
    classes: int


@dataclass(frozen=True)
class Estimate:
    """The whole of a study: training samples that pass through a model, forward operations for them, and hours on all cores."""

    runs: int
    samples: float
    flops: float
    hours: float | None

    def __str__(self) -> str:
        """In words.

        >>> str(Estimate(3, 2e6, 4e13, 0.25))
        '3 runs, 2e+06 samples, 4e+13 FLOPs, 0.25 hours'
        """
        hours = "" if self.hours is None else f", {self.hours:.2g} hours"
        return f"{self.runs} run{'s' * (self.runs != 1)}, {self.samples:.3g} samples, {self.flops:.3g} FLOPs{hours}"


def facts_of(experiment: Experiment) -> Facts | None:
    """What is known of an experiment's data without reading them."""
    return read_data(experiment.data).facts


def shape_of(experiment: Experiment, facts: Facts) -> Shape:
    """The model of an experiment and what it reads."""
    return Shape(experiment.model if experiment.model != "auto" else model_for(facts.shape), facts.shape, facts.classes)


def work(experiment: Experiment, facts: Facts) -> float:
    """How many training samples pass through the model in a whole run, each counted as often as the algorithm's passes cost."""
    algorithm = experiment.recipe()
    population = experiment.clients or facts.clients or 1
    sizes = torch.full((population,), facts.train * experiment.data_fraction * (1 - experiment.local_test) / population)
    if algorithm.stays and any(part.name == "gather" for part in algorithm.parts):
        chosen, size = 1.0, float(sizes.sum())
    else:
        draw = Draw(population, sizes, np.random.default_rng(0), lambda clients: [0.0] * len(clients))
        chosen, size = float(len(algorithm.select.choose(draw))), float(sizes[0])
    rule = algorithm.rule
    a_round = rule.epochs * size if rule.steps is None else (rule.steps if isinstance(rule.steps, int) else 1) * rule.batch
    return experiment.rounds * chosen * a_round * passes(_STRENGTH.sub(r"\1=1.0", repr(Algorithm(algorithm.parts))))


@cache
def passes(text: str) -> float:
    """What a batch costs, in units of one forward and one backward pass, where a backward pass is twice a forward one."""
    try:
        found = cost(text)
    except ValueError:  # a part that the small model of the measurement cannot serve
        return 1.0
    return (found.forwards + 2 * found.backwards) / 3


@cache
def forward_flops(shape: Shape) -> float:
    """Forward operations for one sample."""
    with torch.device("meta"):
        module = read(shape.model, "model").build(shape.shape, shape.classes).eval()
        with FlopCounterMode(display=False) as counted, torch.no_grad():
            module(torch.zeros(1, *shape.shape))
    return float(counted.get_total_flops())


def pace(shape: Shape, seconds: float) -> float:
    """Seconds for one sample of training here, on one thread, measured for about so long."""
    module = read(shape.model, "model").build(shape.shape, shape.classes)
    batch = (torch.randn(_BATCH, *shape.shape), torch.arange(_BATCH) % shape.classes)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        best, began = float("inf"), time.perf_counter()
        while time.perf_counter() - began < seconds or best == float("inf"):
            started = time.perf_counter()
            local_round(fedavg() + SGD(lr=1e-3), module, [batch] * 2)
            best = min(best, (time.perf_counter() - started) / (2 * _BATCH))
    finally:
        torch.set_num_threads(threads)
    return best


def calibrate(shapes: Iterable[Shape], seconds: float = 10.0) -> dict[Shape, float]:
    """The pace of each model, all of them measured in about so many seconds; models with as many operations have the same one."""
    alike: dict[tuple[float, tuple[int, ...]], list[Shape]] = {}
    for shape in sorted(set(shapes), key=str):
        alike.setdefault((forward_flops(shape), shape.shape), []).append(shape)
    paces: dict[Shape, float] = {}
    for same in alike.values():
        paces |= dict.fromkeys(same, pace(same[0], seconds / len(alike)))
    return paces


def estimate(study: Study, paces: Mapping[Shape, float]) -> Estimate | None:
    """The cost of a study as in the paper; None where nothing is known of its data. Cells that share a run count it once."""
    every = {cell.experiment: facts for cell in study.trained if (facts := facts_of(cell.experiment)) is not None}
    if not every and study.trained:
        return None
    samples = flops = seconds = 0.0
    known = True
    for experiment, facts in every.items():
        shape = shape_of(experiment, facts)
        mine = study.seeds * work(experiment, facts)
        samples, flops = samples + mine, flops + mine * forward_flops(shape)
        known &= shape in paces
        seconds += mine * paces.get(shape, 0.0)
    return Estimate(len(every) * study.seeds, samples, flops, seconds / cores() / 3600 if known else None)


def shapes(studies: Iterable[Study]) -> set[Shape]:
    """Every model that the studies train, with the data it reads."""
    every = (cell.experiment for study in studies for cell in study.trained)
    return {shape_of(each, facts) for each in every if (facts := facts_of(each)) is not None}
