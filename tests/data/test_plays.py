"""Plays as federated text: lines, their labels, whose they are, and what cannot be done with them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from accord.data import Federation, federate, read_data
from accord.data.plays import speeches
from accord.experiment import Experiment

PLAY = """First Citizen:
Before we proceed any further:
hear me.

All:
Speak, speak.

First Citizen:
You are all resolved?

MUTE:

All:
Resolved. resolved.
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tinyshakespeare.txt").write_text(PLAY)
    return tmp_path


def test_speeches_by_role() -> None:
    assert speeches(PLAY) == {
        "First Citizen": "Before we proceed any further:\nhear me.\nYou are all resolved?",
        "All": "Speak, speak.\nResolved. resolved.",
    }


def test_labels_are_the_next_characters(folder: Path) -> None:
    data = read_data("shakespeare(length=5, test=0.5)").load(folder)
    letters = sorted(set(PLAY))
    assert data.classes == len(letters)
    spell = lambda t: "".join(letters[k] for k in t.tolist())  # noqa: E731
    said = speeches(PLAY)
    of = {role: [k for k, r in enumerate(data.columns["role"].tolist()) if r == role] for role in said}
    for role, text in said.items():
        lines = (len(text) - 1) // 5
        kept = lines - lines // 2
        assert [spell(data.x[k]) for k in of[role]] == [text[5 * k : 5 * k + 5] for k in range(kept)]
        assert [spell(data.y[k]) for k in of[role]] == [text[5 * k + 1 : 5 * k + 6] for k in range(kept)]
    tests = {spell(t) for t in data.test_x}
    assert tests == {text[5 * k : 5 * k + 5] for text in said.values() for k in range((len(text) - 1) // 5)} - {spell(t) for t in data.x}
    assert data.x.dtype == data.y.dtype == torch.int64


def test_roles_are_clients_and_every_letter_counts(folder: Path) -> None:
    federation = federate("shakespeare(length=5, test=0.2)", "natural(role)", data_dir=folder)
    assert federation.population == 2
    assert federation.train.tokens
    assert federation.label_counts.sum() == federation.train.y.numel()
    assert (
        federation.label_counts[0].tolist()
        == torch.bincount(federation.train.y[federation.clients[0]].flatten(), minlength=federation.classes).tolist()
    )
    assert federation.heterogeneity > 0


def test_auto_is_the_recurrent_net(folder: Path) -> None:
    asked = Experiment(data="shakespeare(length=5)", split="natural(role)", clients=None, per_round=1, data_dir=str(folder))
    federation = asked.federation()
    assert asked.resolved(federation).model.startswith("char_rnn(")
    assert asked.module(federation)(federation.train.gather(torch.arange(2)).x).logits.shape == (2, 5, federation.classes)


def test_lines_of_ones_own() -> None:
    x = torch.arange(300).view(20, 15) % 11
    lines = Federation.from_arrays(x, (x + 1) % 11, split="iid", clients=3)
    assert lines.train.tokens
    assert (len(lines.train), len(lines.test), lines.classes, lines.label_counts.sum()) == (18, 2, 11, 18 * 15)
    by_client = Federation.from_arrays([(x[:9], x[:9]), (x[9:], x[9:])], test=(x[:2], x[:2]))
    assert by_client.clients.sizes.tolist() == [9, 11]


@pytest.mark.parametrize("split", ["dirichlet(0.1)", "shards(2)", "groups(2, within=dirichlet(1))"])
def test_splits_by_label_refuse_lines(folder: Path, split: str) -> None:
    with pytest.raises(ValueError, match=r"5 labels each, and this split deals samples by their label: write iid, quantity or natural"):
        federate("shakespeare(length=5)", split, 2, data_dir=folder)
    with pytest.raises(ValueError, match="aligned_test=3 draws samples by their label"):
        federate("shakespeare(length=5)", "iid", 2, aligned_test=3, data_dir=folder)


def test_a_file_that_is_not_there_or_says_too_little(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCORD_DATA", raising=False)
    assert len(read_data(f"shakespeare(file='{folder / 'tinyshakespeare.txt'}', length=5)").load().x)
    with pytest.raises(ValueError, match=r"there is no file none\.txt, and ACCORD_DATA and data_dir name no folder: put the text there"):
        read_data("shakespeare(file='none.txt')").load()
    with pytest.raises(ValueError, match=r"there is no file none\.txt, neither by itself nor under"):
        read_data("shakespeare(file='none.txt')").load(folder)
    with pytest.raises(ValueError, match="no role that says 500 characters"):
        read_data("shakespeare(length=500)").load(folder)
    (folder / "bad.txt").write_bytes(b"ANN:\n\xff")
    with pytest.raises(ValueError, match=r"bad\.txt is no text: byte 6 is not UTF-8"):
        read_data("shakespeare(file='bad.txt')").load(folder)


def test_the_real_plays(real: Path) -> None:
    data = read_data("shakespeare").load(real)
    assert (data.classes, len(set(data.columns["role"]))) == (65, 256)
    assert len(data.x) + len(data.test_x) == 12_693
