"""What is killed at any moment goes on as if nothing had happened: the same digest and the same rounds."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest
import torch

import accord as library
from accord import checkpoint, store
from accord import run as running
from accord.checkpoint import Checkpoint, write_atomically
from accord.engines.process import Process
from accord.experiment import Experiment
from accord.run import resume, run
from accord.server import Server
from accord.store import Store
from shell import accord, begin, good, result, rounds, started
from small import identical, net

TEXTS = ["fedavg", "scaffold + constrain", "moon + sgd(persist=True)"]
COMMON = ("--clients", 6, "--per-round", 3, "--epochs", 1, "--dropout", 0.1)


class Crash(BaseException):
    """The end of a process, as far as a test can make one inside its own."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of the same run that nothing interrupted."""
    made: dict[tuple[Any, ...], Path] = {}

    def make(text: str, count: int) -> Path:
        if (text, count) not in made:
            made[text, count] = tmp_path_factory.mktemp("whole")
            good("run", *COMMON, "--engine", "process", "--algorithm", text, "--rounds", count, "--out", made[text, count])
        return made[text, count]

    return make


def same(out: Path, wanted: Path) -> None:
    """The two runs did the same and left the same."""
    assert rounds(out) == rounds(wanted)
    mine, others = ({k: v for k, v in result(each).items() if k not in ("seconds", "out", "engine")} for each in (out, wanted))
    assert mine == others
    assert (out / "model.safetensors").read_bytes() == (wanted / "model.safetensors").read_bytes()
    assert result(out)["seconds"] > 0


def wait_for(what: Callable[[], Any], seconds: float = 30) -> Any:
    """Poll until something is the case."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("waited in vain")


def lines(out: Path) -> int:
    return (out / "rounds.jsonl").read_bytes().count(b"\n") if (out / "rounds.jsonl").is_file() else 0


def children(pid: int) -> set[int]:
    """All processes below this one, by the kernel's own list."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                found |= {child} | children(child)
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def workers(pid: int) -> set[int]:
    """The worker processes below this one."""
    found = set()
    for child in children(pid):
        with contextlib.suppress(OSError):
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.add(child)
    return found


def elsewhere(out: Path) -> None:
    """Let a run go on in one process: where it runs is no part of what it is."""
    file = out / "experiment.toml"
    file.write_text(file.read_text().replace('engine = "processes"', 'engine = "process"'))


def in_time(tmp_path: Path, attempt: Callable[[Path], bool]) -> Path:
    """The folder of the first attempt that interrupted its run; a run that was over before its signal came shows nothing."""
    for k in range(6):
        if attempt(tmp_path / f"out{k}"):
            return tmp_path / f"out{k}"
    raise AssertionError("every run was over before it could be interrupted")


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds worker processes in /proc")


# --- killed at random moments ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TEXTS)
def test_killed_again_and_again_at_random_moments(text: str, whole: Callable[..., Path], tmp_path: Path) -> None:
    """During start, in a round, while a checkpoint is written: whenever the clock says so."""
    rng, out, kills = random.Random(text), tmp_path / "out", 0
    wanted, command = whole(text, 30), ("run", *COMMON, "--engine", "process", "--algorithm", text, "--rounds", 30, "--out", out)
    for attempt in range(8):
        process = begin(*command) if not (out / "experiment.toml").is_file() else begin("resume", out)
        over = wait([process.sentinel], timeout=rng.uniform(0.1, 0.6) if attempt < 5 else 60)
        if over:
            break
        process.kill()
        process.join()
        kills += 1
    process.join()
    assert process.exitcode == 0
    assert kills >= 2
    same(out, wanted)
    assert good("resume", out, "--json").json["digest"] == result(wanted)["digest"]


@needs_proc
@pytest.mark.parametrize("text", ["scaffold + constrain"])
def test_workers_and_their_owner_are_killed(text: str, whole: Callable[..., Path], tmp_path: Path) -> None:
    """First one worker, which is replaced; then the main process, whose workers end by themselves."""
    count = 100

    def attempt(out: Path) -> bool:
        process = begin("run", *COMMON, "--engine", "processes", "--workers", 2, "--algorithm", text, "--rounds", count, "--out", out)
        assert process.pid is not None
        wait_for(lambda: lines(out) > 3)
        first = workers(process.pid)
        if first:
            assert len(first) == 2
            os.kill(min(first), signal.SIGKILL)
        wait_for(lambda: process.exitcode is not None or len(workers(process.pid) - first) == 1)
        at = lines(out)
        wait_for(lambda: process.exitcode is not None or lines(out) > at)
        left = children(process.pid)
        process.kill()
        process.join()
        wait_for(lambda: not any(alive(pid) for pid in left), seconds=20)
        assert process.exitcode in (0, -signal.SIGKILL)
        return process.exitcode != 0

    out = in_time(tmp_path, attempt)
    assert lines(out) < count
    elsewhere(out)
    good("resume", out)
    same(out, whole(text, count))


@needs_proc
def test_ctrl_c_in_a_terminal(whole: Callable[..., Path], tmp_path: Path) -> None:
    """The whole process group gets it: one line, exit 130, no worker left, and `resume` goes on."""
    count, text = 100, "scaffold + constrain"

    def attempt(out: Path) -> bool:
        wanted = ("run", *COMMON, "--engine", "processes", "--workers", 2, "--algorithm", text, "--rounds", count, "--out", out)
        with started(*wanted) as process:
            wait_for(lambda: lines(out) > 2)
            left = children(process.pid)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
            said, err = process.communicate(timeout=60)
        if process.returncode == 0 and (out / "result.json").exists():
            return False
        assert process.returncode == 130
        assert said == ""
        assert err.rstrip().endswith("accord: interrupted; `accord resume` goes on from the last checkpoint")
        assert "Traceback" not in err
        wait_for(lambda: not any(alive(pid) for pid in left), seconds=20)
        return True

    out = in_time(tmp_path, attempt)
    assert (out / "checkpoint" / "checkpoint.json").is_file()
    assert not (out / "result.json").exists()
    elsewhere(out)
    good("resume", out)
    same(out, whole(text, count))


def test_ctrl_c_while_workers_start(tmp_path: Path) -> None:
    """Workers that still import things hear it too, and have to keep silent."""
    with started("run", *COMMON, "--engine", "processes", "--workers", 2, "--rounds", 10**6, "--out", tmp_path) as process:
        wait_for((tmp_path / "experiment.toml").is_file)
        time.sleep(0.5)
        os.killpg(process.pid, signal.SIGINT)
        said, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == ""
    assert "Traceback" not in err
    assert not (tmp_path / "result.json").exists()


# --- interrupted inside one process ----------------------------------------------------------------------------------------------------


class Interrupted(Process):
    """An engine that is interrupted after so many answers."""

    left = 0

    def map(self, job: Any, clients: Any, kept: Any = lambda client: {}) -> Iterator[Any]:
        for answer in Process.map(self, job, clients, kept):
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
            yield answer


@pytest.mark.parametrize("after", range(0, 18, 3))
def test_interrupted_in_the_middle_of_a_round(
    after: int, whole: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What clients kept in the broken round must not be taken for what they keep after the last whole one."""
    text = "scaffold + constrain"

    def interrupted(name: str, module: Any, federation: Any, **options: Any) -> Process:
        engine = Interrupted(module, federation)
        engine.left = after
        return engine

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_SHARE", 0)
        patch.setattr(running, "open_engine", interrupted)
        answer = accord("run", *COMMON, "--algorithm", text, "--rounds", 6, "--out", tmp_path)
    assert answer.code == 130
    assert answer.err.endswith("interrupted; `accord resume` goes on from the last checkpoint\n")
    good("resume", tmp_path)
    same(tmp_path, whole(text, 6))


# --- killed between any two operations on files ----------------------------------------------------------------------------------------


class Faults:
    """Counts what is done to files, and crashes at one of these operations: before it, or half way through a write."""

    def __init__(self, patch: pytest.MonkeyPatch, at: int, half: bool) -> None:
        self.at, self.half, self.seen = at, half, 0
        for module in (checkpoint, store, running):
            patch.setattr(module, "save_file", self._save)
        for owner, name in ((Path, "replace"), (Path, "unlink"), (Path, "open"), (shutil, "rmtree"), (os, "truncate")):
            patch.setattr(owner, name, self._before(getattr(owner, name), name))

    def _now(self) -> bool:
        self.seen += 1
        return self.seen == self.at

    def _save(self, tensors: Any, path: Path) -> None:
        now = self._now()
        if now and not self.half:
            raise Crash
        real_save(tensors, path)
        if now:
            data = Path(path).read_bytes()
            Path(path).write_bytes(data[: len(data) // 2])
            raise Crash

    def _before(self, real: Any, name: str) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            if name == "open" and "w" not in (*arguments, named.get("mode")):
                return real(*arguments, **named)
            if self._now():
                if name == "open" and self.half:
                    with open(arguments[0], "w") as stream:
                        stream.write('{"round": 1, "ser')
                raise Crash
            return real(*arguments, **named)

        return call


real_save = checkpoint.save_file
ALGORITHM = library.read("scaffold + buffers(local)")


def state(folder: Path, fill: float, clients: range, at: int) -> tuple[Server, Store]:
    """A server and a store full of one number."""
    server = Server.start(ALGORITHM, net(norm=True))
    server.w, server.b, server.round = torch.full_like(server.w, fill), torch.full_like(server.b, fill), at
    server.state = {key: {name: torch.full_like(t, fill) for name, t in s.items()} for key, s in server.state.items()}
    kept = Store(ALGORITHM.keys, folder / "clients", limit=400)
    for client in clients:
        kept.put(client, {ALGORITHM.parts[1]: {"c": torch.full((30,), fill + client)}})
    return server, kept


def read_back(folder: Path) -> Any:
    """Everything that a checkpoint holds."""
    server, kept = Server.start(ALGORITHM, net(norm=True)), Store(ALGORITHM.keys, folder / "clients")
    notes = Checkpoint(folder).load(server, kept)
    states = list(server.state.values())
    return server.round, server.w, server.b, states, {k: dict(kept.get(k)) for k in range(1, 9)}, notes and notes["note"]


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("same_round", [False, True])
def test_a_crash_at_any_operation_leaves_the_old_checkpoint_or_the_new(half: bool, same_round: bool, tmp_path: Path) -> None:
    def prepare(folder: Path) -> tuple[Server, Store]:
        server, kept = state(folder, 1.0, range(1, 6), 1)
        Checkpoint(folder).save(server, kept, {"note": "old"})
        for client in range(3, 9):
            kept.put(client, {ALGORITHM.parts[1]: {"c": torch.full((30,), 20.0 + client)}})
        kept.put(2, {})
        if not same_round:
            server.w, server.round = server.w + 1, 2
        return server, kept

    old = prepare(tmp_path / "old") and read_back(tmp_path / "old")
    Checkpoint(tmp_path / "new").save(*prepare(tmp_path / "new"), {"note": "new"})
    new = read_back(tmp_path / "new")
    assert not identical(old, new)
    seen = set()
    for at in range(1, 100):
        folder = tmp_path / str(at)
        server, kept = prepare(folder)
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, at, half)
            try:
                Checkpoint(folder).save(server, kept, {"note": "new"})
            except Crash:
                pass
            else:
                break
        found = read_back(folder)
        assert identical(found, new if found[-1] == "new" else old), at
        seen.add(found[-1])
        again, kept = state(folder, 0.0, range(0), 0)
        Checkpoint(folder).load(again, kept)
        Checkpoint(folder).save(again, kept, {"note": found[-1]})
        assert identical(read_back(folder), found)
        assert len(list(folder.rglob("*.safetensors"))) == 1 + len(kept.versions)
    assert seen == {"old", "new"}
    assert faults.seen > 10


@pytest.mark.parametrize("half", [False, True])
def test_a_run_that_crashes_at_any_operation_ends_the_same(half: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_SHARE", 0)
    asked = Experiment(
        algorithm="scaffold", clients=4, per_round=2, rounds=3, engine="process", split="iid", batch_size=200, model="mlp(hidden=())"
    )
    wanted, crashes = run(asked, tmp_path / "whole"), 0
    for at in range(1, 200):
        out = tmp_path / "out"
        with pytest.MonkeyPatch.context() as patch:
            faults = Faults(patch, at, half)
            try:
                run(asked, out)
            except Crash:
                crashes += 1
            else:
                assert faults.seen < at
                break
        found = run(asked, out, keep=True) if not (out / "experiment.toml").is_file() else resume(out)
        assert found["digest"] == wanted["digest"]
        assert rounds(out) == rounds(tmp_path / "whole")
        assert sorted(p.name for p in out.iterdir() if p.suffix != ".new") == sorted(p.name for p in (tmp_path / "whole").iterdir())
        shutil.rmtree(out)
    assert crashes > 30


def test_a_crash_while_a_new_run_takes_a_folder_over_never_mixes_the_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "_SHARE", 0)
    common = {"clients": 4, "per_round": 2, "engine": "process", "split": "iid", "batch_size": 200, "model": "mlp(hidden=())"}
    old, new = Experiment(algorithm="scaffold", rounds=2, **common), Experiment(algorithm="scaffold", rounds=2, seed=9, **common)
    wanted = {0: run(old, tmp_path / "old")["digest"], 9: run(new, tmp_path / "new")["digest"]}
    for at in range(1, 40):
        out = tmp_path / str(at)
        shutil.copytree(tmp_path / "old", out)
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, False)
            with contextlib.suppress(Crash):
                run(new, out)
        if (out / "experiment.toml").is_file():
            seed = Experiment.of(running.read_file(out / "experiment.toml")).seed
            assert resume(out)["digest"] == wanted[seed]
        assert run(new, out, keep=True)["digest"] == wanted[9]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_atomically(path, "old")
    for at in (1, 2):
        with pytest.MonkeyPatch.context() as patch:
            Faults(patch, at, True)
            with pytest.raises(Crash):
                write_atomically(path, "new")
        assert path.read_text() == "old"
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


# --- comparisons -----------------------------------------------------------------------------------------------------------------------


def finished(out: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in out.rglob("*") if p.is_file() and (p.parent / "result.json").is_file()}


@needs_proc
def test_a_comparison_that_is_killed_runs_only_what_is_left(tmp_path: Path) -> None:
    common = ("compare", "fedavg", "scaffold", *COMMON, "--seeds", 2, "--rounds", 25)
    out = tmp_path / "out"
    process = begin(*common, "--out", out)
    assert process.pid is not None
    wait_for(lambda: finished(out))
    left = children(process.pid)
    process.kill()
    process.join()
    wait_for(lambda: not any(alive(pid) for pid in left), seconds=20)
    before = finished(out)
    assert before
    last = begin("resume", out, cores=1)
    last.join()
    assert last.exitcode == 0
    after = finished(out)
    assert {path: after[path] for path in before} == before
    record = json.loads((out / "comparison.json").read_text())
    places = [out / place for each in record["runs"].values() for place in each]
    assert len(places) == 4
    good(*common, "--engine", "process", "--out", tmp_path / "whole")
    for place in places:
        same(place, tmp_path / "whole" / place.relative_to(out))


def test_a_comparison_of_natural_clients_resumes_with_as_many(tmp_path: Path) -> None:
    """Keys that are None, as many clients as there are and selection as the algorithm says, stay so."""
    common = (
        "--data",
        "synthetic(1, 1)",
        "--split",
        "natural(client)",
        "--clients",
        0,
        "--per-round",
        0,
        "--rounds",
        2,
        "--engine",
        "process",
    )
    said = good("compare", "fedavg + uniform(3)", *common, "--seeds", 1, "--json", "--out", tmp_path).json
    before = result(tmp_path / "fedavg-uniform-3" / "seed-0")
    (tmp_path / "fedavg-uniform-3" / "seed-0" / "result.json").unlink()
    assert good("resume", tmp_path, "--json").json["rows"] == said["rows"]
    after = result(tmp_path / "fedavg-uniform-3" / "seed-0")
    assert after["digest"] == before["digest"]
    assert len(rounds(tmp_path / "fedavg-uniform-3" / "seed-0")[0]["clients"]) == 3


def test_finished_cells_stay_when_the_machine_is_another(tmp_path: Path) -> None:
    """Engine, workers and memory are no part of what a run is."""
    common = ("compare", "fedavg", "scaffold", *COMMON, "--seeds", 1, "--rounds", 2, "--out", tmp_path)
    good(*common, "--engine", "process")
    before = finished(tmp_path)
    good(*common, "--engine", "threads", "--workers", 3, "--state-memory", 5)
    after = finished(tmp_path)
    cells = [p for p in before if p.name != "report.html"]
    assert {p: after[p] for p in cells} == {p: before[p] for p in cells}
    good(*common, "--engine", "process", "--lr", 0.5)
    assert all(finished(tmp_path)[p] != before[p] for p in cells)


# --- a folder that was changed by hand -------------------------------------------------------------------------------------------------


def test_an_experiment_without_some_keys_is_still_the_same(whole: Callable[..., Path], tmp_path: Path) -> None:
    """A file of an older version, say, that did not know all keys: nothing of the run is thrown away."""
    out = tmp_path / "out"
    shutil.copytree(whole("fedavg", 6), out)
    text = (out / "experiment.toml").read_text()
    (out / "experiment.toml").write_text("".join(line for line in text.splitlines(True) if not line.startswith(("held_out", "device"))))
    before = (out / "model.safetensors").stat().st_mtime_ns
    good("resume", out)
    assert (out / "model.safetensors").stat().st_mtime_ns == before


def test_a_result_that_is_gone_is_written_again(whole: Callable[..., Path], tmp_path: Path) -> None:
    wanted = whole("scaffold + constrain", 6)
    for names in (
        ["result.json"],
        ["result.json", "model.safetensors"],
        ["result.json", "checkpoint"],
        ["result.json", "environment.json"],
    ):
        out = tmp_path / "-".join(names)
        shutil.copytree(wanted, out)
        for name in names:
            shutil.rmtree(out / name) if (out / name).is_dir() else (out / name).unlink()
        good("resume", out)
        same(out, wanted)
