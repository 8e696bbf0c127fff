"""An experiment: every setting of a run, from a TOML file, flags or Python, checked and resolved."""

from __future__ import annotations

import dataclasses
import os
import tomllib
import typing
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
import torch
from torch import nn

from accord.algorithm import Algorithm
from accord.check import Count, NonNegative, Positive, Range, Whole, check, nearest
from accord.data.build import federate
from accord.data.federation import Federation
from accord.data.read import read_data, read_split
from accord.evaluation import KINDS, Kind
from accord.pieces import use
from accord.recipe import read
from accord.rules import Steps
from accord.seeds import number
from accord.select import All, Select, Uniform

EngineName = Literal["auto", "process", "threads", "processes", "ray"]
Tracked = Literal["drift", "knowledge", "tensorboard", "mlflow", "wandb"]
_RULE = {
    "lr": "lr",
    "momentum": "momentum",
    "weight_decay": "decay",
    "lr_decay": "lr_decay",
    "epochs": "epochs",
    "steps": "steps",
    "batch_size": "batch",
}
_HOW = ("engine", "workers", "address", "state_memory", "data_dir")  # what changes where and how a run is made, and no number in it
_TEXTS = {
    "algorithm": "one that `accord list algorithms` shows",
    "data": "one that `accord list data` shows",
    "split": "one that `accord list splits` shows",
    "model": "one that `accord list models` shows",
    "steps": "a number or 'uniform(5, 50)'",
    "device": "cpu, cuda, ...",
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The settings of one run; the keys of a TOML file and, with dashes, the flags of the command line.

    Keys of the local optimiser that are None are what the algorithm's text says.
    """

    algorithm: str = "fedavg"
    name: str = ""  # what tables call it; by default the text of the algorithm
    data: str = "digits"
    data_fraction: Annotated[float, Range(0, 1, above=True)] = 1.0  # of the training samples, drawn at random before they are split
    split: str = "dirichlet(0.1)"
    clients: Count | None = 20  # None: as many as the data has, for natural splits
    model: str = (
        "auto"  # an mlp for flat data and small images, the two-convolution cnn for images from 24 pixels, a recurrent net for text
    )
    rounds: Count = 60
    per_round: Whole | None = None  # None: 5, unless the recipe says who takes part; 0: as the recipe says, all if it does not
    epochs: Count | None = None
    steps: Count | str | None = None  # a number, or a draw such as "uniform(5, 50)"
    batch_size: Count | None = None
    lr: Positive | None = None
    momentum: Annotated[float, Range(0, 0.999999)] | None = None
    weight_decay: NonNegative | None = None
    lr_decay: Annotated[float, Range(0, 1, above=True)] | None = None
    dropout: Annotated[float, Range(0, 0.999999)] = 0.0
    seed: Whole = 0
    split_seed: Whole = 0
    local_test: Annotated[float, Range(0, 0.9)] = 0.0
    aligned_test: Whole = 0
    held_out: Whole = 0
    evaluate_every: Count = 1
    evaluate_last: Whole = 0  # so many rounds at the end are all evaluated, for means over them
    evaluate: tuple[Kind, ...] = KINDS  # on whose data; tuning leaves the test set out
    track: tuple[Tracked, ...] = ()  # what else to record of every round, and where else: no number of the result depends on it
    state_memory: Annotated[float, Range(0, 10**9, above=True)] = 2048.0  # megabytes of client state in memory; more goes to disk
    engine: EngineName = "auto"
    workers: Annotated[int, Range(0, 1024)] = 0  # 0: one for each core, of the cluster if there is an address
    address: str = ""  # of a Ray cluster: auto, or host:port; without it Ray starts on this machine
    device: str = "cpu"
    data_dir: str = ""
    use: tuple[str, ...] = ()  # Python files or modules with parts, models, data or splits of your own

    @classmethod
    def of(cls, settings: Mapping[str, Any], where: str = "") -> Experiment:
        """An experiment from settings by key; `where` says in errors where they come from.

        >>> Experiment.of({"lr": 0.1, "rounds": 3}).rounds
        3
        >>> Experiment.of({"round": 3})
        Traceback (most recent call last):
        ValueError: unknown key 'round' (did you mean 'rounds'?)
        """
        return cls(**checked(settings, where))

    def with_(self, settings: Mapping[str, Any], where: str = "") -> Experiment:
        """The same experiment with some settings replaced; a number of steps replaces a number of epochs, and the other way round."""
        found = checked(settings, where)
        for one, other in (("steps", "epochs"), ("epochs", "steps")):
            if found.get(one) is not None and other not in found:
                found[other] = None
        return dataclasses.replace(self, **found)

    def load_pieces(self) -> None:
        """Import the files named in `use`, so that their names can be read."""
        for each in self.use:
            use(each)

    def recipe(self) -> Algorithm:
        """The algorithm with this experiment's local optimiser and selection."""
        self.load_pieces()
        algorithm = read(self.algorithm)
        algorithm = algorithm if isinstance(algorithm, Algorithm) else Algorithm(()) + algorithm
        if not any(part.has("loss") for part in algorithm.all_parts):
            raise ValueError(f"{self.algorithm!r} has nothing to learn by: begin with an algorithm, such as 'fedavg + {self.algorithm}'")
        given = {_RULE[key]: getattr(self, key) for key in _RULE if getattr(self, key) is not None}
        if isinstance(given.get("steps"), str):
            given["steps"] = read(given["steps"], Steps.kind)
        if "epochs" in given and "steps" in given:
            raise ValueError("epochs and steps are two ways to say how long a client works: give one of them")
        if "epochs" in given:
            given["steps"] = None
        algorithm = algorithm + dataclasses.replace(algorithm.rule, **given)
        chosen: Algorithm = algorithm + self._select(algorithm.select)
        return chosen

    def _select(self, select: Select) -> Select:
        if self.per_round is None:
            return Uniform(min(5, self.clients or 5)) if select == All() else select
        if self.per_round == 0:
            return select
        return select.taking(self.per_round)

    def federation(self) -> Federation:
        """The clients' data."""
        self.load_pieces()
        return federate(
            read_data(self.data),
            read_split(self.split),
            self.clients,
            seed=self.split_seed,
            local_test=self.local_test,
            aligned_test=self.aligned_test,
            held_out=self.held_out,
            fraction=self.data_fraction,
            data_dir=self.data_dir or None,
        )

    def module(self, federation: Federation) -> nn.Module:
        """The model with its first weights, which depend on the seed only."""
        shape, text = federation.train.shape, self._model(federation)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number(self.seed, "weights"))
            module: nn.Module = read(text, "model").build(shape, federation.classes)
        return module

    def _model(self, federation: Federation) -> str:
        if self.model != "auto":
            return self.model
        return "char_rnn" if federation.train.tokens else model_for(federation.train.shape)

    def resolved(self, federation: Federation) -> Experiment:
        """The same experiment with nothing left to defaults: its file reruns it exactly, whatever the defaults become."""
        algorithm = self.recipe()
        if self.address and self.engine != "ray":
            raise ValueError(
                f"address {self.address!r} is for the engine ray, and this is {self.engine}: change the one or leave out the other"
            )
        if self.per_round is not None and self.per_round > federation.population:
            raise ValueError(f"per_round is {self.per_round}, and there are {federation.population} clients: write at most that")
        left_to_recipe: dict[str, Any] = dict.fromkeys(_RULE)
        return dataclasses.replace(
            self,
            algorithm=repr(algorithm),
            name=self.name or self.algorithm,
            data=repr(read_data(self.data)),
            split=repr(read_split(self.split)),
            clients=federation.population,
            model=repr(read(self._model(federation), "model")),
            per_round=0,
            workers=self.workers or (0 if self.address else cores()),
            **left_to_recipe,
        )

    def settings(self) -> dict[str, Any]:
        """Every key that is not None, as a file writes it: `Experiment.of` makes the same experiment of them."""
        found = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        found["clients"] = self.clients or 0
        return {key: list(value) if isinstance(value, tuple) else value for key, value in found.items() if value is not None}

    def toml(self) -> str:
        """The file that says the same."""
        return tomli_w.dumps(self.settings())

    def same_as(self, other: Experiment) -> bool:
        """Whether the two cannot but give the same result: they may differ in where and how they run."""
        return self == dataclasses.replace(other, **{key: getattr(self, key) for key in _HOW})


def checked(settings: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """Settings whose keys exist and whose values fit; for `clients`, 0 stands for None."""
    hints = typing.get_type_hints(Experiment, include_extras=True)
    place = f" in {where}" if where else ""
    found = {}
    for key, value in settings.items():
        if key not in hints:
            raise ValueError(f"unknown key {key!r}{place}{nearest(key, hints) or '; the flags of `accord run --help` are the keys'}")
        if value == 0 and value is not False and key == "clients":
            value = None
        if value == "" and key in _TEXTS:
            raise ValueError(f"{key}{place} is empty; write {_TEXTS[key]}, or leave it out")
        found[key] = check(value, hints[key], f"{key}{place}")
    return found


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"there is no file {str(path)!r}") from None
    except (IsADirectoryError, PermissionError) as error:
        raise ValueError(f"cannot read {str(path)!r}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not a TOML file: byte {error.start + 1} is not UTF-8; save it as UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not a TOML file of settings: it is nested too deeply") from None


def model_for(shape: Sequence[int]) -> str:
    """The model that `auto` stands for.

    >>> model_for((64,)), model_for((3, 32, 32)), model_for((1, 8, 8))
    ('mlp', 'cnn', 'mlp')
    """
    return "cnn" if len(shape) == 3 and min(shape[1:]) >= 24 else "mlp"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_of(name: str) -> str:
    """The device, if this machine has it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.zeros(1, device=name).sum().item()
    except Exception as error:  # PyTorch has many ways to say that a device is missing
        reason = str(error).split("\n")[0].split(". ")[0][:150]
        raise ValueError(f"device {name!r} is not there: {reason}; write cpu, or what PyTorch finds on this machine") from None
    return name
