"""One experiment from its settings to its results, in a folder that says everything about it and from which it can go on."""

from __future__ import annotations

import json
import math
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn

from accord.checkpoint import Checkpoint, damaged, write_atomically
from accord.cohort import Cohort, Diverged
from accord.data.federation import Federation
from accord.data.read import read_data, read_split
from accord.engines import Engine, open_engine
from accord.evaluation import evaluate, knowledge
from accord.experiment import Experiment, device_of, read_file
from accord.flat import Flat, digest
from accord.recipe import brief, read
from accord.server import Server, rounds
from accord.sinks import Notes, opened, require
from accord.store import Store
from accord.track import Watch, drift_of

Progress = Callable[[dict[str, Any]], None]
TRACKED = "tracked"  # where other programs' files of the run go


@dataclass
class Run:
    """An experiment under way: its data, model, server and clients' states, and what was spent so far."""

    experiment: Experiment
    out: Path
    federation: Federation
    module: nn.Module
    server: Server
    store: Store
    checkpoint: Checkpoint
    spent: dict[str, Any] = field(default_factory=lambda: {"seconds": 0.0, "bytes_up": 0, "bytes_down": 0, "lines": 0, "rejected": 0})
    last: dict[str, Any] = field(default_factory=dict)  # the newest evaluation
    known: bool = False  # whether the folder already held this very experiment

    @classmethod
    def open(cls, experiment: Experiment, out: Path) -> Run:
        """A run at its start, or where its folder can take it up."""
        asked, federation = experiment, experiment.federation()
        experiment = asked.resolved(federation)
        device_of(experiment.device)
        if "knowledge" in experiment.track and not len(federation.test):
            raise ValueError("track knowledge tests clients' models on the global test set, and these data have none: leave it out")
        require(experiment.track)
        module = experiment.module(federation)
        algorithm = experiment.recipe()
        make(out)
        begun = _begun(out)
        known = begun is not None and (asked.same_as(begun) or experiment.same_as(begun))
        server = Server.start(algorithm, module)
        store = Store(algorithm.keys, out / "checkpoint" / "clients", int(experiment.state_memory * 2**20))
        return cls(experiment, out, federation, module, server, store, Checkpoint(out / "checkpoint"), known=known)

    def begin(self) -> None:
        """Forget what the folder holds of an earlier run, and note what is known of this one; killed in between, it holds no run."""
        for name in ("experiment.toml", "result.json", "model.safetensors", "checkpoint/checkpoint.json", "rounds.jsonl"):
            (self.out / name).unlink(missing_ok=True)
        for name in ("checkpoint", "analysis", TRACKED):
            shutil.rmtree(self.out / name, ignore_errors=True)
        write_atomically(self.out / "environment.json", json.dumps(environment(), indent=1))
        write_atomically(self.out / "federation.json", json.dumps(described(self.federation)))
        write_atomically(self.out / "experiment.toml", self.experiment.toml())

    def restore(self) -> None:
        """Go on from the folder's checkpoint, if there is one; lines written after it are taken back."""
        notes = self.checkpoint.load(self.server, self.store)
        if notes is not None:
            try:
                self.spent, self.last = {key: notes["spent"][key] + 0 for key in self.spent}, dict(notes["last"])
                then = Experiment.of(notes["experiment"], str(self.checkpoint.manifest))
            except (LookupError, TypeError, AttributeError) as error:
                raise damaged(self.checkpoint.folder, error) from None
            if not self.experiment.same_as(then):
                now, before = self.experiment.settings(), then.settings()
                changed = ", ".join(key for key in sorted(now | before) if now.get(key) != before.get(key))
                raise ValueError(
                    f"{self.out / 'experiment.toml'} was changed since the checkpoint beside it ({changed}): "
                    "change it back, or run it into another folder"
                )
        log = self.out / "rounds.jsonl"
        if log.exists() and log.stat().st_size > self.spent["lines"]:
            os.truncate(log, self.spent["lines"])

    def header(self) -> dict[str, Any]:
        """What a reader should know before the numbers."""
        parameters = sum(p.numel() for p in self.module.parameters())
        sizes = self.federation.clients.sizes[: self.federation.population]
        algorithm, policy = self.server.algorithm, self.server.algorithm.buffers.policy
        data, split, model = read_data(self.experiment.data), read_split(self.experiment.split), read(self.experiment.model, "model")
        return {
            "algorithm": brief(algorithm),
            "local work": str(algorithm.rule),
            "data": f"{brief(data)}, {len(self.federation.train)} training and {len(self.federation.test)} test samples",
            "clients": f"{self.federation.population}, {int(sizes.min())} to {int(sizes.max())} samples each",
            "split": f"{brief(split)}, heterogeneity {_known(self.federation)}, fingerprint {self.federation.fingerprint}",
            "model": f"{brief(model)}, {parameters:,} parameters",
            "statistics": f"{policy} ({self.server.b.numel()} numbers)" if self.server.b.numel() else "none (no BatchNorm)",
        }

    def go(self, engine: Engine, progress: Progress) -> dict[str, Any]:
        """Run what is left of the rounds and write the result."""
        e = self.experiment
        clock = time.perf_counter() - self.spent["seconds"]
        todo = rounds(
            self.server.algorithm,
            self.module,
            self.federation,
            rounds=e.rounds,
            seed=e.seed,
            engine=engine,
            server=self.server,
            store=self.store,
            dropout=e.dropout,
            watch=Watch(local="drift" in e.track) if {"drift", "knowledge"} & {*e.track} else None,
        )
        notes = Notes(self.out / TRACKED, e.name, e.settings(), done=self.server.round)
        with (self.out / "rounds.jsonl").open("a", encoding="utf-8") as log, opened(e.track, notes) as sinks:
            started = clock + self.spent["seconds"]
            stopped = ""
            try:
                for cohort in todo:
                    line = self._line(cohort, engine, time.perf_counter() - started)
                    self.spent["lines"] += log.write(json.dumps(line) + "\n")
                    log.flush()
                    sinks.write(line)
                    self.spent["seconds"] = time.perf_counter() - clock
                    progress({"round": self.server.round, "rounds": e.rounds, "engine": engine.name, **line})
                    if self.checkpoint.due:
                        self.save()
                    started = time.perf_counter()
            except Diverged as end:
                stopped, self.last = str(end), self._evaluated(engine)
            sinks.result = self._finish(engine, stopped)
        return sinks.result

    def save(self) -> None:
        """Write a checkpoint now."""
        self.checkpoint.save(self.server, self.store, {"spent": self.spent, "last": self.last, "experiment": self.experiment.settings()})

    def _line(self, cohort: Cohort, engine: Engine, seconds: float) -> dict[str, Any]:
        """The record of one round."""
        loss = cohort.loss
        line: dict[str, Any] = {
            "round": self.server.round,
            "clients": cohort.accepted,
            "absent": cohort.absent,
            "rejected": [{"client": k, "reason": why} for k, why in cohort.rejected.items()],
            "loss": loss if math.isfinite(loss) else None,
            "bytes_down": cohort.bytes_down,
            "bytes_up": cohort.bytes_up,
            "seconds": round(seconds, 4),
        }
        self.spent["bytes_down"] += cohort.bytes_down
        self.spent["bytes_up"] += cohort.bytes_up
        self.spent["rejected"] += len(cohort.rejected)
        left = self.experiment.rounds - self.server.round
        if self.server.round % self.experiment.evaluate_every == 0 or left < max(1, self.experiment.evaluate_last):
            line["evaluation"] = self.last = self._evaluated(engine)
            if "knowledge" in self.experiment.track and cohort.replies:
                line["knowledge"] = knowledge(cohort, self.federation, engine)
        if "drift" in self.experiment.track and cohort.replies:
            line["drift"] = drift_of(cohort, self.layers)
        return line

    def _evaluated(self, engine: Engine) -> dict[str, Any]:
        """What there is to say of the model after this round."""
        return evaluate(
            self.server,
            self.federation,
            engine,
            kept=self.store.get,
            seed=self.experiment.seed,
            personal=self._personal and self.server.round == self.experiment.rounds,
            kinds=self.experiment.evaluate,
        )

    @property
    def layers(self) -> list[str]:
        """The names of the tensors that the weights are made of."""
        return [name for name, parameter in self.module.named_parameters() if parameter.requires_grad]

    @property
    def _personal(self) -> bool:
        return self.server.algorithm.personal != type(self.server.algorithm)(()).personal

    def _finish(self, engine: Engine, stopped: str) -> dict[str, Any]:
        """Write the model and the result; `stopped` says why a run that diverged ends with the model of the round before."""
        flat = Flat(self.module)
        flat.load(self.server.w, self.server.b)
        tensors = flat.state_dict()
        save_file(tensors, self.out / "model.safetensors")
        self.save()
        result = {
            "algorithm": self.experiment.name,
            "recipe": self.experiment.algorithm,
            "digest": digest(tensors),
            "accuracy": accuracy(self.last),
            "rounds": self.server.round,
            "seconds": round(self.spent["seconds"], 3),
            "bytes_up": self.spent["bytes_up"],
            "bytes_down": self.spent["bytes_down"],
            "out": str(self.out),
            "evaluation": self.last,
            "rejected": self.spent["rejected"],
            "parameters": sum(p.numel() for p in self.module.parameters()),
            "fingerprint": self.federation.fingerprint,
            "heterogeneity": _number(self.federation.heterogeneity),
            "engine": engine.name,
            "header": self.header(),
            **({"stopped": stopped} if stopped else {}),
        }
        write_atomically(self.out / "result.json", json.dumps(result, indent=1))
        return result


def run(
    experiment: Experiment,
    out: Path,
    *,
    keep: bool = False,
    progress: Progress = lambda line: None,
    began: Callable[[Run], None] = lambda run: None,
) -> dict[str, Any]:
    """Run an experiment into a folder. With `keep`, what the folder already holds of this very experiment is continued or returned.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result = run(Experiment(rounds=2, engine="process"), Path(folder))
    >>> result["rounds"], len(result["digest"])
    (2, 64)
    """
    this = Run.open(experiment, out)
    if not (keep and this.known):
        this.begin()
    this.restore()
    done = finished(out) if (out / "result.json").is_file() else None
    began(this)
    if done is not None:
        return done
    e = this.experiment
    with open_engine(
        e.engine, this.module, this.federation, workers=e.workers, device=e.device, rounds=e.rounds, address=e.address
    ) as engine:
        return this.go(engine, progress)


def resume(out: Path, *, progress: Progress = lambda line: None, began: Callable[[Run], None] = lambda run: None) -> dict[str, Any]:
    """Finish the run in a folder; a finished one is only read."""
    if not (out / "experiment.toml").is_file():
        raise ValueError(f"{str(out)!r} holds no run: there is no experiment.toml in it")
    experiment = Experiment.of(read_file(out / "experiment.toml"), str(out / "experiment.toml"))
    return run(experiment, out, keep=True, progress=progress, began=began)


def finished(out: Path) -> dict[str, Any]:
    """The result of a finished run."""
    path = out / "result.json"
    try:
        result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        wanted = ("algorithm", "digest", "accuracy", "rounds", "seconds", "bytes_up", "bytes_down", "evaluation", "rejected", "engine")
        missing = [key for key in wanted if key not in result]
        if not isinstance(result, dict) or missing:
            raise ValueError(f"there is no {missing[0]}")
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): remove it, and `accord resume {out}` writes it again") from None
    return result | {"out": str(out)}


def make(out: Path) -> None:
    """Make a folder for results, unless it is there."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        reason = "" if os.access(out, os.W_OK | os.X_OK) else "no permission to write in it"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise ValueError(f"cannot put results into {str(out)!r} ({reason}): choose another folder with --out")


def _begun(out: Path) -> Experiment | None:
    """The experiment that a folder holds, if it holds one that can be read."""
    try:
        return Experiment.of(read_file(out / "experiment.toml"))
    except ValueError:
        return None


def accuracy(evaluation: dict[str, Any]) -> float | None:
    """The headline of an evaluation: global accuracy, or the mean over clients where there is no global test set."""
    if "global" in evaluation:
        return float(evaluation["global"]["accuracy"])
    return next((float(evaluation[kind]["mean"]) for kind in ("local", "new") if kind in evaluation), None)


def described(federation: Federation) -> dict[str, Any]:
    """The split in numbers."""
    return {
        "counts": federation.label_counts.tolist() if len(federation.clients) <= 1000 else [],
        "population": federation.population,
        "classes": federation.classes,
        "fingerprint": federation.fingerprint,
        "heterogeneity": _number(federation.heterogeneity),
        "data": str(federation.about.get("data", "")),
        "split": str(federation.about.get("split", "")),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _known(federation: Federation) -> str:
    """The heterogeneity, where the clients' labels can be seen."""
    return f"{federation.heterogeneity:.3f}" if math.isfinite(federation.heterogeneity) else "not known"


def environment() -> dict[str, Any]:
    """What this ran on."""
    packages = ("accord", "torch", "numpy", "scipy", "scikit-learn", "safetensors", "datasets")
    versions = {}
    for package in packages:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "platform": platform.platform(), "cpu": cpu(), "cores": os.cpu_count(), **versions}


def cpu() -> str:
    """The processor's own name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
