"""A process that has everything imported already: each of Flower's tasks runs in a copy of it (a fork), so that none waits for imports."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

# What stands in for Flower's program: it hands its arguments to the warm process, or runs the program cold where there is none.
KNOCK = """#!{python} -SE
import json, os, socket, sys

with socket.socket(socket.AF_UNIX) as door:
    try:
        door.connect({door!r})
        door.sendall(json.dumps(sys.argv[1:]).encode())
        door.shutdown(socket.SHUT_WR)
        sys.exit(int(door.recv(8) or b"1"))
    except OSError:
        pass
os.execv({python!r}, [{python!r}, "-c", "from accord.deploy.gate import main; main({program!r})", *sys.argv[1:]])
"""


def main() -> None:
    """Serve tasks: `python -m accord.deploy.warm DOOR PROGRAM`."""
    place, program = Path(sys.argv[1]), sys.argv[2]
    import accord.flower.service
    import accord.flower.site  # noqa: F401
    from accord.deploy.gate import entry, run

    entry(program)
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(place))
        os.chmod(place, 0o600)
        door.listen()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the copies
        while True:
            caller, _ = door.accept()
            with caller:
                arguments = heard(caller)
                if os.fork() == 0:
                    door.close()
                    child(caller, partial(run, program, arguments))
                caller.sendall(b"0")


def heard(caller: socket.socket) -> list[str]:
    """The arguments that a caller sends."""
    pieces = b""
    while piece := caller.recv(65536):
        pieces += piece
    arguments: list[str] = json.loads(pieces)
    return arguments


def child(caller: socket.socket, task: Callable[[], None]) -> None:
    """The life of one copy: the task, and nothing after it."""
    caller.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 1
    try:
        task()
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
