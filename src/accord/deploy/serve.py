"""The server: Flower's SuperLink and what starts its tasks, kept running, and an experiment that goes on from where it stands."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from accord.checkpoint import write_atomically
from accord.deploy.export import export
from accord.deploy.nodes import Node, Tail, environment, listening, program, secret, stop_all
from accord.experiment import Experiment, read_file
from accord.run import finished, make

OPEN = (
    "WARNING: whoever can reach this port can use Flower's control interface, which has no password in its open edition: list, stop and "
    "start runs, register nodes. No code can be brought in that way here, but a stranger could ask the sites to train. Bind it to "
    "127.0.0.1, which is the default, and let a proxy show only the path /v1/fleet to the sites (docs/federation.md has one, tested)."
)
_AGAIN = 60.0  # seconds before the experiment is started again when nobody works on it


@dataclass(frozen=True)
class Service:
    """Where a server listens, with which certificates, and how it plays the rounds."""

    host: str = "127.0.0.1"
    port: int = 9100
    tls: Path | None = None
    least: int = 0
    timeout: float = 600.0
    test_here: bool = True

    @property
    def local(self) -> str:
        """Its address from this machine."""
        near = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)
        return f"[{near}]:{self.port}" if ":" in near else f"{near}:{self.port}"

    @property
    def keys(self) -> list[Path]:
        """The public keys of the sites, when only those may come in."""
        return sorted(self.tls.glob("sites/*.pub")) if self.tls else []

    def certificates(self) -> dict[str, Path]:
        """The files of encryption, all of which must be there."""
        assert self.tls is not None
        found = {"ca": self.tls / "ca.crt", "cert": self.tls / "server.crt", "key": self.tls / "server.key"}
        for file in found.values():
            if not file.is_file():
                raise ValueError(f"there is no {file}: `accord keys DIR --sites N` makes DIR/server, which is what --tls-dir takes")
        return found


def serve(experiment: Experiment, state: Path, service: Service, say: Callable[[str], None]) -> dict[str, Any]:
    """Play the experiment to its end over whoever joins; the state folder is where it goes on from after any interruption."""
    make(state)
    state = state.resolve()
    same(experiment, state)
    if (state / "result.json").is_file():
        return finished(state)
    if service.host not in ("127.0.0.1", "::1", "localhost"):
        say(OPEN)
    room = Path(tempfile.mkdtemp(prefix="accord-"))  # only its owner can enter; the path of a socket has to be short
    nodes, env = members(state, service, room / "door")
    tail, began = Tail(state / "server.log"), -_AGAIN
    (state / "outcome.json").unlink(missing_ok=True)
    export(experiment, state / "app", state, least=service.least, timeout=service.timeout, test_here=service.test_here)
    try:
        start(nodes, env, service, state, say)
        while True:
            for node in nodes:
                node.tend(say)
            for line in tail.lines():
                say(line)
            outcome = ended(state)
            if outcome is not None:
                return outcome
            if not idle(state):
                began = time.monotonic()
            elif time.monotonic() - began > _AGAIN and all(node.process for node in nodes):
                submit(env, state, say)
                began = time.monotonic()
            time.sleep(0.2)
    finally:
        stop_all(nodes)
        shutil.rmtree(room, ignore_errors=True)


def same(experiment: Experiment, state: Path) -> None:
    """Demand that the folder holds this very experiment, or none."""
    file = state / "asked.toml"
    if file.is_file() and not experiment.same_as(Experiment.of(read_file(file), str(file))):
        raise ValueError(f"{state} holds another experiment (see {file}): choose another folder with --state")
    write_atomically(file, experiment.toml())


def members(state: Path, service: Service, door: Path) -> tuple[list[Node], dict[str, str]]:
    """The programs of a server, and their environment."""
    home, hidden, log = state / "flower", secret(state), state / "flower.log"
    env = environment(home, ["flwr-serverapp"], door)
    link = [program("flower-superlink"), "--host", service.host, "--port", str(service.port), "--isolation", "process"]
    link += [
        "--database",
        str(state / "flower.db"),
        "--superexec-auth-secret-file",
        str(hidden),
        "--disable-runtime-dependency-installation",
    ]
    tasks = [program("flower-superexec"), "--runtime-api-address", service.local, "--superexec-auth-secret-file", str(hidden)]
    connection: dict[str, Any] = {"address": service.local}
    if service.tls:
        files = service.certificates()
        link += ["--ssl-ca-certfile", str(files["ca"]), "--ssl-certfile", str(files["cert"]), "--ssl-keyfile", str(files["key"])]
        link += ["--enable-supernode-auth"] if service.keys else []
        tasks += ["--root-certificates", str(files["ca"])]
        connection["root-certificates"] = str(files["ca"].resolve())
    else:
        link, tasks, connection["insecure"] = [*link, "--insecure"], [*tasks, "--insecure"], True
    (home / "config.toml").write_text(tomli_w.dumps({"superlink": {"default": "here", "here": connection}}), encoding="utf-8")
    warm = [sys.executable, "-m", "accord.deploy.warm", str(door), "flwr-serverapp"]
    return [Node("SuperLink", link, env, log), Node("player", warm, env, log), Node("task runner", tasks, env, log, needs=door)], env


def start(nodes: list[Node], env: Mapping[str, str], service: Service, state: Path, say: Callable[[str], None]) -> None:
    """Start the SuperLink, wait until it listens, let the sites' keys in, then start the rest."""
    host, _, port = service.local.rpartition(":")
    if listening(host.strip("[]"), int(port)):
        raise ValueError(f"someone listens on {service.local} already: choose another --port")
    nodes[0].start()
    nodes[1].start()
    for _ in range(300):
        if listening(host.strip("[]"), int(port)):
            break
        if nodes[0].process is None or nodes[0].process.poll() is not None:
            raise ValueError(f"the SuperLink did not start: {nodes[0].fate(1)} (see {nodes[0].log})")
        time.sleep(0.2)
    for key in service.keys:
        command = [program("flwr"), "supernode", "register", str(key), "here", "--name", key.stem]
        told = subprocess.run(command, env=dict(env), capture_output=True, text=True, check=False)
        if told.returncode and "already in use" not in told.stdout + told.stderr:
            raise ValueError(f"the key {key} was not accepted: {' '.join((told.stdout + told.stderr).split())[-300:]}")
    security = f"TLS, {len(service.keys)} keys" if service.tls else "without encryption"
    say(f"listening on {service.host}:{service.port} ({security}); state in {state}, Flower's own words in {nodes[0].log}")


def idle(state: Path) -> bool:
    """Whether no process plays this folder's rounds."""
    with (state / "playing.lock").open("a") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True


def submit(env: Mapping[str, str], state: Path, say: Callable[[str], None]) -> None:
    """Start the experiment as a run of Flower."""
    told = subprocess.run([program("flwr"), "run", str(state / "app"), "here"], env=dict(env), capture_output=True, text=True, check=False)
    if told.returncode:
        say(f"the run was not accepted: {' '.join((told.stdout + told.stderr).split())[-300:]}")


def ended(state: Path) -> dict[str, Any] | None:
    """The result, if the experiment is over; `ValueError` with its reason if it cannot go on."""
    file = state / "outcome.json"
    if not file.is_file():
        return None
    outcome: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if "failed" in outcome:
        raise ValueError(outcome["failed"])
    return outcome
