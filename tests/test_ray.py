"""The Ray engine: the same bits as in one process, whoever is killed, on one machine and on two; always in namespaces of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import accord
from accord.engines.process import Process
from accord.jobs import Evaluate
from accord.server import Server
from cluster import Space, need_ray, spaces
from raycases import ALGORITHMS, MORE, STATEFUL, mortal
from shell import PROGRAM, good, result, rounds, wrong
from shell import accord as command
from test_engines_agree import TEXTS, data, module, run, wanted

pytestmark = pytest.mark.xdist_group("ray")
PATIENCE = 500  # seconds; the machine may be busy with other things
COMMON = ("--clients", 6, "--per-round", 3, "--epochs", 1, "--dropout", 0.1, "--algorithm", "scaffold + constrain", "--local-test", 0.2)


@pytest.fixture
def space(tmp_path: Path) -> Iterator[Space]:
    """A machine of its own."""
    need_ray()
    with spaces(tmp_path) as (only,):
        yield only


def case(space: Space, *arguments: object) -> Any:
    """What one of the cases finds."""
    process = space.start(sys.executable, "-c", "import raycases; raycases.main()", *arguments)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return json.loads(out) | {"said": err}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """What the engine does on one machine."""
    need_ray()
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch, spaces(home) as (only,):
        patch.setenv("FATE", str(home / "fate"))
        yield case(only, "here")


@pytest.fixture
def agreed(found: Any) -> Any:
    """What agrees with one process."""
    return found["agree"]


@pytest.mark.parametrize("text", TEXTS)
def test_ray_gives_the_same_bits(text: str, agreed: Any) -> None:
    assert agreed[text] == wanted(text)


@pytest.mark.parametrize("text", TEXTS[:4])
def test_clients_that_fail_to_answer_are_the_same(text: str, agreed: Any) -> None:
    assert agreed[f"{text}, dropout"] == wanted(text, 0.4)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_same_bits(name: str, agreed: Any) -> None:
    assert agreed[f"{name}, algorithm"] == run(f"{name} + uniform(4) + sgd(lr=0.02, batch=5, epochs=1)", count=2)


@pytest.mark.parametrize("text", MORE)
def test_selection_by_loss_state_and_parts_that_read_all(text: str, agreed: Any) -> None:
    assert agreed[text] == run(text, count=3)


@pytest.mark.parametrize("of", ["test", "train", "own", "personal"])
def test_scores_agree(of: Any, agreed: Any) -> None:
    algorithm = accord.read("fedavg + finetune(2) + sgd(lr=0.05, batch=4, epochs=1)")
    server = Server.start(algorithm, module())
    job = Evaluate(algorithm, server.w, server.b, 2, 0, of=of)
    with Process(module(), data()) as plain:
        found = {k: [s.right.tolist(), s.total.tolist(), s.loss] for k, s in plain.map(job, [0] if of == "test" else range(7))}
    assert agreed[of] == {str(k): score for k, score in found.items()}


def test_an_error_in_a_client_is_the_callers(found: Any) -> None:
    assert found["errors"]["error"] == "this model refuses pairs"
    assert "in a worker process:\nTraceback" in found["errors"]["note"]
    assert found["errors"]["afterwards"] == [[0, 1, 2]]


def test_an_actor_killed_in_the_middle_of_a_round_changes_nothing(found: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FATE", str(tmp_path / "fate"))
    whole, seen = run(STATEFUL, model=mortal()), found["deaths"]
    assert (seen["left"], seen["replaced"]) == ("", 1)
    assert seen["alive"] == whole
    assert seen["killed"] == whole
    assert seen["lost"].startswith("3 Ray workers died while training clients ")
    assert "accord: a Ray worker died; its " in found["said"]


# --- the command line ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same run in one process."""
    out = tmp_path_factory.mktemp("whole")
    good("run", *COMMON, "--rounds", 8, "--engine", "process", "--out", out)
    return out


def same(out: Path, wanted: Path) -> None:
    assert rounds(out) == rounds(wanted)
    for key in ("digest", "evaluation", "bytes_up", "bytes_down"):
        assert result(out)[key] == result(wanted)[key]


def test_a_run_that_is_killed_goes_on_to_the_same_end(space: Space, tmp_path: Path, whole: Path) -> None:
    out = tmp_path / "out"
    process = space.start(PROGRAM, "run", *COMMON, "--rounds", 8, "--engine", "ray", "--workers", 2, "--out", out)
    end = time.monotonic() + PATIENCE
    while not ((out / "rounds.jsonl").is_file() and (out / "rounds.jsonl").read_bytes().count(b"\n") > 2) and time.monotonic() < end:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE)
    assert not (out / "result.json").is_file()
    while space.pids() and time.monotonic() < end:
        time.sleep(0.1)
    assert space.pids() == [], "what a run starts ends with it"
    again = space.start(PROGRAM, "resume", out)
    said, err = again.communicate(timeout=PATIENCE)
    assert again.returncode == 0, err
    assert "accord: Ray listens on every network interface of this machine; it lets in whoever has the token" in err
    assert "(ray)" in said
    same(out, whole)


def last(*arguments: object) -> str:
    """The line with which a run ends that cannot begin."""
    answer = command("run", *arguments)
    assert answer.code == 2
    assert "Traceback" not in answer.err
    return answer.err.rstrip("\n").rpartition("\n")[2].removeprefix("accord: ")


def test_addresses_that_cannot_be(tmp_path: Path) -> None:
    said = wrong("run", "--engine", "processes", "--address", "auto", "--out", tmp_path)
    assert said == "address 'auto' is for the engine ray, and this is processes: change the one or leave out the other"
    need_ray()
    common = ("--engine", "ray", "--out", tmp_path, "--address")
    assert last(*common, "127.0.0.1:1").startswith("no Ray cluster answers at 127.0.0.1:1 (")
    for text in ("nonsense", "host:port", "ray://127.0.0.1:x"):
        assert last(*common, text) == f"address {text!r} is neither auto nor HOST:PORT, such as 10.0.0.1:6379"


def test_without_ray_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = last("--engine", "ray", "--out", tmp_path)
    assert said == "the engine ray needs Ray: pip install 'accord[ray]', or use the engine processes"


# --- two machines ----------------------------------------------------------------------------------------------------------------------


def test_two_machines_of_which_one_is_lost(tmp_path: Path) -> None:
    need_ray()
    ray = PROGRAM.with_name("ray")
    with spaces(tmp_path, 2) as (head, other):
        made = head.start(ray, "get-auth-token", "--generate")
        made.communicate(timeout=PATIENCE)
        common = ("--num-cpus", 1, "--object-store-memory", 80 * 2**20, "--disable-usage-stats", "--block")
        head.start(ray, "start", "--head", "--node-ip-address", "10.83.0.1", "--port", 6399, "--include-dashboard", "false", *common)
        join = " ".join(map(str, (ray, "start", "--address", "10.83.0.1:6399", "--node-ip-address", "10.83.0.2", *common)))
        other.start("sh", "-c", f"until {join}; do sleep 1; done")  # the first machine may take its time
        found = case(head, "machines", "10.83.0.1:6399", other.name)
    assert (found["nodes"], found["actors"], found["places"]) == (2, 2, 2)
    assert found["two"] == run(STATEFUL)
    assert found["struck"]
    assert found["deaths"] >= 1
    assert found["one"] == run("scaffold + sgd(lr=0.05, batch=1, epochs=150)")
