"""One site: its data, what it accepts, and its answer to what a server asks. Only names, arrays and plain values come in and go out."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from flwr.app import ConfigRecord, Context, RecordDict
from torch import Tensor, nn

from accord.algorithm import Algorithm
from accord.cohort import Reply
from accord.data.build import federate
from accord.data.federation import Federation
from accord.data.read import read_data, read_split
from accord.data.shards import Shards
from accord.experiment import Experiment
from accord.flat import Flat
from accord.flower.ledger import Ledger
from accord.flower.privacy import Privacy
from accord.flower.wire import PROTOCOL, config, listing, pack, parted, plain, states, unpack, value
from accord.jobs import Evaluate, Job, Train, Worker
from accord.pieces import use
from accord.recipe import brief, read

SINGLE = "single-example"  # what `allow` calls a round that touches one sample only
_KINDS = ("train", "loss", "own", "personal")


class Refused(ValueError):
    """What a site does not do, in words that the server may see."""


@dataclass(frozen=True)
class Site:
    """The settings of one site, which nobody but its owner can change."""

    name: str
    state: Path
    data: str
    split: str = ""  # with `index`: this site holds one client's part of data that are split, as in a rehearsal
    index: int = -1
    data_dir: str = ""
    device: str = "cpu"
    threads: int = 1  # as many as every engine uses, so that the digest is theirs; more may round differently
    use: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    anew: bool = False
    clip: float = 0.0
    noise: float = 0.0
    delta: float = 1e-5

    @classmethod
    def read(cls, path: Path) -> Site:
        """The settings in a file that `accord join` wrote."""
        found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        known = {f.name for f in fields(cls)}
        lists = {key: tuple(value) for key, value in found.items() if isinstance(value, list)}
        return cls(**{key: value for key, value in (found | lists | {"state": Path(found["state"])}).items() if key in known})

    def say(self, line: str) -> None:
        """A line for the site's log, which `accord join` shows."""
        self.state.mkdir(parents=True, exist_ok=True)
        with (self.state / "site.log").open("a", encoding="utf-8") as log:
            log.write(line + "\n")

    @property
    def privacy(self) -> Privacy | None:
        """The clipping and noise that this site adds, if any."""
        return Privacy(self.clip, self.noise, self.delta, self.state / "privacy.json") if self.clip else None


def here(context: Context) -> Site:
    """The settings of this node: the file that its owner names, or, in a rehearsal, its part of the experiment's data."""
    given = context.node_config
    if "site" in given:
        return Site.read(Path(str(given["site"])).expanduser())
    if "partition-id" not in given:
        raise ValueError("start this node with --node-config 'site=\"FILE.toml\"', or 'partition-id=0' for a rehearsal")
    experiment = Experiment.of(tomllib.loads(str(context.run_config["experiment"])), "the experiment")
    part, base = int(given["partition-id"]), Path(str(given.get("state", "accord-site"))).expanduser()
    return Site(f"site-{part + 1}", base / str(part), experiment.data, experiment.split, part, experiment.data_dir)


@dataclass(frozen=True, eq=False)
class Own(Federation):
    """A federation of which only one client's data are here; the mean number of samples of all is what the server says."""

    mean: float = 0.0

    @cached_property
    def mean_size(self) -> float:
        return self.mean or float(self.clients.sizes.sum())


def holdings(site: Site, deal: Mapping[str, Any], client: int, population: int, mean: float = 0.0) -> Own:
    """The site's data, filed under the client number that the server gave it."""
    if site.split:
        whole = federate(
            read_data(site.data),
            read_split(site.split),
            population,
            seed=value(deal, "split_seed", int),
            local_test=value(deal, "local_test", float),
            aligned_test=value(deal, "aligned_test", int),
            held_out=value(deal, "held_out", int),
            fraction=value(deal, "data_fraction", float),
            data_dir=site.data_dir or None,
        )
        if not 0 <= site.index < whole.population:
            raise Refused(f"was given part {site.index} of a split over {whole.population} clients: they are numbered from 0")
        train, tests = whole.clients[site.index], whole.tests[site.index]
        pool, own, classes = whole.train, whole.own, whole.classes
    else:
        loaded = read_data(site.data).load(Path(site.data_dir) if site.data_dir else None)
        pool, own, classes = loaded.train(), loaded.test(), loaded.classes
        train, tests = torch.arange(len(pool)), torch.arange(len(own))
    lists = [[list[int]()] * population for _ in range(2)]
    lists[0][client], lists[1][client] = train.tolist(), tests.tolist()
    return Own(pool, Shards.of(lists[0]), population, classes, own, own, Shards.of(lists[1]), mean=mean)


def hello(content: RecordDict, site: Site) -> RecordDict:
    """What a site says of itself: its name, and how many samples of what shape it has."""
    ask = asked(content)
    population = value(ask, "clients", int)
    here = holdings(site, ask, max(site.index, 0), max(population, site.index + 1, 1))
    about = ConfigRecord(
        {
            "name": site.name,
            "index": site.index,
            "samples": int(here.clients.sizes.sum()),
            "tests": int(here.tests.sizes.sum()),
            "classes": here.classes,
            "shape": list(here.train.shape),
            "protocol": PROTOCOL,
        }
    )
    return RecordDict({"site": about})


def asked(content: RecordDict) -> ConfigRecord:
    """What a message asks for, if it is in the language of this release."""
    found = config(content, "ask")
    if value(found, "protocol", int) != PROTOCOL:
        raise Refused(f"speaks version {PROTOCOL} of the protocol and was asked in another: use one release everywhere")
    return found


def recipe(text: str, site: Site) -> Algorithm:
    """The algorithm of a recipe, if every name in it is registered here and it sends nothing that this site has not allowed."""
    for each in site.use:
        use(each)
    try:
        found = read(text)
    except ValueError as error:
        raise Refused(f"does not accept the recipe: {error}") from None
    if not isinstance(found, Algorithm):
        raise Refused(f"does not accept {plain(text)!r}: it is no algorithm")
    for part in found.all_parts:
        if part.reveals and part.name not in site.allow:
            raise Refused(f"does not accept {part.name}, which would send {part.reveals}: its owner can join with --allow {part.name}")
    if any(part.has("trains_on") for part in found.all_parts):
        raise Refused("does not accept a recipe that trains on other clients' data")
    return found


def perform(content: RecordDict, site: Site) -> RecordDict:
    """Do what a message asks for, and say on the site's log what came and what goes."""
    ask = asked(content)
    kind, client = value(ask, "kind", str), value(ask, "client", int)
    if kind not in _KINDS:
        raise Refused(f"does not know how to {plain(kind)!r}")
    algorithm = recipe(value(ask, "recipe", str), site)
    site.say(f"round {value(ask, 'round', int) + 1}: asked to {_TOLD[kind]}: {brief(algorithm)}")
    here = holdings(site, ask, client, value(ask, "clients", int), value(ask, "mean", float))
    if here.classes > value(ask, "classes", int):
        raise Refused("has labels for which the model has no class")
    here = replace(here, classes=value(ask, "classes", int))
    worker = Worker(build(value(ask, "model", str), here), here, site.device)
    torch.set_num_threads(site.threads)
    ledger = Ledger(site.state / "rounds" / folder(ask), algorithm.keys)
    with ledger.alone():
        tag = value(ask, "tag", int)
        kept = {} if site.anew and tag and not ledger.holds(tag) else settled(ledger, tag)
        job = instruction(content, ask, algorithm, worker.model, kind)
        answer = job.run(worker, client, kept)
        return reply(answer, job, content, site, ledger, worker.model) if isinstance(answer, Reply) else scores(answer)


def settled(ledger: Ledger, tag: int) -> dict[Hashable, dict[str, Tensor]]:
    """What this site kept, as of the round that the server counts on."""
    try:
        return ledger.settle(tag)
    except ValueError as error:
        raise Refused(str(error)) from error


_TOLD = {
    "train": "train",
    "loss": "say how well the model fits the training data",
    "own": "test the model on its own test data",
    "personal": "test its personalised model on its own test data",
}


def build(text: str, here: Federation) -> nn.Module:
    """The model that a text describes, for this site's samples."""
    try:
        module: nn.Module = read(text, "model").build(here.train.shape, here.classes)
    except ValueError as error:
        raise Refused(f"does not accept the model: {error}") from None
    return module


def folder(ask: ConfigRecord) -> str:
    """The name of the run, fit for a folder."""
    run = value(ask, "run", str)
    if not re.fullmatch(r"[0-9a-f]{16}", run):
        raise Refused("was asked in the name of a run that has no proper name")
    return run


def instruction(content: RecordDict, ask: ConfigRecord, algorithm: Algorithm, model: Flat, kind: str) -> Job:
    """The library's own job, from what a message says."""
    try:
        w = model.layout.pack(unpack(content.get("w")))
        b = model.statistics.pack(unpack(content.get("b"))) if len(model.b) else model.b.clone()
        down = parted(unpack(content.get("down")), algorithm)
    except ValueError as error:
        raise Refused(f"was sent what does not fit its model: {error}") from None
    at, seed = value(ask, "round", int), int(value(ask, "seed", str))
    if kind == "train":
        return Train(algorithm, w, b, at, seed, down)
    whose: Mapping[str, Any] = {"loss": "train", "own": "own", "personal": "personal"}
    return Evaluate(algorithm, w, b, at, seed, down, of=whose[kind])


def reply(answer: Reply, job: Job, content: RecordDict, site: Site, ledger: Ledger, model: Flat) -> RecordDict:
    """What a trained client sends: weights, statistics and what its parts send up; its state stays here and waits to be accepted."""
    if min(answer.samples, answer.steps * job.algorithm.rule.batch) == 1 and SINGLE not in site.allow:
        raise Refused(f"would send the gradient of a single example: its owner can join with --allow {SINGLE}")
    if site.privacy is not None:
        if answer.up or answer.b.numel():
            raise Refused(
                "adds noise to weights only, and this recipe sends more than weights: use one that does not, or join without --dp-clip"
            )
        answer = replace(answer, w=site.privacy.protect(answer.w, job.w, site.say), loss=float("nan"))
    return RecordDict(
        {
            "answer": ConfigRecord(
                {
                    "samples": answer.samples,
                    "steps": answer.steps,
                    "loss": answer.loss,
                    "seconds": answer.seconds,
                    "tag": ledger.propose(answer.kept),
                }
            ),
            "w": pack(model.layout.named(answer.w)),
            "b": pack(model.statistics.named(answer.b) if answer.b.numel() else {}),
            "up": pack(states(answer.up, job.algorithm)),
        }
    )


def scores(found: Any) -> RecordDict:
    """An evaluation as its aggregates: how many samples, how many right, the summed loss; nothing by class."""
    right, samples = int(found.right.sum()), found.samples
    return RecordDict({"score": ConfigRecord({"right": right, "samples": samples, "loss": float(found.loss)})})


def answered(content: RecordDict, site: Site, act: Callable[[RecordDict, Site], RecordDict]) -> RecordDict:
    """An answer, or a refusal in words; what else goes wrong is named to the server by its kind only, and in full on the site's log."""
    try:
        sent = act(content, site)
    except Refused as error:
        site.say(f"refused: {error}")
        return RecordDict({"refused": ConfigRecord({"why": str(error)})})
    except Exception as error:
        site.say(f"failed: {type(error).__name__}: {error}")
        return RecordDict({"refused": ConfigRecord({"why": f"failed ({type(error).__name__}); its log says why"})})
    for line in listing(sent):
        site.say(f"  sends {line}")
    return sent
