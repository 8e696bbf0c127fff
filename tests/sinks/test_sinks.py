"""Every sink holds the configuration, each round's numbers and the digest, also of an interrupted run, and the run is as without it."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accord.compare import cells, verify
from accord.experiment import Experiment, read_file
from accord.run import run
from accord.sinks import NAMES, numbers

Read = Callable[[Path], tuple[dict[str, Any], dict[str, dict[int, float]], str]]  # configuration, numbers by name and round, digest
EXPERIMENT = Experiment(rounds=4, model="mlp(hidden=(8,))", clients=5, per_round=2, epochs=1, engine="process", name="fedavg")


def tensorboard(folder: Path) -> tuple[dict[str, Any], dict[str, dict[int, float]], str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    held = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    held.Reload()
    text = {tag: held.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in held.Tags()["tensors"]}
    settings = dict(line.strip().split(" = ", 1) for line in text["configuration/text_summary"].splitlines())
    numbers = {tag: {event.step: event.value for event in held.Scalars(tag)} for tag in held.Tags()["scalars"]}
    result = dict(line.strip().split(" = ", 1) for line in text["result/text_summary"].splitlines())
    return {key: json.loads(value) for key, value in settings.items()}, numbers, json.loads(result["digest"])


def mlflow(folder: Path) -> tuple[dict[str, Any], dict[str, dict[int, float]], str]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow' / 'mlflow.db'}")
    (held,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert (held.info.status, held.info.run_name) == ("FINISHED", "fedavg")
    numbers = {name: {m.step: m.value for m in client.get_metric_history(held.info.run_id, name)} for name in held.data.metrics}
    return {key: bare(value) for key, value in held.data.params.items()}, numbers, held.data.tags["digest"]


def bare(text: str) -> Any:
    """A value as JSON, or the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def wandb(folder: Path) -> tuple[dict[str, Any], dict[str, dict[int, float]], str]:
    from wandb.proto.wandb_internal_pb2 import Record

    settings: dict[str, Any] = {}
    numbers: dict[str, dict[int, float]] = {}
    summary: dict[str, Any] = {}
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for data in chunks(file.read_bytes()):
            record = Record.FromString(data)
            settings |= {item.key: json.loads(item.value_json) for item in record.run.config.update if item.key != "_wandb"}
            told = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            for name, value in told.items():
                if not name.startswith("_"):
                    numbers.setdefault(name, {})[int(told["_step"])] = value
            summary |= {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.summary.update}
    return settings, numbers, summary["digest"]


def chunks(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log after its header of seven bytes."""
    place, held = 7, b""
    while place + 7 <= len(data):
        left = 32768 - place % 32768
        if left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        held += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield held
            held = b""


READ: dict[str, Read] = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run(EXPERIMENT, tmp_path_factory.mktemp("plain"))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bytes]]:
    """What was asked of the network by way of a proxy, which programs that obey the environment would take."""
    found: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            with suppress(OSError):
                while True:
                    found.append(server.accept()[0].recv(200))

        threading.Thread(target=listen, daemon=True).start()
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            for key in (name, name.upper()):
                monkeypatch.setenv(key, f"http://127.0.0.1:{server.getsockname()[1]}")
        yield found


@pytest.mark.parametrize("name", NAMES)
def test_a_run_that_was_interrupted_is_whole_in_every_sink(name: str, tmp_path: Path, plain: dict[str, Any], asked: list[bytes]) -> None:
    pytest.importorskip(name, reason=f"needs {name}")
    tracked = replace(EXPERIMENT, track=(name,))

    def stop(line: dict[str, Any]) -> None:
        if line["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tracked, tmp_path, progress=stop)
    result = run(tracked, tmp_path, keep=True)
    assert result["digest"] == plain["digest"]
    end = time.monotonic() + 30
    while name == "wandb" and b"digest" not in b"".join(path.read_bytes() for path in tmp_path.glob("tracked/wandb/offline-run-*/*.wandb")):
        assert time.monotonic() < end, "the service of wandb did not write the end"
        time.sleep(0.05)  # it is a process of its own
    settings, found, digest = READ[name](tmp_path / "tracked")
    assert digest == plain["digest"]
    written = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    wanted: dict[str, dict[int, float]] = {}
    for line in written:
        for key, value in numbers(line).items():
            wanted.setdefault(key, {})[line["round"]] = value
    assert set(found) == set(wanted)
    assert len(wanted["evaluation/global/accuracy"]) == 4
    for key in set(wanted) - {"seconds"}:
        assert found[key] == pytest.approx(wanted[key], rel=1e-6), key
    assert settings == json.loads(json.dumps(Experiment.of(read_file(tmp_path / "experiment.toml")).settings()))
    assert {path.name for path in (tmp_path / "tracked").iterdir()} == {name}
    assert asked == []


def test_a_new_run_into_the_folder_forgets_what_was_tracked(tmp_path: Path) -> None:
    (tmp_path / "tracked" / "wandb").mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    run(replace(EXPERIMENT, rounds=1), tmp_path)
    assert not (tmp_path / "tracked").exists()
    assert (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", NAMES)
def test_a_missing_package_is_named_before_anything_starts(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda each: None)
    tracked = replace(EXPERIMENT, track=("drift", name))
    said = rf"track {name} needs the package {name}, which is not here: pip install 'accord\[track\]'"
    with pytest.raises(ValueError, match=said):
        run(tracked, tmp_path / "run")
    with pytest.raises(ValueError, match=said):
        verify(cells(tracked, ["fedavg", "fedprox"], 1, tmp_path / "many"))
    assert list(tmp_path.iterdir()) == []
