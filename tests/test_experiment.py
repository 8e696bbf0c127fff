"""Experiments: settings from files, flags and Python are the same thing, and a resolved one says everything."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import accord
from accord import catalogue
from accord.experiment import Experiment, checked, cores, device_of, model_for, read_file
from accord.flat import digest

SMALL = st.integers(1, 50)
SETTINGS = st.fixed_dictionaries(
    {},
    optional={
        "algorithm": st.sampled_from(
            ["fedavg", "scaffold + constrain", "fedsol(rho=0.5) + sgd(steps=uniform(1, 9))", "fedavg + power_of_choice(3, d=6)"]
        ),
        "name": st.text(max_size=10),
        "data": st.sampled_from(["digits", "synthetic(1, 1)", "digits(image=True)"]),
        "split": st.sampled_from(["iid", "dirichlet(0.5)", "shards(2)"]),
        "clients": st.integers(6, 12),
        "model": st.sampled_from(["auto", "mlp", "mlp(hidden=(5, 4))"]),
        "rounds": SMALL,
        "per_round": st.integers(0, 6),
        "epochs": SMALL,
        "batch_size": SMALL,
        "lr": st.floats(1e-6, 1e3),
        "momentum": st.floats(0, 0.99),
        "weight_decay": st.floats(0, 1),
        "lr_decay": st.floats(0.1, 1),
        "dropout": st.floats(0, 0.9),
        "seed": st.integers(0, 10**9),
        "split_seed": st.integers(0, 10**9),
        "local_test": st.floats(0, 0.9),
        "held_out": st.integers(0, 2),
        "evaluate_every": SMALL,
        "evaluate_last": st.integers(0, 5),
        "state_memory": st.floats(1e-3, 1e6),
        "engine": st.sampled_from(["auto", "process", "threads", "processes"]),
        "workers": st.integers(0, 9),
        "data_dir": st.text(max_size=5),
    },
)  # fmt: skip


@given(SETTINGS)
def test_an_experiment_is_its_file(settings: dict[str, Any]) -> None:
    found = Experiment.of(settings)
    assert Experiment.of(tomllib.loads(found.toml())) == found
    assert Experiment.of(found.settings()) == found
    assert Experiment().with_(settings).settings() == found.settings() or "epochs" in settings or "steps" in settings
    for key, value in settings.items():
        if not (key in ("clients", "per_round") and value == 0):
            assert getattr(found, key) == value


@given(SETTINGS)
def test_resolving_changes_nothing_but_the_words(settings: dict[str, Any]) -> None:
    found = Experiment.of(settings)
    data = found.federation()
    whole = found.resolved(data)
    again = Experiment.of(tomllib.loads(whole.toml()))
    assert again.resolved(data) == whole == again
    assert again.recipe() == found.recipe()
    assert digest(again.module(data).state_dict()) == digest(found.module(data).state_dict())
    assert again.federation().fingerprint == data.fingerprint
    assert whole.same_as(again)


def test_a_resolved_experiment_does_not_depend_on_defaults() -> None:
    found = Experiment(algorithm="fedprox", clients=8)
    whole = found.resolved(found.federation())
    saved = tomllib.loads(whole.toml())
    assert set(saved) >= {f.name for f in dataclasses.fields(Experiment)} - {
        "epochs",
        "steps",
        "batch_size",
        "lr",
        "momentum",
        "weight_decay",
        "lr_decay",
    }
    for text in ("mu=", "lr=", "momentum=", "epochs=", "batch=", "uniform(count="):
        assert text in saved["algorithm"]
    assert "hidden=(200,)" in saved["model"]
    assert saved["workers"] >= 1
    assert saved["clients"] == 8


@pytest.mark.parametrize(
    ("keys", "change"),
    [
        (
            {"lr": 0.5, "momentum": 0.1, "weight_decay": 0.2, "lr_decay": 0.9, "batch_size": 7},
            {"lr": 0.5, "momentum": 0.1, "decay": 0.2, "lr_decay": 0.9, "batch": 7},
        ),
        ({"epochs": 4}, {"epochs": 4, "steps": None}),
        ({"steps": 9}, {"steps": 9}),
        ({"steps": "uniform(2, 3)"}, {"steps": accord.read("uniform(2, 3)", "steps")}),
    ],
)  # fmt: skip
def test_keys_of_the_local_optimiser_win_over_the_text(keys: dict[str, Any], change: dict[str, Any]) -> None:
    found = Experiment.of({"algorithm": "fedavg + sgd(lr=9, batch=3, steps=2, nesterov=True)", **keys})
    rule = found.recipe().rule
    assert {key: getattr(rule, key) for key in change} == change
    assert rule.nesterov


def test_keys_that_are_not_given_leave_the_text_alone() -> None:
    found = dataclasses.replace(
        Experiment(), **dict.fromkeys(("epochs", "steps", "batch_size", "lr", "momentum", "weight_decay", "lr_decay"))
    )
    found = dataclasses.replace(found, algorithm="fedavg + sgd(lr=9, batch=3, steps=2)", per_round=0)
    assert found.recipe() == accord.read("fedavg + sgd(lr=9, batch=3, steps=2)")


def test_who_takes_part() -> None:
    def select(text: str, **keys: Any) -> str:
        return repr(Experiment.of({"algorithm": text, **keys}).recipe().select)

    assert select("fedavg", per_round=4) == "uniform(count=4)"
    assert select("fedavg", per_round=0) == "all()"
    assert select("fedavg") == "uniform(count=5)"
    assert select("fedavg", clients=3) == "uniform(count=3)"
    assert "m=3" in select("fedavg + power_of_choice(3, d=6)")
    assert "m=4" in select("fedavg + power_of_choice(3, d=6)", per_round=4)
    assert "m=3" in select("fedavg + power_of_choice(3, d=6)", per_round=0)
    assert select("fedavg + power_of_choice(m=3, d=6)", per_round=2) == "power_of_choice(m=2, d=6, reading='authors')"
    assert "count=10" in select("fedavg + groups(0.3, 0.01)")
    assert "count=4" in select("fedavg + groups(share=0.3, probability=0.01)", per_round=4)
    found = Experiment(clients=5, per_round=9)
    with pytest.raises(ValueError, match="per_round is 9, and there are 5 clients"):
        found.resolved(found.federation())


def test_the_first_weights_depend_on_the_seed_only() -> None:
    found = Experiment(clients=6)
    data = found.federation()
    torch.manual_seed(1)
    first = digest(found.module(data).state_dict())
    before = torch.get_rng_state()
    torch.rand(3)
    assert digest(found.with_({"split_seed": 4, "algorithm": "scaffold"}).module(data).state_dict()) == first
    assert digest(found.with_({"seed": 4}).module(data).state_dict()) != first
    torch.set_rng_state(before)
    found.module(data)
    assert torch.get_rng_state().equal(before), "the caller's own stream is left alone"


def test_seed_and_split_seed_are_apart() -> None:
    prints = {Experiment(seed=s, split_seed=t).federation().fingerprint: (s, t) for s in (0, 1) for t in (0, 1)}
    assert len(prints) == 2


def test_what_may_differ_between_two_runs_of_one_experiment() -> None:
    one = Experiment()
    for key, value in {"engine": "threads", "workers": 3, "state_memory": 1.0, "data_dir": "elsewhere"}.items():
        assert one.same_as(one.with_({key: value}))
        assert one.with_({key: value}).same_as(one)
    for key, value in {"seed": 1, "lr": 0.5, "rounds": 7, "device": "cuda", "evaluate_every": 3, "name": "x", "dropout": 0.1}.items():
        assert not one.same_as(one.with_({key: value})), key


def test_a_number_of_steps_replaces_one_of_epochs() -> None:
    one = Experiment.of({"epochs": 3})
    assert (one.with_({"steps": 5}).epochs, one.with_({"steps": 5}).steps) == (None, 5)
    assert (one.with_({"steps": 5}).with_({"epochs": 2}).steps) is None
    with pytest.raises(ValueError, match="epochs and steps are two ways"):
        Experiment.of({"epochs": 3, "steps": 5}).recipe()


def test_checked_says_where() -> None:
    assert checked({"clients": 0, "per_round": 0.0}) == {"clients": None, "per_round": 0}
    assert checked({"rounds": 3.0}) == {"rounds": 3}
    with pytest.raises(ValueError, match=r"^lr in e.toml is -1; it must be a number above 0$"):
        checked({"lr": -1}, "e.toml")
    with pytest.raises(ValueError, match=r"^unknown key 'lrr' in e.toml \(did you mean 'lr'\?\)$"):
        checked({"lrr": 1}, "e.toml")
    with pytest.raises(ValueError, match=r"^unknown key 'zzzzqq'; the flags of `accord run --help` are the keys$"):
        checked({"zzzzqq": 1})


@pytest.mark.parametrize("name", catalogue.names())
def test_every_experiment_that_comes_with_the_package_can_be_read(name: str) -> None:
    read, where = catalogue.read(name)
    assert where == f"the experiment {name!r}"
    base = Experiment.of({key: value for key, value in read.items() if key not in ("algorithms", "seeds", "target")}, where)
    for text in read.get("algorithms", [base.algorithm]):
        assert dataclasses.replace(base, algorithm=text).recipe().parts


def test_small_things(tmp_path: Path) -> None:
    assert cores() >= 1
    assert device_of("cpu") == "cpu"
    assert [model_for(s) for s in ((64,), (1, 8, 8), (3, 32, 32), (1, 28, 28), (3, 32, 20))] == ["mlp", "mlp", "cnn", "cnn", "mlp"]
    (tmp_path / "e.toml").write_text('name = "é"\n', encoding="utf-8")
    assert read_file(tmp_path / "e.toml") == {"name": "é"}
