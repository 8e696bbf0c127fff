"""Servers and sites as real processes on this machine, each in a process group of its own that can be killed as a whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accord.deploy.nodes import free_port
from accord.experiment import Experiment

PROGRAM = str(Path(sys.executable).with_name("accord"))
PATIENCE = float(os.environ.get("ACCORD_PATIENCE", "1"))  # more than 1 on a machine that is busy with other things
LIMIT = 4 * PATIENCE  # on how long a test waits for what should come much sooner


@dataclass
class Process:
    """One command."""

    command: Sequence[str]
    log: Path
    popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = os.environ | {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.3", "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        with self.log.open("ab") as log:
            self.popen = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal to the command and to everything that it started."""
        assert self.popen is not None
        if self.popen.poll() is None or number == signal.SIGKILL:
            try:
                os.killpg(self.popen.pid, number)
            except ProcessLookupError:
                return
        self.popen.wait()

    def child(self, program: str) -> int:
        """The process of one program that the command started."""
        assert self.popen is not None
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.getpgid(int(entry.name)) == self.popen.pid and program in (entry / "cmdline").read_text().split("\0")[1]:
                        return int(entry.name)
                except (OSError, IndexError):
                    continue
        raise AssertionError(f"{program} does not run")

    @property
    def said(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.is_file() else ""


@dataclass
class Fleet:
    """A server and its sites."""

    folder: Path
    experiment: Experiment
    timeout: float = 120.0
    options: Sequence[str] = ()
    within: Sequence[str] = ()  # what the server's command is started by, such as a network namespace
    port: int = field(default_factory=free_port)
    sites: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        (self.folder / "experiment.toml").write_text(self.experiment.toml())
        command = [*self.within, PROGRAM, "serve", str(self.folder / "experiment.toml"), "--port", str(self.port)]
        command += ["--state", str(self.folder / "server"), "--round-timeout", str(PATIENCE * self.timeout), *self.options]
        self.server = Process(command, self.folder / "serve.log")

    def add(self, index: int, address: str = "", more: Sequence[str] = (), within: Sequence[str] = ()) -> Process:
        """One more site, holding one part of the experiment's data."""
        where = self.folder / f"site{index}"
        command = [*within, PROGRAM, "join", address or f"127.0.0.1:{self.port}", "--data", self.experiment.data]
        command += ["--split", self.experiment.split, "--split-index", str(index), "--state", str(where), *more]
        self.sites.append(Process(command, self.folder / f"join{index}.log"))
        return self.sites[-1]

    def start(self) -> None:
        for each in (self.server, *self.sites):
            each.start()

    def lines(self) -> list[dict[str, Any]]:
        """The rounds so far."""
        file = self.folder / "server" / "rounds.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")] if file.is_file() else []

    def until(self, condition: Any, what: str, seconds: float = 240.0) -> None:
        """Wait for something, and say what was being waited for if it does not come."""
        end = time.monotonic() + LIMIT * seconds
        while not condition():
            assert time.monotonic() < end, f"waited for {what}; the server said: {self.server.said[-3000:]}"
            time.sleep(0.2)

    def round(self, number: int) -> None:
        """Wait until a round is over."""
        self.until(lambda: len(self.lines()) >= number, f"round {number}")

    def result(self) -> dict[str, Any]:
        """Wait for the end."""
        file = self.folder / "server" / "result.json"
        self.until(file.is_file, "the result")
        self.until(lambda: self.server.popen and self.server.popen.poll() is not None, "the server's end", 60)
        found: dict[str, Any] = json.loads(file.read_text())
        return found

    def stop(self) -> None:
        for each in (*self.sites, self.server):
            if each.popen is not None:
                each.kill()
