"""A site's state survives anything: an answer that was lost, a server that went back, a process that died at any line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra flower is not installed")

from accord.flower import ledger as module
from accord.flower.ledger import Ledger


def held(ledger: Ledger, tag: int) -> float | None:
    kept = ledger.settle(tag)
    return float(kept["part"]["c"]) if kept else None


def put(ledger: Ledger, number: float) -> int:
    return ledger.propose({"part": {"c": torch.tensor(number)}})


@settings(max_examples=60)
@given(st.lists(st.sampled_from(["accepted", "lost", "restart", "silent"]), max_size=12))
def test_the_state_is_always_the_one_that_was_accepted_last(story: list[str]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        ledger, tag, expected = Ledger(Path(folder), ["part"]), 0, None
        for at, event in enumerate(story):
            if event == "restart":
                ledger = Ledger(Path(folder), ["part"])
                continue
            if event == "silent":  # the message never came
                continue
            assert held(ledger, tag) == expected
            proposed = put(ledger, float(at))
            if event == "accepted":
                tag, expected = proposed, float(at)
        assert held(ledger, tag) == expected
        assert len(list(Path(folder).glob("*.safetensors*"))) == (tag != 0)


def test_a_process_that_dies_while_it_writes_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path, ["part"])
    tag = put(ledger, 1.0)

    def die(*given: object) -> None:
        raise KeyboardInterrupt

    for name in ("save_file", "os.fsync"):
        with monkeypatch.context() as patch:
            target = (module, name) if "." not in name else (os, "fsync")
            patch.setattr(*target, die)
            with pytest.raises(KeyboardInterrupt):
                put(ledger, 2.0)
        assert held(ledger, tag) == 1.0
    assert [file.name for file in tmp_path.glob("*.safetensors*")] == [f"{tag}.safetensors"]


def test_an_empty_state_is_a_state(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, ["part"])
    assert ledger.settle(ledger.propose({})) == {}


def test_a_state_that_is_not_there_or_damaged_is_said_to_be_so(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, ["part"])
    with pytest.raises(ValueError, match="has lost what it kept"):
        ledger.settle(5)
    tag = put(ledger, 1.0)
    (tmp_path / f"{tag}.safetensors").write_bytes(b"no")
    with pytest.raises(ValueError, match="cannot read what it kept"):
        ledger.settle(tag)


def test_a_state_of_another_recipe_is_said_to_be_so(tmp_path: Path) -> None:
    tag = Ledger(tmp_path, ["a", "b"]).propose({"b": {"c": torch.ones(1)}})
    with pytest.raises(ValueError, match="cannot read what it kept"):
        Ledger(tmp_path, ["a"]).settle(tag)


def test_tags_do_not_repeat(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, ["part"])
    assert len({put(ledger, 0.0) for _ in range(20)}) == 20
