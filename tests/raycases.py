"""What the tests of the Ray engine run inside a network namespace; the answer is one JSON object."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import accord
from accord.engines.cluster import begin
from accord.engines.crew import Lost
from accord.engines.ray import Ray
from accord.jobs import Evaluate
from accord.recipe import entries
from accord.server import Server, rounds
from small import Net, federation, net
from test_engines_agree import TEXTS, Fussy, _start, data, module, run

ALGORITHMS = [e.name for e in entries("algorithm") if e.make.__module__ == "accord.algorithms"]
STATEFUL = "scaffold + sgd(lr=0.05, batch=2, epochs=2)"
MORE = ["fedavg + power_of_choice(m=3, d=5)", "moon + sgd(persist=True, lr=0.02, batch=5)", "scaffold + corrective"]


class Mortal(Net):
    """A model whose worker is killed in the middle of its training, as often as a file has lines."""

    def forward(self, x: Tensor) -> accord.Output:
        fate = Path(os.environ["FATE"])
        left = fate.read_text().splitlines() if self.training and fate.exists() else []
        if left and len(x) == 1:  # the last batch of a client with an odd number of samples
            fate.write_text("\n".join(left[1:]))
            os.kill(os.getpid(), signal.SIGKILL)
        return Net.forward(self, x)


def mortal() -> Mortal:
    model = Mortal().float()
    model.load_state_dict(net(dtype=torch.float32).state_dict())
    return model


def agree(workers: int) -> dict[str, Any]:
    """Every text and algorithm on one engine; scores; an error of a client; the engine after it."""
    found: dict[str, Any] = {}
    with Ray(module(), data(), workers=workers) as engine:
        for text in TEXTS:
            found[text] = run(text, engine)
        for text in TEXTS[:4]:
            found[f"{text}, dropout"] = run(text, engine, dropout=0.4)
        for name in ALGORITHMS:
            found[f"{name}, algorithm"] = run(f"{name} + uniform(4) + sgd(lr=0.02, batch=5, epochs=1)", engine, count=2)
        for text in MORE:
            found[text] = run(text, engine, count=3)
        algorithm = accord.read("fedavg + finetune(2) + sgd(lr=0.05, batch=4, epochs=1)")
        server = Server.start(algorithm, module())
        for of in ("test", "train", "own", "personal"):
            job = Evaluate(algorithm, server.w, server.b, 2, 0, of=of)  # type: ignore[arg-type]
            scores = dict(engine.map(job, [0] if of == "test" else list(range(7))))
            found[of] = {k: (score.right.tolist(), score.total.tolist(), score.loss) for k, score in sorted(scores.items())}
    found["threads"] = torch.get_num_threads()
    return found


def errors() -> dict[str, Any]:
    """A client that fails, then a model that draws random numbers; workers that die, and die again."""
    found: dict[str, Any] = {}
    few = federation((5, 7, 5), dtype=torch.float32)
    fussy = Fussy().float()
    with Ray(fussy, few, workers=1) as engine:
        try:
            list(rounds(accord.fedavg() + accord.sgd(batch=5, epochs=1), fussy, few, rounds=1, engine=engine))
        except ValueError as error:
            found["error"] = str(error)
            found["note"] = "".join(error.__notes__)
        good = [c.accepted for c in rounds(accord.fedavg() + accord.sgd(batch=3, steps=1), fussy, few, rounds=1, engine=engine)]
        found["afterwards"] = [sorted(each) for each in good]
        found["server"] = len(_start(fussy)[0])
    return found


def deaths() -> dict[str, Any]:
    """Actors killed in the middle of a round: once, twice, and as often as they are replaced."""
    found: dict[str, Any] = {}
    fate = Path(os.environ["FATE"])
    with Ray(mortal(), data(), workers=2) as engine:
        found["alive"] = run(STATEFUL, engine, model=mortal())
        before = engine._ray.get([actor.pid.remote() for actor in engine.actors])
        fate.write_text("once")
        found["killed"] = run(STATEFUL, engine, model=mortal())
        after = engine._ray.get([actor.pid.remote() for actor in engine.actors])
        found["left"] = fate.read_text()
        found["replaced"] = len(set(before) - set(after))
        fate.write_text("again\n" * 9)
        try:
            run(STATEFUL, engine, model=mortal())
        except Lost as error:
            found["lost"] = str(error)
    return found


def machines(address: str, other: str) -> dict[str, Any]:
    """Two machines; one of them is lost in the middle of a round."""
    found: dict[str, Any] = {}
    slow = "scaffold + sgd(lr=0.05, batch=1, epochs=150)"
    there, leave = begin(address, 0)
    end = time.monotonic() + 300
    while there.cluster_resources().get("CPU") != 2 and time.monotonic() < end:
        time.sleep(0.2)
    with Ray(module(), data(), workers=0, address=address) as engine:
        ray = engine._ray
        found["nodes"] = len({info["NodeID"] for info in ray.nodes() if info["Alive"]})
        found["actors"] = len(engine.actors)
        found["places"] = len({place["Address"]["NodeID"] for place in _places(ray)})
        found["two"] = run(STATEFUL, engine)
        lost: list[float] = []

        def strike() -> None:
            lost.append(time.monotonic())
            for pid in subprocess.run(["ip", "netns", "pids", other], capture_output=True, text=True).stdout.split():
                os.kill(int(pid), signal.SIGKILL)

        timer = threading.Timer(0.5, strike)
        timer.start()
        found["one"] = run(slow, engine)
        found["struck"] = bool(lost)
        found["seconds"] = time.monotonic() - lost[0]
        found["deaths"] = sum(1 for place in _places(ray) if place["State"] == "DEAD")
    leave()
    return found


def _places(ray: Any) -> list[Any]:
    from ray._private.state import actors

    return list(actors().values())


def main() -> None:
    """Run one case; called from outside this module, so that workers find its classes under its name."""
    torch.set_num_threads(1)
    name, *arguments = sys.argv[1:]
    if name == "machines":
        print(json.dumps(machines(*arguments)))
        return
    _, leave = begin("", 2)  # the engines share one cluster, which takes seconds to start
    found = {"agree": agree(2), "errors": errors(), "deaths": deaths()}
    leave()
    print(json.dumps(found))
