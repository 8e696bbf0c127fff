"""A federation over messages gives the bits of a run in one process, whatever its sites do to it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr", reason="the extra flower is not installed")

from flwr.app import Array, ArrayRecord, Message, RecordDict

from accord import control
from accord.engines.process import Process
from accord.experiment import Experiment
from accord.flat import digest
from accord.flower import service
from accord.run import run
from accord.server import Server, rounds
from flower.loop import Loop, play, said, site

BASE = Experiment(
    algorithm="scaffold + constrain", split="dirichlet(0.5)", clients=3, rounds=3, per_round=0, epochs=1, model="mlp(hidden=8)"
)
RECIPES = [
    "scaffold + constrain",
    "fedavg",
    "feddyn + sgd(persist=True)",
    "moon",
    "fednova + normalise(variate=moving)",
    "fedadam + uniform(2)",
    "fedsol(rho=1.0)",
    "adabest",
    "fedoptz",
    "scaffold + power_of_choice(2, d=3)",
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "POLL", 0.0)


def three(tmp_path: Path, **options: Any) -> Loop:
    return Loop({11 + k: site(tmp_path / f"site{k}", k, **options) for k in range(3)})


def result(state: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((state / "result.json").read_text())
    return found


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_digest_is_that_of_a_run_in_one_process(recipe: str, tmp_path: Path) -> None:
    asked = BASE.with_({"algorithm": recipe, "rounds": 3, "local_test": 0.2})
    play(three(tmp_path), asked, tmp_path / "server")
    expected, found = run(asked.with_({"engine": "process"}), tmp_path / "run"), result(tmp_path / "server")
    assert found["digest"] == expected["digest"]
    assert found["evaluation"]["global"] == expected["evaluation"]["global"]
    assert found["evaluation"]["local"] == expected["evaluation"]["local"]
    assert found["heterogeneity"] is None


def test_batch_statistics_travel_too(tmp_path: Path) -> None:
    asked = BASE.with_(
        {"algorithm": "fedavg", "data": "digits(image=True)", "model": "resnet18(width=2)", "rounds": 1, "epochs": 1, "batch_size": 100}
    )
    play(three(tmp_path, data="digits(image=True)"), asked, tmp_path / "server")
    assert result(tmp_path / "server")["digest"] == run(asked.with_({"engine": "process"}), tmp_path / "run")["digest"]


class Absent:
    """An engine without some clients in some rounds, as if they had not been there."""

    name = "absent"

    def __init__(self, engine: Process, away: dict[int, set[int]]) -> None:
        self.engine, self.away = engine, away

    def map(self, job: Any, clients: Any, kept: Any = lambda client: {}) -> Any:
        from accord.cohort import Reply

        gone = self.away.get(job.round, set())
        yield from self.engine.map(job, [k for k in clients if k not in gone], kept)
        yield from ((k, Reply(torch.empty(0), client=k, failure="was away")) for k in clients if k in gone)


def reference(asked: Experiment, away: dict[int, set[int]]) -> str:
    """The digest of the run in which these clients gave no answer in these rounds."""
    federation = asked.federation()
    asked = asked.resolved(federation)
    module, algorithm = asked.module(federation), asked.recipe()
    server = Server.start(algorithm, module)
    with Process(module, federation) as engine:
        for _ in rounds(algorithm, module, federation, rounds=asked.rounds, engine=Absent(engine, away), server=server):  # type: ignore[arg-type]
            pass
    return digest(server.model(module).state_dict())


def spoiled(change: Any) -> Any:
    """A site whose answers to training requests are changed by `change(round, content)`; None loses the answer."""

    def spoil(reply: Message) -> Message | None:
        if reply.metadata.message_type != "train" or reply.has_error():
            return reply
        return reply if change(int(reply.metadata.group_id), reply.content) is not False else None

    return spoil


def nan(content: RecordDict) -> None:
    array = next(iter(content.array_records["w"].values()))
    array.data = array.data[:-4] + b"\x00\x00\xc0\x7f"


def shape(content: RecordDict) -> None:
    first = next(iter(content.array_records["w"]))
    content["w"][first] = Array(torch.zeros(3, 3).numpy())  # type: ignore[index]


def names(content: RecordDict) -> None:
    content["up"] = ArrayRecord({"normalise/1/a": Array(torch.zeros(1).numpy())})


def garbage(content: RecordDict) -> None:
    next(iter(content.array_records["w"].values())).data = b"\x93NUMPY garbage" * 9


def pickled(content: RecordDict) -> None:
    first, array = next(iter(content.array_records["w"].items()))
    content["w"][first] = Array("object", array.shape, "numpy.ndarray", b"cos\nsystem\n(S'true'\ntR.")  # type: ignore[index]


def first_in_wrong_shape(content: RecordDict) -> None:
    content["up"] = ArrayRecord({"control/1/change": Array(torch.zeros(5).numpy())})


def empty(content: RecordDict) -> None:
    content.clear()


def lies(content: RecordDict) -> None:
    content["answer"]["samples"] = -3  # type: ignore[index]


def lost(content: RecordDict) -> bool:
    return False


BAD = {
    1: (nan, "sent numbers that are not finite"),
    2: (shape, "in shape (3, 3) as float32; it is (8, 64) as float32"),
    3: (names, "did not send the state control/1/change; it sent normalise/1/a"),
    4: (garbage, "as bytes that are no float32 array of shape (8, 64)"),
    5: (pickled, "as numpy.ndarray of object, which is not read here"),
    6: (first_in_wrong_shape, "in shape (5,) as float32"),
    7: (empty, "sent no 'answer'"),
    8: (lies, "said of its round what cannot be"),
    9: (lost, "did not answer within 0.2 s"),
}


def test_a_site_that_sends_what_it_should_not_is_named_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, grid = BASE.with_({"rounds": 10}), three(tmp_path)
    monkeypatch.setattr("accord.flower.engine._GRACE", 0.0)
    grid.spoil[11] = spoiled(lambda at, content: BAD[at][0](content) if at in BAD else None)  # type: ignore[no-untyped-call]
    play(grid, asked, tmp_path / "server", timeout=0.2)
    log = said(tmp_path / "server")
    for at, (_, why) in BAD.items():
        line = log.split(f"round {at} of 10, ")[1].split("\n")[1]
        assert line.startswith("  site-1 left out: it ")
        assert why in line
    assert result(tmp_path / "server")["rejected"] == 9
    assert result(tmp_path / "server")["digest"] == reference(asked, {at: {0} for at in range(9)})


def test_an_answer_that_was_lost_leaves_no_trace_in_the_state_of_its_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accord.flower.engine._GRACE", 0.0)
    asked, grid = BASE.with_({"rounds": 5}), three(tmp_path)
    grid.spoil[12] = spoiled(lambda at, content: at not in (2, 4))
    play(grid, asked, tmp_path / "server", timeout=0.2)
    assert result(tmp_path / "server")["digest"] == reference(asked, {1: {1}, 3: {1}})
    files = list((tmp_path / "site1" / "rounds").glob("*/*.safetensors"))
    assert len(files) == 2  # what the server counts on, and what waits for its word


class Killed(BaseException):
    """The end of a server's process, at any line."""


@pytest.mark.parametrize("at", [1, 4, 6, 8, 12])
def test_a_killed_server_goes_on_to_the_same_digest(tmp_path: Path, at: int) -> None:
    """The kill comes between the answers of a round, so that some sites hold a state that no checkpoint knows."""
    asked, grid, seen = BASE.with_({"rounds": 4}), three(tmp_path), list[bool]()

    def kill(reply: Message) -> Message:
        seen.append(reply.metadata.message_type == "train")
        if seen[-1] and sum(seen) == at:
            raise Killed
        return reply

    grid.spoil = dict.fromkeys(grid.nodes, kill)  # type: ignore[assignment]
    with pytest.raises(Killed):
        play(grid, asked, tmp_path / "server")
    grid.spoil.clear()
    play(grid, asked, tmp_path / "server")
    assert result(tmp_path / "server")["digest"] == run(asked.with_({"engine": "process"}), tmp_path / "run")["digest"]


def test_a_site_that_is_gone_is_left_out_and_comes_back_with_its_state(tmp_path: Path) -> None:
    asked, grid = BASE.with_({"rounds": 5}), three(tmp_path)
    home = grid.nodes[13]

    def leave(at: int, content: RecordDict) -> None:
        if at == 1:
            del grid.nodes[13]
        if at == 3:
            grid.nodes[99] = home  # without a key a node that starts again has another number

    grid.spoil[11] = spoiled(leave)
    play(grid, asked, tmp_path / "server", least=2)
    log = said(tmp_path / "server")
    assert "site-3 is gone" in log
    assert log.count("site-3 is connected") == 2
    away = {r - 1: {2} for r in range(1, 6) if f"round {r} of 5, answers from site-1, site-2, accuracy" in log}
    assert away
    assert result(tmp_path / "server")["digest"] == reference(asked, away)


def test_a_site_that_lost_its_state_says_so_and_may_begin_anew(tmp_path: Path) -> None:
    asked, grid = BASE.with_({"rounds": 4}), three(tmp_path)

    def lose(at: int, content: RecordDict) -> None:
        if at == 1:
            shutil.rmtree(tmp_path / "site1" / "rounds")
        if at == 2:
            site(tmp_path / "site1", 1, more="anew = true")

    grid.spoil[13] = spoiled(lose)
    play(grid, asked, tmp_path / "server")
    log = said(tmp_path / "server")
    assert "site-2 left out: it has lost what it kept from its earlier rounds" in log
    assert "round 4 of 4, answers from site-1, site-2, site-3" in log


def test_what_a_site_sends_is_arrays_and_counts_and_all_of_it_is_on_its_log(tmp_path: Path) -> None:
    grid = three(tmp_path)
    play(grid, BASE.with_({"rounds": 1, "local_test": 0.2}), tmp_path / "server")
    log = said(tmp_path / "site0", "site.log")
    assert "round 1: asked to train: task + control + constrain + sgd(epochs=1)" in log
    assert "  sends w hidden.0.weight (8, 64) float32 2,048 B" in log or "  sends w" in log
    assert "  sends up control/1/change (610,) float32 2,440 B" in log
    scores = [line for line in log.split("\n") if "score" in line]
    assert [line.split("=")[0] for line in scores] == ["  sends score right", "  sends score samples", "  sends score loss"]


def test_the_server_may_hold_no_data_at_all(tmp_path: Path) -> None:
    asked = BASE.with_({"rounds": 2, "local_test": 0.2, "algorithm": "fedavg + finetune"})
    play(three(tmp_path), asked, tmp_path / "server", test_here=False)
    expected, found = run(asked.with_({"engine": "process"}), tmp_path / "run"), result(tmp_path / "server")
    assert found["digest"] == expected["digest"]
    assert "global" not in found["evaluation"]
    assert found["evaluation"]["personal"] == expected["evaluation"]["personal"]


def test_sites_bring_data_of_their_own(tmp_path: Path) -> None:
    import numpy as np

    rng, grid = np.random.default_rng(0), Loop({})
    for k in range(2):
        np.savez(tmp_path / f"{k}.npz", x=rng.normal(size=(40 + 20 * k, 6)).astype("float32"), y=np.arange(40 + 20 * k) % 3)
        grid.nodes[k + 5] = site(tmp_path / f"site{k}", -1, split="", data=str(tmp_path / f"{k}.npz"), more="")
        (tmp_path / f"site{k}" / "site.toml").write_text(grid.nodes[k + 5].read_text().replace("site-0", f"clinic-{k}"))
    play(grid, BASE.with_({"clients": 2, "rounds": 2}), tmp_path / "server", test_here=False)
    assert result(tmp_path / "server")["evaluation"]["local"]["clients"] == 2
    assert "clinic-1 is connected: client 1, 54 samples" in said(tmp_path / "server")


@pytest.mark.parametrize(
    ("more", "settings", "why"),
    [
        ("clip = 1.0", {}, "adds noise to weights only, and this recipe sends more"),
        ("", {"algorithm": "fedavg", "steps": 1, "batch_size": 1}, "would send the gradient of a single example"),
    ],
)
def test_what_a_site_refuses(more: str, settings: dict[str, Any], why: str, tmp_path: Path) -> None:
    grid = three(tmp_path)
    grid.nodes[11] = site(tmp_path / "site0", 0, more=more)
    grid.nodes[12] = site(tmp_path / "site1", 1, more='allow = ["single-example"]')
    play(grid, BASE.with_({"rounds": 1, **settings}), tmp_path / "server")
    assert f"site-1 left out: it {why}" in said(tmp_path / "server")
    assert f"refused: {why}" in said(tmp_path / "site0", "site.log")


def test_a_recipe_with_a_name_that_a_site_does_not_know_is_refused(tmp_path: Path) -> None:
    from accord.flower.site import Refused, Site, recipe

    here = Site.read(site(tmp_path / "s", 0))
    for text in (
        "fedavg + stranger",
        "__import__('os').system('true')",
        "fedavg + constrain(center=open('x'))",
        "x" * 30_000,
        "iid",
        "centralised",
    ):
        with pytest.raises(Refused):
            recipe(text, here)


def test_differential_privacy_clips_adds_noise_and_counts(tmp_path: Path) -> None:
    grid = three(tmp_path)
    grid.nodes[11] = site(tmp_path / "site0", 0, more="clip = 0.5\nnoise = 2.0\ndelta = 1e-5")
    play(grid, BASE.with_({"algorithm": "fedavg", "rounds": 2}), tmp_path / "server")
    log = said(tmp_path / "site0", "site.log")
    from opacus.accountants import RDPAccountant

    for count in (1, 2):
        accountant = RDPAccountant()
        accountant.history = [(2.0, 1.0, count)]
        epsilon = accountant.get_epsilon(1e-5)
        assert f"clipped to 0.5, noise 2 x 1; {count} updates sent so far: epsilon {epsilon:.4g} at delta 1e-05" in log
    lines = [line for line in log.split("\n") if line.startswith("  sends answer loss")]
    assert lines == ["  sends answer loss=nan"] * 2


def test_a_part_that_tells_of_classes_has_to_be_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "reveals", "how many samples of each class it has")
    grid = three(tmp_path)
    for k in (1, 2):
        grid.nodes[11 + k] = site(tmp_path / f"site{k}", k, more='allow = ["control"]')
    play(grid, BASE.with_({"rounds": 1}), tmp_path / "server")
    log = said(tmp_path / "server")
    assert "site-1 left out: it does not accept control, which would send how many samples of each class it has" in log
    assert "answers from site-2, site-3," in log


def test_a_rehearsal_needs_the_number_of_a_part_only(tmp_path: Path) -> None:
    """As in an app directory that `flwr run` runs over nodes started with --node-config 'partition-id=0'."""
    from flwr.app import Context

    from accord.flower.site import here

    config = {"experiment": BASE.toml()}
    found = here(Context(1, 2, {"partition-id": 1, "state": str(tmp_path)}, RecordDict(), config))  # type: ignore[dict-item]
    assert (found.name, found.data, found.split, found.index, found.state) == ("site-2", BASE.data, BASE.split, 1, tmp_path / "1")
    with pytest.raises(ValueError, match="node-config"):
        here(Context(1, 2, {}, RecordDict(), config))  # type: ignore[arg-type]


def test_two_sites_cannot_be_one_client_and_a_key_gives_the_name(tmp_path: Path) -> None:
    grid = three(tmp_path)
    twin = site(tmp_path / "twin", 0)
    twin.write_text(twin.read_text().replace('"site-1"', '"twin"'))
    grid.nodes[20] = twin
    grid.names = {11: "north", 20: "south"}
    play(grid, BASE.with_({"rounds": 1}), tmp_path / "server")
    log = said(tmp_path / "server")
    assert "north is connected: client 0" in log
    assert "node 20 is left out: it calls itself 'south' and wants the place of 'north'" in log


def test_sites_with_other_samples_or_another_protocol_are_left_out(tmp_path: Path) -> None:
    grid = three(tmp_path)
    grid.nodes[13] = site(tmp_path / "site2", 2, data="digits(image=True)")

    def older(reply: Message) -> Message:
        if reply.metadata.message_type == "query":
            reply.content["site"]["shape"] = "wide"  # type: ignore[index]
        return reply

    grid.spoil[12] = older
    play(grid, BASE.with_({"rounds": 1}), tmp_path / "server", least=1)
    log = said(tmp_path / "server")
    assert "has samples of shape (1, 8, 8); the others' are (64,)" in log
    assert "node 12 is left out: it did not say of what shape its samples are" in log
    assert "site-1" in log.split("answers from")[1]
