"""Network namespaces for tests of the Ray engine: Ray listens on all interfaces, and in a namespace of its own nobody else sees it."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
_NUMBERS = itertools.count()


def need_ray() -> None:
    """Skip what cannot be tested here, with the reason."""
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'accord[ray]'")
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("Ray is started only in network namespaces of its own, which need Linux, root and the program ip")
    tried = subprocess.run(["ip", "netns", "exec", "none", "true"], capture_output=True, text=True)
    made = subprocess.run(["unshare", "-n", "true"], capture_output=True, text=True) if shutil.which("unshare") else tried
    if made.returncode:
        pytest.skip(f"this machine makes no network namespaces: {made.stderr.strip()}")


class Space:
    """A network namespace with `lo`, and the processes that a test starts in it."""

    def __init__(self, home: Path) -> None:
        self.name = f"accord-{os.getpid()}-{next(_NUMBERS)}"
        self.home = home
        _ip("netns", "add", self.name)
        _ip("-n", self.name, "link", "set", "lo", "up")

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process in it is started with: a home of its own, so that Ray's token is nobody else's."""
        path = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        quick = {"RAY_health_check_period_ms": "1000", "RAY_health_check_timeout_ms": "20000", "RAY_health_check_failure_threshold": "3"}
        quick["RAY_memory_monitor_refresh_ms"] = "0"  # else Ray kills our workers when others fill the machine
        return {**os.environ, **quick, "RAY_AUTH_MODE": "token", "HOME": str(self.home), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def start(self, *command: object) -> subprocess.Popen[str]:
        """A process in this namespace."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, *map(str, command)],
            env=self.environment,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def pids(self) -> list[int]:
        """Who is in it."""
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]

    def kill(self) -> None:
        """SIGKILL for everybody in it."""
        end = time.monotonic() + 20
        while (there := self.pids()) and time.monotonic() < end:
            for pid in there:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


@contextlib.contextmanager
def spaces(home: Path, count: int = 1) -> Iterator[list[Space]]:
    """Namespaces of one or two machines; two are joined by a cable, as 10.83.0.1 and 10.83.0.2."""
    found: list[Space] = []
    try:
        for _ in range(count):
            found.append(Space(home))
        if count == 2:
            one, two = (space.name for space in found)
            _ip("link", "add", "cable", "netns", one, "type", "veth", "peer", "name", "cable", "netns", two)
            for number, name in enumerate((one, two), 1):
                _ip("-n", name, "addr", "add", f"10.83.0.{number}/24", "dev", "cable")
                _ip("-n", name, "link", "set", "cable", "up")
        yield found
    finally:
        for space in found:
            space.kill()
            _ip("netns", "del", space.name)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
