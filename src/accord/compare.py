"""Many experiments side by side: every algorithm with every seed, finished ones kept, interrupted ones resumed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from accord.checkpoint import write_atomically
from accord.engines.crew import DEATHS, Hand, Lost, dismiss, hire, portable, ready, receive, send
from accord.experiment import Experiment, device_of
from accord.run import make, run
from accord.sinks import require

Watch = Callable[["Cell", Mapping[str, Any]], None]
_TELL = 0.2  # seconds between two messages of one worker


@dataclass(frozen=True)
class Cell:
    """One run of a comparison."""

    experiment: Experiment
    folder: Path

    @property
    def label(self) -> str:
        """What progress calls it."""
        return f"{self.experiment.name or self.experiment.algorithm}, seed {self.experiment.seed}"


def cells(base: Experiment, algorithms: Sequence[str], seeds: int, out: Path) -> list[Cell]:
    """Every algorithm with every seed, one seed after the other, so that a comparison cut short has whole seeds.

    >>> [cell.folder.as_posix() for cell in cells(Experiment(), ["fedavg", "fedavg + constrain"], 2, Path("out"))]
    ['out/fedavg/seed-0', 'out/fedavg-constrain/seed-0', 'out/fedavg/seed-1', 'out/fedavg-constrain/seed-1']
    """
    twice = [text for k, text in enumerate(algorithms) if text in algorithms[:k]]
    if twice:
        raise ValueError(f"{twice[0]!r} is given twice: name each algorithm once")
    slugs = unique([slug(text) for text in algorithms])
    return [
        Cell(dataclasses.replace(base, algorithm=text, name=text, seed=base.seed + k), out / slug / f"seed-{base.seed + k}")
        for k in range(seeds)
        for text, slug in zip(algorithms, slugs, strict=True)
    ]


def slug(text: str, length: int = 60) -> str:
    """A text as the name of a folder.

    >>> slug("fedavg + constrain(center=False)"), slug("..")
    ('fedavg-constrain-center-false', 'algorithm')
    """
    return re.sub(r"[^a-z0-9.]+", "-", text.lower())[:length].strip("-.") or "algorithm"


def unique(slugs: Sequence[str]) -> list[str]:
    """The same texts, with a number behind those that stand more than once.

    >>> unique(["a", "a", "a-1"])
    ['a', 'a-2', 'a-1']
    """
    found: list[str] = []
    for slug in slugs:
        numbered = (f"{slug}-{k}" for k in itertools.count(1))
        found.append(slug if slug not in found else next(each for each in numbered if each not in found and each not in slugs))
    return found


def compare(planned: Sequence[Cell], out: Path, *, workers: int, target: float | None, watch: Watch) -> None:
    """Run the cells, `workers` at a time, and leave `comparison.json` beside them."""
    make(out)
    runs: dict[str, list[str]] = {}
    for cell in planned:
        runs.setdefault(cell.experiment.name, []).append(cell.folder.relative_to(out).as_posix())
    first = planned[0].experiment
    said = {key: value for key, value in first.settings().items() if key not in ("algorithm", "name", "seed")}
    record = {
        "algorithms": list(runs),
        "seeds": sorted({cell.experiment.seed for cell in planned}),
        "runs": runs,
        "target": target,
        "set_up": said,
    }
    write_atomically(out / "comparison.json", json.dumps(record, indent=1))
    if workers > 1 and len(planned) > 1:
        side_by_side(planned, min(workers, len(planned)), watch)
        return
    for cell in planned:
        run(cell.experiment, cell.folder, keep=True, progress=lambda line, cell=cell: watch(cell, line))  # type: ignore[misc]
        watch(cell, {"done": True})


def verify(planned: Sequence[Cell]) -> None:
    """Find mistakes before anything starts: in every algorithm, and in the data and the model that all of them share."""
    for cell in planned:
        cell.experiment.recipe()
    first = planned[0].experiment
    require(first.track)
    federation = first.federation()
    first.resolved(federation)
    first.module(federation)
    device_of(first.device)


def _alone(cell: Cell) -> Cell:
    """The cell for a worker that runs others beside it: with the engine that starts no workers of its own."""
    return dataclasses.replace(cell, experiment=dataclasses.replace(cell.experiment, engine="process"))


def side_by_side(cells: Sequence[Cell], workers: int, watch: Watch) -> None:
    """Run the cells in worker processes; a worker that dies is replaced, and its cell goes on from its last checkpoint."""
    planned = [_alone(cell) for cell in cells]
    waiting, deaths = deque(planned), dict.fromkeys(range(len(planned)), 0)
    busy: dict[Hand, Cell] = {}
    idle = [hire(_serve) for _ in range(workers)]
    try:
        while waiting or busy:
            while waiting and idle:
                hand, cell = idle.pop(), waiting.popleft()
                busy[hand] = cell
                send(hand, cell)
            for hand in ready(busy):
                message, cell = receive(hand), busy[hand]
                if message is None:
                    del busy[hand]
                    deaths[planned.index(cell)] += 1
                    if deaths[planned.index(cell)] >= DEATHS:
                        raise Lost(f"{cell.label}: {DEATHS} workers died (the last with {hand.fate}): out of memory?")
                    dismiss([hand])
                    waiting.appendleft(cell)
                    idle.append(hire(_serve))
                elif isinstance(message, ValueError):
                    raise ValueError(f"{cell.label}: {message}") from message
                elif isinstance(message, Exception):
                    raise message
                else:
                    watch(cell, message)
                    if "done" in message:
                        idle.append(hand)
                        del busy[hand]
    finally:
        dismiss([*idle, *busy])


def _serve(pipe: Connection) -> None:
    """A worker's life: take cells, run each to its end, and tell how it goes a few times a second."""
    while True:
        cell: Cell = pipe.recv()
        told = 0.0

        def tell(line: dict[str, Any]) -> None:
            nonlocal told
            now = time.monotonic()
            if now - told > _TELL:
                told = now
                pipe.send({key: line[key] for key in ("round", "rounds", "evaluation") if key in line})

        try:
            run(cell.experiment, cell.folder, keep=True, progress=tell)
            pipe.send({"done": True})
        except (BrokenPipeError, ConnectionResetError):
            raise
        except Exception as error:
            pipe.send(portable(error))
