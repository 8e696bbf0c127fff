"""The command line: every command, what it prints, what it leaves behind, and which setting wins."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import accord as library
from accord import catalogue, listing
from accord.cli import fresh, gather, literal
from accord.data.build import federate
from accord.experiment import Experiment
from accord.flat import digest
from accord.models import Mlp
from accord.recipe import entries
from shell import TINY, accord, good, program, result, rounds, wrong

RUN = {"algorithm", "digest", "accuracy", "rounds", "seconds", "bytes_up", "bytes_down", "out"}
FILES = {
    "experiment.toml",
    "rounds.jsonl",
    "result.json",
    "model.safetensors",
    "environment.json",
    "federation.json",
    "checkpoint",
}


def flags(file: str = "digits", *sets: str, **given: Any) -> Experiment:
    return gather(file, given, sets)[0]


def settings(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "experiment.toml").read_text())


# --- run -------------------------------------------------------------------------------------------------------------------------------


def test_a_run_prints_and_leaves_what_is_documented(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    answer = good("run", *TINY, "--rounds", 3, "--json", "--out", out)
    said = answer.json
    assert set(said) == RUN
    assert said["algorithm"] == "fedavg"
    assert said["rounds"] == 3
    assert said["out"] == str(out)
    assert 0 <= said["accuracy"] <= 1
    assert said["bytes_up"] == said["bytes_down"] == 3 * 3 * 4 * 15010
    assert {p.name for p in out.iterdir()} == FILES
    assert [row["round"] for row in rounds(out)] == [1, 2, 3]
    assert all(set(row) >= {"clients", "absent", "rejected", "loss", "bytes_up", "bytes_down", "evaluation"} for row in rounds(out))
    assert sum(row["bytes_up"] for row in rounds(out)) == said["bytes_up"]
    assert rounds(out)[-1]["evaluation"]["global"]["accuracy"] == said["accuracy"]
    kept = result(out)
    assert {key: kept[key] for key in RUN} == said
    assert {"python", "platform", "cpu", "cores", "torch", "numpy"} <= set(json.loads((out / "environment.json").read_text()))
    assert "fingerprint" in answer.err
    assert "none (no BatchNorm)" in answer.err


def test_without_json_a_person_reads_the_result(tmp_path: Path) -> None:
    answer = good("run", *TINY, "--rounds", 2, "--out", tmp_path)
    kept = result(tmp_path)
    assert kept["digest"] in answer.out
    assert f"{100 * kept['accuracy']:.2f} % of the test set" in answer.out
    assert "2 rounds" in answer.out
    assert str(tmp_path) in answer.out
    assert "heterogeneity" not in answer.out


def test_the_model_loads_with_plain_safetensors_into_a_fresh_module(tmp_path: Path) -> None:
    said = good("run", *TINY, "--rounds", 2, "--json", "--out", tmp_path).json
    tensors = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert digest(tensors) == said["digest"]
    module = Mlp().build((64,), 10)
    module.load_state_dict(tensors, strict=True)
    found = federate("digits", "iid", 5)
    batch = found.test.gather(torch.arange(len(found.test)))
    with torch.no_grad():
        right = (module.eval()(batch.x).logits.argmax(1) == batch.y).double().mean()
    assert float(right) == pytest.approx(said["accuracy"])


def test_the_saved_experiment_runs_again_to_the_same_bits(tmp_path: Path) -> None:
    text = "scaffold + constrain + sgd(clip=5, nesterov=True)"
    first = good(
        "run", *TINY, "--rounds", 3, "--algorithm", text, "--steps", "uniform(1, 4)", "--epochs", 1, "--set", "steps=uniform(1, 4)",
        "--seed", 7, "--split-seed", 3, "--dropout", 0.2, "--lr-decay", 0.9, "--out", tmp_path / "a", "--json",
    ).json  # fmt: skip
    again = good("run", tmp_path / "a" / "experiment.toml", "--json", "--out", tmp_path / "b").json
    assert again["digest"] == first["digest"]
    assert rounds(tmp_path / "a") == rounds(tmp_path / "b")
    assert (tmp_path / "a" / "experiment.toml").read_text() == (tmp_path / "b" / "experiment.toml").read_text()
    saved = settings(tmp_path / "a")
    assert set(saved) == {f.name for f in dataclasses.fields(Experiment)} - {*_RULE_KEYS}
    assert Experiment.of(saved).toml() == (tmp_path / "a" / "experiment.toml").read_text()
    other = good("run", tmp_path / "a" / "experiment.toml", "--seed", 8, "--json", "--out", tmp_path / "c").json
    assert other["digest"] != first["digest"]


_RULE_KEYS = ("epochs", "steps", "batch_size", "lr", "momentum", "weight_decay", "lr_decay")


def test_engines_and_workers_do_not_change_the_digest(tmp_path: Path) -> None:
    common = ("run", "--clients", 5, "--per-round", 3, "--epochs", 1, "--rounds", 3, "--algorithm", "scaffold", "--json")
    seen = {
        good(*common, "--engine", engine, "--workers", workers, "--out", tmp_path / f"{engine}{workers}").json["digest"]
        for engine, workers in (("process", 0), ("threads", 1), ("threads", 3), ("auto", 2), ("processes", 2))
    }
    assert len(seen) == 1


def test_a_new_run_replaces_what_a_folder_held(tmp_path: Path) -> None:
    good("run", *TINY, "--rounds", 4, "--algorithm", "scaffold", "--out", tmp_path)
    second = good("run", *TINY, "--rounds", 2, "--seed", 5, "--json", "--out", tmp_path).json
    assert len(rounds(tmp_path)) == 2
    assert result(tmp_path)["digest"] == second["digest"]
    assert not list((tmp_path / "checkpoint").rglob("clients/*/*"))
    again = good("run", *TINY, "--rounds", 2, "--seed", 5, "--json", "--out", tmp_path / "elsewhere").json
    assert again["digest"] == second["digest"]


def test_results_go_to_a_folder_with_the_time_when_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = good("run", *TINY, "--rounds", 1, "--json").json
    (folder,) = (tmp_path / "runs").iterdir()
    assert said["out"] == f"runs/{folder.name}"
    assert folder.name.endswith("-run")
    names = {fresh("run") for _ in range(3)}
    for name in names:
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    assert fresh("run") not in names


@pytest.mark.parametrize(
    ("flags", "kinds"),
    [
        ((), {"global"}),
        (("--local-test", 0.2), {"global", "local"}),
        (("--held-out", 2), {"global", "new"}),
        (("--local-test", 0.2, "--held-out", 2), {"global", "local", "new"}),
        (("--aligned-test", 20), {"global", "local"}),
        (("--algorithm", "fedavg + finetune", "--local-test", 0.2, "--held-out", 2), {"global", "local", "personal", "new"}),
    ],
)
def test_the_evaluations_that_were_asked_for_are_there(flags: tuple[Any, ...], kinds: set[str], tmp_path: Path) -> None:
    answer = good("run", *TINY, "--rounds", 3, "--evaluate-every", 2, "--out", tmp_path, *flags)
    assert set(result(tmp_path)["evaluation"]) == kinds
    assert all(f"{kind}  " in answer.out for kind in kinds)
    rows = rounds(tmp_path)
    assert [("evaluation" in row) for row in rows] == [False, True, True]
    assert "personal" not in rows[1]["evaluation"]
    for kind in kinds - {"global"}:
        assert set(rows[2]["evaluation"][kind]) == {"mean", "spread", "worst", "clients"}
        assert rows[2]["evaluation"][kind]["clients"] == (2 if kind == "new" else 5)


def test_the_last_rounds_can_all_be_evaluated(tmp_path: Path) -> None:
    good("run", *TINY, "--rounds", 6, "--evaluate-every", 3, "--evaluate-last", 2, "--out", tmp_path)
    assert [("evaluation" in row) for row in rounds(tmp_path)] == [False, False, True, False, True, True]


def test_clients_that_do_not_answer_are_recorded(tmp_path: Path) -> None:
    good("run", *TINY, "--rounds", 8, "--dropout", 0.5, "--out", tmp_path)
    assert any(row["absent"] for row in rounds(tmp_path))
    assert all(len(row["absent"]) + len(row["clients"]) == 3 for row in rounds(tmp_path))


# --- which setting wins ----------------------------------------------------------------------------------------------------------------


def test_flags_win_over_the_file_and_set_over_both(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text("lr = 0.1\nrounds = 5\nmomentum = 0.5\nclients = 7\nper_round = 2\n")
    found = flags(str(file), "rounds=2", "batch-size=9".replace("-", "_"), lr="0.2", rounds="3")
    assert (found.lr, found.rounds, found.momentum, found.clients, found.per_round, found.batch_size) == (0.2, 2, 0.5, 7, 2, 9)
    good("run", file, "--lr", 0.2, "--rounds", 3, "--set", "rounds=2", "--out", tmp_path / "out", "--engine", "process")
    saved = settings(tmp_path / "out")
    assert saved["rounds"] == 2
    assert "lr=0.2" in saved["algorithm"]
    assert "momentum=0.5" in saved["algorithm"]
    assert saved["clients"] == 7
    assert "uniform(count=2)" in saved["algorithm"]


def test_steps_take_the_place_of_epochs_from_a_weaker_source(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text("epochs = 5\n")
    assert flags(str(file), steps="7").recipe().rule.length(torch.Generator()) == (None, 7)
    assert flags(str(file), "steps=8", epochs="2").recipe().rule.length(torch.Generator()) == (None, 8)
    assert flags(str(file), "epochs=8", steps="2").recipe().rule.length(torch.Generator()) == (8, None)


def test_every_key_has_a_flag_and_every_flag_reaches_its_key(tmp_path: Path) -> None:
    piece = tmp_path / "piece.py"
    piece.write_text("")
    given = {
        "algorithm": "scaffold", "name": "5", "data": "synthetic(1, 1)", "split": "iid", "clients": 7, "model": "mlp(hidden=())",
        "rounds": 9, "per_round": 3, "epochs": 2, "steps": 4, "batch_size": 8, "lr": 0.5, "momentum": 0.1, "weight_decay": 0.01,
        "lr_decay": 0.5, "dropout": 0.1, "seed": 4, "split_seed": 5, "local_test": 0.1, "aligned_test": 6, "held_out": 1,
        "evaluate_every": 2, "evaluate_last": 3, "evaluate": ("local", "new"), "data_fraction": 0.5,
        "track": ("drift", "knowledge"), "address": "auto",
        "state_memory": 5.0, "engine": "threads", "workers": 3, "device": "cpu", "data_dir": "here", "use": (str(piece),),
    }  # fmt: skip
    assert set(given) == {f.name for f in dataclasses.fields(Experiment)}
    help_text = good("run", "--help").out
    for key, value in given.items():
        found = flags(**{key: value if isinstance(value, tuple) else str(value)})
        assert getattr(found, key) == value
        assert f"--{key.replace('_', '-')}" in help_text
        (tmp_path / "one.toml").write_text(f"{key} = {list(value) if isinstance(value, tuple) else value!r}\n")
        assert getattr(flags(str(tmp_path / "one.toml")), key) == value


def test_numbers_are_read_from_flags_only_where_a_number_may_stand() -> None:
    assert literal("steps", "5") == 5
    assert literal("steps", "uniform(1, 2)") == "uniform(1, 2)"
    assert literal("lr", "1e-3") == 0.001
    assert flags(name="2024", data_dir="17").name == "2024"
    assert flags("digits", "name=1e3").name == "1e3"
    assert flags(rounds="1e2").rounds == 100


def test_the_comparison_without_arguments_is_the_experiment_digits() -> None:
    read, _ = catalogue.read("digits")
    assert read["algorithms"] == ["fedavg", "fedprox", "scaffold", "fedavg + constrain", "fedsol", "fedsol + constrain"]
    assert (read["seeds"], read["clients"], flags().split) == (3, 20, "dirichlet(0.1)")
    for text in read["algorithms"]:
        assert library.read(text)


# --- pieces of one's own ---------------------------------------------------------------------------------------------------------------

PIECES = '''"""A part, a split and a model of one's own."""
import math
import torch
from torch import nn
import accord
from accord.models import Model
from accord.data.partition import Split

@accord.named
class TestHalve(accord.Part):
    """Half of each gradient."""
    by: float = 2.0
    def gradient(self, client, batch, inner):
        inner(batch)
        client.g.div_(self.by)

class TestNet(nn.Module):
    def __init__(self, inputs, classes):
        super().__init__()
        self.norm = nn.BatchNorm1d(inputs)
        self.head = nn.Linear(inputs, classes)
    def forward(self, x):
        return self.head(self.norm(x.flatten(1)))

@accord.named
class TestNorm(Model):
    """A linear model behind batch norm."""
    def build(self, shape, classes):
        return TestNet(math.prod(shape), classes)
'''


@pytest.fixture
def pieces(tmp_path: Path) -> Path:
    path = tmp_path / "my_pieces.py"
    path.write_text(PIECES)
    return path


def test_a_part_and_a_model_of_ones_own(pieces: Path, tmp_path: Path) -> None:
    """On every engine: worker processes import the file too."""
    common = (
        *TINY,
        "--rounds",
        2,
        "--use",
        pieces,
        "--model",
        "test_norm",
        "--algorithm",
        "fedavg + test_halve(by=4)",
        "--split",
        "iid",
        "--json",
    )
    seen = {e: good("run", *common, "--engine", e, "--workers", 2, "--out", tmp_path / e).json["digest"] for e in ("process", "processes")}
    assert len(set(seen.values())) == 1
    assert settings(tmp_path / "process")["use"] == [str(pieces)]
    assert "test_halve(by=4.0)" in settings(tmp_path / "process")["algorithm"]
    names = safetensors.torch.load_file(tmp_path / "process" / "model.safetensors")
    assert {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "head.weight"} <= set(names)
    assert good("resume", tmp_path / "process", "--json").json["digest"] == seen["process"]
    listed = good("list", "parts", "--use", pieces, "--json").json
    assert {"name": "test_halve", "kind": "part", "arguments": "by: a number = 2.0", "effect": "Half of each gradient."} in listed


# --- compare, resume, report -----------------------------------------------------------------------------------------------------------


def test_a_comparison(tmp_path: Path) -> None:
    common = (*TINY, "--rounds", 3, "--seeds", 2, "--target", 0.2)
    answer = good("compare", "fedavg", "scaffold + constrain", *common, "--json", "--out", tmp_path)
    said = answer.json
    assert set(said) == {"rows", "set_up", "out", "report"}
    assert [row["algorithm"] for row in said["rows"]] == ["fedavg", "scaffold + constrain"]
    assert said["set_up"]["clients"] == 5
    assert said["set_up"]["engine"] == "process"
    page = Path(said["report"])
    assert "scaffold + constrain" in page.read_text(encoding="utf-8")
    record = json.loads((tmp_path / "comparison.json").read_text())
    assert record["seeds"] == [0, 1]
    assert record["target"] == 0.2
    for places in record["runs"].values():
        for seed, place in zip(record["seeds"], places, strict=True):
            assert {p.name for p in (tmp_path / place).iterdir()} >= FILES
            assert settings(tmp_path / place)["seed"] == seed
    alone = good("run", *TINY, "--rounds", 3, "--seed", 1, "--json", "--out", tmp_path / "alone").json
    assert alone["digest"] == result(tmp_path / "fedavg" / "seed-1")["digest"]
    again = good("resume", tmp_path, "--json").json
    assert again["rows"] == said["rows"]
    table = good("resume", tmp_path)
    assert "fedavg" in table.out
    assert "report: " in table.out


def test_a_comparison_from_a_file_with_its_own_seeds_and_target(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        'algorithms = ["fedavg", "fedprox(mu=1)"]\nseeds = 1\ntarget = 0.5\nrounds = 2\nclients = 5\nper_round = 2\nengine = "process"\n'
    )
    said = good("compare", file, "--json", "--out", tmp_path / "a").json
    assert [row["algorithm"] for row in said["rows"]] == ["fedavg", "fedprox(mu=1)"]
    record = json.loads((tmp_path / "a" / "comparison.json").read_text())
    assert (record["seeds"], record["target"]) == ([0], 0.5)
    good("compare", file, "scaffold", "--seed", 4, "--seeds", 2, "--target", 0.1, "--json", "--out", tmp_path / "b")
    record = json.loads((tmp_path / "b" / "comparison.json").read_text())
    assert (record["seeds"], record["target"], record["algorithms"]) == ([4, 5], 0.1, ["scaffold"])


def test_resuming_a_finished_run_only_reads_it(tmp_path: Path) -> None:
    first = good("run", *TINY, "--rounds", 2, "--json", "--out", tmp_path / "a").json
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*") if p.is_file()}
    again = good("resume", tmp_path / "a", "--json").json
    assert again == first
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "a").rglob("*") if p.is_file()} == before
    (tmp_path / "a").rename(tmp_path / "b")
    assert good("resume", tmp_path / "b", "--json").json == first | {"out": str(tmp_path / "b")}
    assert first["digest"] in good("resume", tmp_path / "b").out


def test_a_report_of_runs_and_comparisons(tmp_path: Path) -> None:
    for seed in (0, 1):
        good("run", *TINY, "--rounds", 2, "--seed", seed, "--out", tmp_path / f"a{seed}")
        good("run", *TINY, "--rounds", 2, "--seed", seed, "--algorithm", "fedprox", "--name", "proximal", "--out", tmp_path / f"b{seed}")
    folders = [tmp_path / name for name in ("a0", "a1", "b0", "b1")]
    answer = good("report", *folders, "--out", tmp_path / "page" / "it.html", "--baseline", "fedavg", "--target", "0.1")
    assert answer.out.strip() == str(tmp_path / "page" / "it.html")
    text = (tmp_path / "page" / "it.html").read_text(encoding="utf-8")
    assert "proximal" in text
    assert "http" not in text.split("<main>")[0].replace("http-equiv", "")
    assert good("report", folders[0]).out.strip() == str(tmp_path / "a0" / "report.html")
    assert "fedpox" in wrong("report", *folders, "--baseline", "fedpox")


# --- list and help ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", listing.KINDS)
def test_every_list(kind: str) -> None:
    found = good("list", kind, "--json").json
    assert found
    assert all(set(row) - {"cost", "fit"} == {"name", "kind", "arguments", "effect"} for row in found)
    assert all(("cost" in row) == (row["kind"] == "algorithm") for row in found)
    assert all(("fit" in row) == (row["kind"] == "model") for row in found)
    assert all("every algorithm" in row["fit"] for row in found if row["kind"] == "model" and not row["name"].startswith("test_"))
    shown = good("list", kind).out
    assert all(row["name"] in shown for row in found)
    if kind not in ("engines", "experiments"):
        registered = {e.name for k in listing.KINDS[kind] for e in entries(k)}
        assert {row["name"] for row in found} == registered
        assert all(row["effect"] for row in found if not row["name"].startswith("test_"))


@pytest.mark.parametrize("command", [(), ("run",), ("compare",), ("resume",), ("report",), ("list",)])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help(command: tuple[str, ...], flag: str) -> None:
    answer = good(*command, flag)
    assert answer.out.startswith("Usage: accord")
    assert answer.err == ""
    if not command:
        assert all(name in answer.out for name in ("run", "compare", "resume", "report", "list"))
        assert "Federated learning for clients that disagree" in answer.out


def test_the_version() -> None:
    assert library.__version__ in good("--version").out


# --- the installed program -------------------------------------------------------------------------------------------------------------


def test_the_installed_program(tmp_path: Path) -> None:
    answer = program("run", *TINY, "--rounds", 2, "--json", "--out", "here", cwd=tmp_path)
    assert answer.code == 0
    assert set(answer.json) == RUN
    assert answer.json["digest"] == good("run", *TINY, "--rounds", 2, "--json", "--out", tmp_path / "b").json["digest"]
    assert accord("run", tmp_path / "here" / "experiment.toml", "--out", tmp_path / "c").code == 0
    bad = program("run", "--algorithm", "fedpox", cwd=tmp_path)
    assert (bad.code, bad.out) == (2, "")
    assert bad.err == "accord: unknown name 'fedpox' at column 1 of 'fedpox' (did you mean 'fedprox'?)\n"
    assert not (tmp_path / "runs").exists()
