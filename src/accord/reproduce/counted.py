"""Numbers of an experiment that are counted on its model: no run is needed."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import torch

from accord.cost import cost
from accord.data.read import read_data
from accord.experiment import Experiment, model_for
from accord.recipe import named, read
from accord.reproduce.measures import Measure


@named
class Passes(Measure):
    """The work of a local step in units of FedAvg's, a backward pass counting as two forward ones (FedSOL, Table 5)."""

    unit: ClassVar[str] = "x FedAvg"
    trained: ClassVar[bool] = False

    def known(self, experiment: Experiment) -> float:
        return passes(experiment)


@cache
def passes(experiment: Experiment) -> float:
    """(F + 2 B) / 3, with the forward and backward passes of a step that `accord.cost` counts on the experiment's own model.

    >>> [round(passes(Experiment(algorithm=text, data="mnist", model="mlp")), 2) for text in ("fedsam", "fedntd")]
    [2.0, 1.33]
    """
    facts = read_data(experiment.data).facts
    if facts is None:
        raise ValueError(f"nothing is known of {experiment.data!r} before it is read: count on one of the named data sets")
    text = experiment.model if experiment.model != "auto" else model_for(facts.shape)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        module = read(text, "model").build(facts.shape, facts.classes)
        batch = torch.randn(2, *facts.shape), torch.arange(2) % facts.classes
    found = cost(experiment.recipe(), module, batch)
    return (found.forwards + 2 * found.backwards) / 3
