"""What runs and comparisons left on disk, read back as they are: unfinished ones too."""

from __future__ import annotations

import dataclasses
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import tomli_w

Record: TypeAlias = Mapping[str, Any]
KEPT = ".json"  # what the name of a kept run ends with
Value = TypeVar("Value")
Round = TypeVar("Round", int, float)


@dataclass(frozen=True)
class Curve:
    """Accuracy over the evaluated rounds, with what had been spent by then."""

    rounds: tuple[int, ...]
    accuracy: tuple[float, ...]
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]

    def first(self, target: float) -> int | None:
        """The first evaluated round whose accuracy is at least the target.

        >>> Curve((5, 10), (0.4, 0.6), (0, 0), (0.0, 0.0)).first(0.5)
        10
        """
        return next((r for r, a in zip(self.rounds, self.accuracy, strict=True) if a >= target), None)


@dataclass(frozen=True)
class Run:
    """One run directory. `result` is empty while the run is unfinished.

    >>> run = Run(Path("out"), "fedavg", 0, {}, ({"round": 1, "bytes_up": 3, "evaluation": {"global": {"accuracy": 0.5}}},))
    >>> run.finished, run.curve().accuracy, run.curve().bytes
    (False, (0.5,), (3,))
    """

    path: Path
    name: str
    seed: int
    experiment: Record
    rounds: tuple[Record, ...] = ()
    result: Record = field(default_factory=dict)
    environment: Record = field(default_factory=dict)
    federation: Record = field(default_factory=dict)
    analysis: Record = field(default_factory=dict)  # what `accord analyze` found, by the names of the analyses

    @property
    def finished(self) -> bool:
        """Whether the run wrote its result."""
        return "accuracy" in self.result

    @property
    def accuracy(self) -> float | None:
        """The final accuracy; None while the run is unfinished, or when the result is not a number."""
        return number(self.result.get("accuracy"))

    @property
    def stopped(self) -> str:
        """Why the run ended before its last round, if it did: its training diverged."""
        return str(self.result.get("stopped") or "")

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the split, or an empty text."""
        return str(self.federation.get("fingerprint") or self.result.get("fingerprint") or "")

    @property
    def text(self) -> str:
        """The experiment file, to the letter; of a kept run, its settings in the same form."""
        if self.path.suffix == KEPT:
            return tomli_w.dumps(self.experiment)
        return (self.path / "experiment.toml").read_text(encoding="utf-8", errors="replace")

    def kept(self) -> Record:
        """Everything that tables and figures read of the run, as one JSON object: `read_run` reads a file of it like the run's folder."""
        rounds = [{key: row[key] for key in row if key not in ("clients", "absent")} for row in self.rounds]
        held = {key: getattr(self, key) for key in ("name", "seed", "experiment", "result", "environment", "federation", "analysis")}
        held["result"] = {key: value for key, value in self.result.items() if key != "out"}
        return {**held, "rounds": rounds, "analysis": _short(held["analysis"])}

    def evaluations(self, kind: str) -> tuple[tuple[int, Record], ...]:
        """The evaluated rounds that have this kind of evaluation: `global`, `local`, `personal` or `new`."""
        found = ((row["round"], (row.get("evaluation") or {}).get(kind)) for row in self.rounds)
        return tuple((r, e) for r, e in found if isinstance(e, Mapping))

    def curve(self, kind: str = "global") -> Curve:
        """Accuracy (`global`) or mean accuracy over clients (the other kinds) at every evaluated round."""
        points: list[tuple[int, float, int, float]] = []
        sent, spent = 0, 0.0
        for row in self.rounds:
            sent += (row.get("bytes_up") or 0) + (row.get("bytes_down") or 0)
            spent += row.get("seconds") or 0.0
            value = headline((row.get("evaluation") or {}).get(kind))
            if value is not None:
                points.append((row["round"], value, sent, spent))
        rounds, accuracy, megabytes, seconds = zip(*points, strict=True) if points else ((), (), (), ())
        return Curve(rounds, accuracy, megabytes, seconds)


@dataclass(frozen=True)
class Comparison:
    """Runs grouped by the algorithm's short name, in the order they were given; within an algorithm by seed."""

    runs: Mapping[str, tuple[Run, ...]]
    target: float | None = None
    absent: tuple[tuple[str, int], ...] = ()  # (name, seed) of runs that were planned and never began
    set_up: Record = field(default_factory=dict)

    @property
    def algorithms(self) -> tuple[str, ...]:
        """The short names, in the given order."""
        return tuple(self.runs)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Every seed that some algorithm ran with."""
        return tuple(sorted({run.seed for run in self.all_runs}))

    @property
    def all_runs(self) -> tuple[Run, ...]:
        """The runs of all algorithms, one after another."""
        return tuple(run for runs in self.runs.values() for run in runs)

    @property
    def kind(self) -> str:
        """The kind of evaluation that the curves show: `global` where the runs have it."""
        kinds = ("global", "personal", "local", "new")
        return next((k for k in kinds if any(run.evaluations(k) for run in self.all_runs)), "global")

    def shown(self, name: str) -> tuple[Run, ...]:
        """The runs that stand for an algorithm in a figure: the finished ones, or all of them when none is finished."""
        return tuple(run for run in self.runs[name] if run.finished) or self.runs[name]


def number(value: object) -> float | None:
    """A finite number, or None.

    >>> number(1), number(float("nan")), number("1")
    (1.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def headline(evaluation: object) -> float | None:
    """The accuracy that one evaluation states: its `accuracy`, or the `mean` over clients.

    >>> headline({"mean": 0.5, "worst": 0.1})
    0.5
    """
    if not isinstance(evaluation, Mapping):
        return None
    return number(evaluation.get("accuracy", evaluation.get("mean")))


def by_round(points: Iterable[tuple[Round, Value]]) -> dict[Round, list[Value]]:
    """What several runs have at each round, in the order of the rounds.

    >>> by_round([(2, "a"), (1, "b"), (2, "c")])
    {1: ['b'], 2: ['a', 'c']}
    """
    at: dict[Round, list[Value]] = {}
    for r, value in sorted(points, key=lambda point: point[0]):
        at.setdefault(r, []).append(value)
    return at


def _short(value: Any) -> Any:
    """The same value with its numbers to six decimals, or five digits where they are small."""
    if isinstance(value, float):
        return round(value, 6) if abs(value) >= 0.01 else float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {key: _short(each) for key, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list | tuple) else value


def read_run(path: Path | str, name: str | None = None, seed: int | None = None) -> Run:
    """Read one run directory, or a JSON file of a kept run; its name and seed are the experiment's unless given.

    >>> read_run("nowhere")
    Traceback (most recent call last):
    ValueError: nowhere is no run directory (it has no experiment.toml); give one that `accord run` or `accord compare` wrote
    """
    path = Path(path)
    if path.suffix == KEPT and path.is_file():
        return _kept(path, name, seed)
    if not (path / "experiment.toml").is_file():
        raise ValueError(f"{path} is no run directory (it has no experiment.toml); give one that `accord run` or `accord compare` wrote")
    try:
        experiment = tomllib.loads((path / "experiment.toml").read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path / 'experiment.toml'} is not TOML ({error}); run the experiment again or restore the file") from None
    result = _object(path / "result.json")
    found = name or experiment.get("name") or result.get("algorithm") or experiment.get("algorithm") or path.name
    chosen = experiment.get("seed", 0) if seed is None else seed
    if isinstance(chosen, bool) or not isinstance(chosen, int):
        raise ValueError(f"{path / 'experiment.toml'} has seed = {chosen!r}; it must be a whole number")
    return Run(
        path,
        str(found),
        chosen,
        experiment,
        _rounds(path / "rounds.jsonl"),
        result,
        _object(path / "environment.json"),
        _object(path / "federation.json"),
        {place.stem: found for place in sorted((path / "analysis").glob("*.json")) if "values" in (found := _object(place))},
    )


def _kept(path: Path, name: str | None, seed: int | None) -> Run:
    held = _object(path)
    try:
        run = Run(path, **{**held, "rounds": tuple(held["rounds"])})
    except (TypeError, KeyError) as error:
        raise ValueError(f"{path} is no kept run ({error}); give the run's folder, or keep the run again") from None
    return dataclasses.replace(run, name=name or run.name, seed=run.seed if seed is None else seed)


def _object(path: Path) -> Record:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}); `accord resume {path.parent}` writes it again") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}; it must hold one JSON object")
    return value


def _rounds(path: Path) -> tuple[Record, ...]:
    """The rounds in order, each once (the last writing of it counts), without a last line that a killed run left half written."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []
    lines = [line for line in lines if line.strip()]
    rows: dict[int, Record] = {}
    for place, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if isinstance(row, dict) and type(row.get("round")) is int:
            rows[row["round"]] = row
        elif place < len(lines):
            raise ValueError(f"{path}, line {place}: {line[:60]!r} is not a round; only the last line may be cut short")
    return tuple(rows[r] for r in sorted(rows))


def load(paths: Path | str | Iterable[Path | str]) -> Comparison:
    """Run directories and comparison directories, any number of either, as one comparison.

    Runs are grouped by short name and paired by seed; a directory given twice counts once.

    >>> load([])
    Traceback (most recent call last):
    ValueError: no directory given; name a run directory or a comparison directory
    """
    given = [Path(p) for p in ([paths] if isinstance(paths, Path | str) else paths)]
    if not given:
        raise ValueError("no directory given; name a run directory or a comparison directory")
    single = [_comparison(p) if (p / "comparison.json").is_file() else _alone(read_run(p)) for p in given]
    runs: dict[str, dict[int, Run]] = {name: {} for part in single for name in part.runs}
    for run in (run for part in single for run in part.all_runs):
        other = runs[run.name].setdefault(run.seed, run)
        if other.path.resolve() != run.path.resolve():
            raise ValueError(
                f"{run.name!r} has seed {run.seed} twice, in {other.path} and in {run.path}; "
                "leave one out or give one another `name` in its experiment.toml"
            )
    targets = {part.target for part in single if part.target is not None}
    absent = tuple(dict.fromkeys((n, s) for part in single for n, s in part.absent if s not in runs[n]))
    grouped = {name: tuple(by_seed[s] for s in sorted(by_seed)) for name, by_seed in runs.items()}
    set_up = next((part.set_up for part in single if part.set_up), {})
    return Comparison(grouped, targets.pop() if len(targets) == 1 else None, absent, set_up)


def _alone(run: Run) -> Comparison:
    return Comparison({run.name: (run,)})


def _comparison(path: Path) -> Comparison:
    plan = _object(path / "comparison.json")
    seeds, places = plan.get("seeds"), plan.get("runs")
    if not isinstance(seeds, list) or not isinstance(places, dict):
        raise ValueError(f"{path / 'comparison.json'} has no `seeds` and `runs`; give the run directories themselves")
    runs: dict[str, tuple[Run, ...]] = {}
    absent: list[tuple[str, int]] = []
    for name in plan.get("algorithms") or places:
        began = []
        for seed, place in zip(seeds, places.get(name, []), strict=False):
            if (path / place / "experiment.toml").is_file():
                began.append(read_run(path / place, name, seed))
            else:
                absent.append((name, seed))
        runs[name] = tuple(began)
    return Comparison(runs, number(plan.get("target")), tuple(absent), plan.get("set_up") or {})
