"""One site: Flower's node and what starts its tasks, kept running, and what the site is asked and sends, shown as it happens."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import tomli_w

from accord.checkpoint import write_atomically
from accord.deploy.nodes import Node, Tail, environment, free_port, program, secret, stop_all

if TYPE_CHECKING:
    from accord.flower.site import Site


def hostname() -> str:
    """What a site is called if nobody says."""
    return socket.gethostname()


def join(site: Site, superlink: str, *, key: Path | None, ca: Path | None, insecure: bool, say: Callable[[str], None]) -> None:
    """Take part until interrupted."""
    os.makedirs(site.state, mode=0o700, exist_ok=True)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in asdict(site).items()}
    write_atomically(site.state / "site.toml", tomli_w.dumps({k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}))
    room = Path(tempfile.mkdtemp(prefix="accord-"))  # only its owner can enter; the path of a socket has to be short
    nodes = members(site, superlink, room / "door", key=key, ca=ca, plain=plain_http(superlink, ca, key, insecure))
    tail = Tail(site.state / "site.log")
    say(f"{site.name} joins {superlink}; its files are in {site.state}, Flower's own words in {site.state / 'flower.log'}")
    try:
        while True:
            for node in nodes:
                node.tend(say)
            for line in tail.lines():
                say(line)
            time.sleep(0.2)
    finally:
        stop_all(nodes)
        shutil.rmtree(room, ignore_errors=True)


def plain_http(superlink: str, ca: Path | None, key: Path | None, insecure: bool) -> bool:
    """Whether to speak without encryption: on this machine unless a certificate is given, elsewhere only when told to."""
    if insecure and (ca or key):
        raise ValueError("--insecure and --ca or --key exclude each other: keys need encryption")
    return insecure or (here(superlink) and ca is None and key is None)


def here(superlink: str) -> bool:
    """Whether an address is one of this machine alone.

    >>> here("127.0.0.1:9100"), here("[::1]:9100"), here("127.0.0.1.example.org:9100")
    (True, True, False)
    """
    host = superlink.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def members(site: Site, superlink: str, door: Path, *, key: Path | None, ca: Path | None, plain: bool) -> list[Node]:
    """The two programs of a site."""
    home, port = site.state / "flower", free_port()
    env, hidden, log = environment(home, ["flwr-clientapp"], door), secret(site.state), site.state / "flower.log"
    if "'" in str(site.state) or '"' in str(site.state):
        raise ValueError(f"the folder {str(site.state)!r} has a quotation mark in its name: choose another with --state")
    node = [program("flower-supernode"), "--superlink", superlink, "--isolation", "process", "--host", "127.0.0.1", "--port", str(port)]
    node += ["--superexec-auth-secret-file", str(hidden), "--node-config", f'site="{site.state / "site.toml"}"']
    node += ["--insecure"] if plain else []
    node += ["--root-certificates", str(ca)] if ca else []
    node += ["--auth-supernode-private-key", str(key)] if key else []
    tasks = [program("flower-superexec"), "--runtime-api-address", f"127.0.0.1:{port}", "--insecure"]
    tasks += ["--superexec-auth-secret-file", str(hidden)]
    warm = [sys.executable, "-m", "accord.deploy.warm", str(door), "flwr-clientapp"]
    return [Node("trainer", warm, env, log), Node("node", node, env, log), Node("task runner", tasks, env, log, needs=door)]
