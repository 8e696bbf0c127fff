"""The server's side of a federation: the experiment, run over whoever is connected, checkpointed after each round."""

from __future__ import annotations

import fcntl
import json
import math
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.serverapp import Grid
from torch import Tensor

from accord.checkpoint import Checkpoint, write_atomically
from accord.data.federation import Federation
from accord.data.pool import Pool
from accord.data.read import read_data
from accord.data.shards import Shards
from accord.engines.process import Process
from accord.experiment import Experiment
from accord.flower.engine import ACCEPTED, Sites
from accord.flower.roster import Roster
from accord.recipe import brief
from accord.run import Run, accuracy, finished, make
from accord.server import Server
from accord.store import Store

POLL = 0.3  # seconds between two looks at what has come
_DEAL = ("split_seed", "local_test", "aligned_test", "held_out", "data_fraction")


@dataclass(frozen=True, eq=False)
class Unseen(Federation):
    """A federation whose samples are elsewhere: how many each client has is known, and nothing else of them."""

    @property
    def label_counts(self) -> Tensor:
        return torch.zeros(len(self.clients), self.classes, dtype=torch.long)

    @cached_property
    def heterogeneity(self) -> float:
        return math.nan


class EachRound(Checkpoint):
    """A checkpoint after each round, whatever it costs."""

    due = True


@dataclass
class Log:
    """Lines for whoever watches the server."""

    file: Path

    def say(self, line: str) -> None:
        """One more line."""
        with self.file.open("a", encoding="utf-8") as log:
            log.write(line + "\n")


def unseen(experiment: Experiment, roster: Roster, own: bool) -> Unseen:
    """The federation as the server sees it: its own test set, if it has data, and the sites' sizes."""
    seats = {seat.client: seat for seat in roster.sites.values()}
    if own:
        loaded = read_data(experiment.data).load(Path(experiment.data_dir) if experiment.data_dir else None)
        test, classes = loaded.test(), loaded.classes
    else:
        shape = next(iter(seats.values())).shape
        stored = (*shape[1:], shape[0]) if len(shape) == 3 else tuple(shape)
        test = Pool(torch.empty(0, *stored), torch.empty(0, dtype=torch.long))
        classes = max(seat.classes for seat in seats.values())
    sizes = [[seats[k].samples if k in seats else 0 for k in range(roster.clients)]]
    sizes.append([seats[k].tests if k in seats else 0 for k in range(roster.clients)])
    shards = [Shards(torch.zeros(sum(each), dtype=torch.long), torch.tensor([0, *each]).cumsum(0)) for each in sizes]
    none = Pool(test.x[:0], test.y[:0])
    about = {"data": experiment.data, "split": experiment.split}
    return Unseen(none, shards[0], roster.clients, classes, test, none, shards[1], about)


def serve(grid: Grid, context: Context) -> None:
    """Play the experiment's rounds over the sites; the state folder holds everything to go on from."""
    settings: Mapping[str, Any] = context.run_config
    experiment = Experiment.of(tomllib.loads(str(settings["experiment"])), "the experiment")
    out = Path(str(settings["state"])).expanduser()
    make(out)
    log = Log(out / "server.log")
    with (out / "playing.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two servers never play the rounds of one folder
        try:
            play(grid, experiment, out, settings, log)
        except ValueError as error:
            write_atomically(out / "outcome.json", json.dumps({"failed": str(error)}))
            raise
        except Exception as error:
            log.say(f"failed: {type(error).__name__}: {error}")
            raise
        write_atomically(out / "outcome.json", json.dumps(finished(out)))


def play(grid: Grid, experiment: Experiment, out: Path, settings: Mapping[str, Any], log: Log) -> None:
    """The rounds, by the library's own loop."""
    clients = experiment.clients
    if not clients:
        raise ValueError("a federation of sites has as many clients as sites: write clients = 3, or how many there are")
    deal = {key: getattr(experiment, key) for key in _DEAL}
    roster = Roster(out / "roster.json", clients, deal, log.say)
    least, timeout, own = int(settings["min-clients"]) or clients, float(settings["round-timeout"]), bool(settings["test-here"])
    roster.wait(grid, least, POLL)
    federation = unseen(experiment, roster, own)
    experiment = experiment.resolved(federation)
    module, algorithm = experiment.module(federation), experiment.recipe()
    store = Store((ACCEPTED,), out / "checkpoint" / "clients", int(experiment.state_memory * 2**20))
    this = Run(experiment, out, federation, module, Server.start(algorithm, module), store, EachRound(out / "checkpoint"))
    if not (out / "experiment.toml").is_file():
        this.begin()
    this.restore()
    if (out / "result.json").is_file():
        return
    log.say(f"{brief(algorithm)}; {algorithm.rule}; round {this.server.round} of {experiment.rounds} done")
    engine = Sites(
        grid, roster, Process(module, federation, device=experiment.device), experiment.model, timeout=timeout, least=least, poll=POLL
    )
    engine.like(algorithm)  # a recipe that does not fit the model is noticed before anyone is asked
    with engine:
        this.go(engine, Teller(log, roster, engine).round)


class Teller:
    """What the server says after each round: who answered, how good the model is, what travelled and how long it will take."""

    def __init__(self, log: Log, roster: Roster, engine: Sites) -> None:
        self.log, self.roster, self.engine = log, roster, engine
        self.began, self.rounds = time.monotonic(), 0

    def round(self, line: Mapping[str, Any]) -> None:
        """One round is over."""
        self.rounds += 1
        left = (time.monotonic() - self.began) / self.rounds * (line["rounds"] - line["round"])
        found = accuracy(line["evaluation"]) if "evaluation" in line else None
        said = [
            f"round {line['round']} of {line['rounds']}",
            f"answers from {', '.join(map(self.roster.name, line['clients'])) or 'nobody'}",
        ]
        said += [] if found is None else [f"accuracy {100 * found:.2f} %"]
        said += [f"{name} {sent / 1e6:.2f} MB" for name, sent in self.engine.bytes.items()]
        self.log.say(", ".join([*said, f"{line['seconds']:.1f} s, about {left:.0f} s left"]))
        for each in line["rejected"]:
            self.log.say(f"  {self.roster.name(each['client'])} left out: it {each['reason']}")
        for kind in ("local", "personal"):
            if kind in line.get("evaluation", {}):
                mean, worst = (100 * line["evaluation"][kind][key] for key in ("mean", "worst"))
                self.log.say(f"  {kind} test: mean over sites {mean:.2f} %, worst {worst:.2f} %")
