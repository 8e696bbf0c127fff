"""The command line as tests call it: in this process, in a process that can be killed, or as the installed program."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from accord import checkpoint
from accord.cli import main

PROGRAM = Path(sys.executable).with_name("accord")
TINY = ("--clients", "5", "--per-round", "3", "--epochs", "1", "--engine", "process")


@dataclass(frozen=True)
class Answer:
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON value on one line and nothing else."""
        assert self.out.count("\n") == 1
        assert self.out.endswith("\n")
        return json.loads(self.out, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def accord(*arguments: object) -> Answer:
    """Run a command in this process."""
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(a) for a in arguments])
        except SystemExit as stop:
            code = stop.code
    assert isinstance(code, int)
    return Answer(code, out.getvalue(), err.getvalue())


def good(*arguments: object) -> Answer:
    """The same, for a command that has to succeed."""
    answer = accord(*arguments)
    assert answer.code == 0, answer.err
    return answer


def wrong(*arguments: object) -> str:
    """The one line with which a mistake has to end."""
    answer = accord(*arguments)
    assert answer.code == 2, answer
    assert answer.out == ""
    assert answer.err.startswith("accord: ")
    assert answer.err.endswith("\n")
    assert answer.err.count("\n") == 1, answer.err
    assert "Traceback" not in answer.err
    assert len(answer.err) < 1100
    return answer.err.removeprefix("accord: ").rstrip("\n")


def begin(*arguments: object, cores: int | None = None) -> BaseProcess:
    """Start a command in a process of its own, without waiting for Python to start; every round writes a checkpoint there."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["accord.cli", "accord.reports"])
    process = context.Process(target=_command, args=([str(a) for a in arguments], cores))
    process.start()
    return process


def _command(arguments: Sequence[str], cores: int | None) -> None:
    os.setsid()
    checkpoint._SHARE = 0
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:cores]))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        main(arguments)


def program(*arguments: object, cwd: Path | None = None) -> Answer:
    """Run the installed program to its end."""
    with started(*arguments, cwd=cwd) as process:
        out, err = process.communicate(timeout=120)
    return Answer(process.returncode, out, err)


@contextlib.contextmanager
def started(*arguments: object, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """The installed program, at work in a process group of its own; killed when the block ends."""
    command = [str(PROGRAM)] if PROGRAM.is_file() else [sys.executable, "-m", "accord.cli"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=hearing,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def hearing() -> None:
    """Let a process that begins hear Ctrl-C, which one that descends from a shell's background job does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def rounds(folder: Path) -> list[dict[str, Any]]:
    """The rounds of a run, without how long they took."""
    lines = (folder / "rounds.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key != "seconds"} for line in lines]


def result(folder: Path) -> Mapping[str, Any]:
    """The result of a run."""
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found
