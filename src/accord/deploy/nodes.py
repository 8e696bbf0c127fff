"""Flower's programs as child processes: started with everything private, ended with this process, started again when they end."""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from accord.deploy.warm import KNOCK

_LONGEST = 15.0  # seconds between two starts of a node that keeps ending


def environment(home: Path, programs: Sequence[str], door: Path | None = None) -> dict[str, str]:
    """The environment of Flower's programs: no telemetry, no update check, no installing, and of programs to start only these, gated."""
    folder = home / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    home.chmod(0o700)
    for program in programs:
        file = folder / program
        file.write_text(KNOCK.format(python=sys.executable, door=str(door or ""), program=program), encoding="utf-8")
        file.chmod(0o755)
    found = {key: value for key, value in os.environ.items() if not key.startswith("FLWR_")}
    return found | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": os.environ.get("FLWR_SUPEREXEC_TASK_POLL_INTERVAL", "0.2"),
        "PATH": str(folder),
        "PYTHONUNBUFFERED": "1",
    }


def program(name: str) -> str:
    """Where one of Flower's programs is installed."""
    found = Path(sys.executable).with_name(name)
    if not found.is_file():
        raise ValueError(f"there is no {name} beside {sys.executable}: install the extra, pip install 'accord[flower]'")
    return str(found)


def secret(folder: Path) -> Path:
    """A file with a secret of its own for this folder, which only its owner can read."""
    file = folder / "secret"
    if not file.is_file():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(secrets.token_hex(32))
    return file


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def listening(host: str, port: int) -> bool:
    """Whether someone listens there."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.settimeout(1.0)
        return probe.connect_ex((host, port)) == 0


def follow_parent() -> None:
    """Run in a new child: end when the parent does, however it ends (where the system can do that)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


@dataclass
class Node:
    """One program that is to run for as long as this process does."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    log: Path
    needs: Path | None = None  # a file that must be there first
    process: subprocess.Popen[bytes] | None = None
    wait: float = 1.0
    again: float = 0.0
    started: float = 0.0
    fates: list[str] = field(default_factory=list)

    def start(self) -> None:
        """Start it."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                list(self.command), env=dict(self.env), stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=follow_parent
            )
        self.started = time.monotonic()

    def tend(self, say: Callable[[str], None]) -> None:
        """Start it again if it has ended, after a pause that grows while it keeps ending."""
        now = time.monotonic()
        if self.process is None:
            if now >= self.again and (self.needs is None or self.needs.exists()):
                self.start()
            return
        code = self.process.poll()
        if code is None:
            return
        self.wait = 1.0 if now - self.started > 60 else min(2 * self.wait, _LONGEST)
        self.again, self.process = now + self.wait, None
        self.fates.append(self.fate(code))
        say(f"{self.name} ended ({self.fates[-1]}); starting it again in {self.wait:g} s")

    def fate(self, code: int) -> str:
        """How it ended, and the last thing that it said about it."""
        lines = [line.strip() for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-40:]]
        last = next((line for line in reversed(lines) if "Exit Code" in line or "rror" in line), "")
        return f"exit {code}" if not last else f"exit {code}: {last[:200]}"

    def stop(self) -> None:
        """End it, kindly at first."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(6)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None


class Tail:
    """The lines that are added to a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.at = file.stat().st_size if file.is_file() else 0

    def lines(self) -> list[str]:
        """The whole lines since the last call."""
        if not self.file.is_file():
            return []
        with self.file.open("rb") as stream:
            stream.seek(self.at)
            found, _, _ = stream.read().rpartition(b"\n")
        if not found:
            return []
        self.at += len(found) + 1
        return found.decode("utf-8", "replace").split("\n")


def stop_all(nodes: Sequence[Node]) -> None:
    """End them all, the last started first."""
    for node in reversed(nodes):
        node.stop()


def interruptible() -> None:
    """Let a request to end (SIGTERM) end this process as an interruption does, so that children are ended too."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
