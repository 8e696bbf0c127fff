"""Features, their likeness, weights removed; the whole of `accord analyze` on a small run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import small
from accord.analysis import ORDER, Subject, analyze, cka, without
from accord.analysis.features import features
from accord.experiment import Experiment
from accord.flat import Flat
from accord.jobs import Train, Worker
from accord.run import run
from shell import accord


def test_cka_is_the_centred_kernels_alignment() -> None:
    rng = np.random.default_rng(0)
    for shape, other in (((30, 4), (30, 7)), ((5, 40), (5, 9)), ((5, 40), (5, 30))):
        a, b = rng.normal(size=shape), rng.normal(size=other)
        centre = np.eye(len(a)) - 1 / len(a)
        k, m = centre @ a @ a.T @ centre, centre @ b @ b.T @ centre
        wanted = (k * m).sum() / np.sqrt((k * k).sum() * (m * m).sum())
        assert cka(torch.tensor(a), torch.tensor(b)) == pytest.approx(wanted)
    assert cka(torch.tensor(a), torch.tensor(a @ np.linalg.qr(rng.normal(size=(40, 40)))[0] * 2 + 1)) == pytest.approx(1)


def test_removed_weights() -> None:
    flat = Flat(small.net(norm=True))
    matrices = [row.abs().flatten() for row in flat.layout.rows(flat.w)]
    sizes = torch.cat(matrices).sort().values
    count = int(0.2 * len(sizes))
    largest, smallest = (without(flat.w, flat.layout, 0.2, which) for which in ("largest", "smallest"))
    assert int((largest != flat.w).sum()) == int((smallest != flat.w).sum()) == count
    assert float(torch.cat([r.abs().flatten() for r in flat.layout.rows(largest)]).max()) == float(sizes[-count - 1])
    assert float(flat.w[smallest != flat.w].abs().max()) == float(sizes[count - 1])
    by_tensor = without(flat.w, flat.layout, 0.2, "largest", by="tensor")
    gone = [int((row == 0).sum()) for row in flat.layout.rows(by_tensor)]
    assert gone == [int(0.2 * len(row)) for row in matrices]


def test_a_model_without_features() -> None:
    with pytest.raises(ValueError, match="returns logits only"):
        features(torch.nn.Linear(50, 4).double(), small.batches())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose clients keep a state."""
    out = tmp_path_factory.mktemp("run")
    settings = {"algorithm": "moon", "clients": 4, "per_round": 2, "epochs": 1, "rounds": 3, "model": "mlp(hidden=(6,))"}
    run(Experiment.of({**settings, "engine": "process"}), out)
    return out


SMALL = {
    "clients": "clients(clients=3, samples=60, probes=3)",
    "gsnr": "gsnr(clients=2, samples=40, draws=2)",
    "features": "features(samples=40, clients=3)",
    "curvature": "curvature(samples=60, probes=10)",
    "landscape": "landscape(samples=40, points=3, line=5)",
    "spectrum": "spectrum(samples=60, steps=15)",
}


def test_every_analysis_of_a_run(folder: Path) -> None:
    found = analyze(folder, only=[SMALL.get(name, name) for name in ORDER])
    assert list(found) == list(ORDER)
    for name, made in found.items():
        assert json.loads((folder / "analysis" / f"{name}.json").read_text()) == made
    assert not list((folder / "analysis" / "partial").glob("*"))
    values = {name: made["values"] for name, made in found.items()}
    assert len(values["clients"]["paper"]["gaps"]) == len(values["clients"]["clients"]) == 3
    assert len(values["landscape"]["plane"]) == len(values["landscape"]["plane"][0]) == 3
    assert values["landscape"]["plane"][1][1] == values["landscape"]["random"][2] == pytest.approx(values["landscape"]["loss"], rel=1e-6)
    assert len(values["features"]["views"]["largest"]["points"]) == 40
    assert values["features"]["cka"] <= 1
    assert {"first", "last", "top", "bottom", "against_size", "osgr"} <= set(values["gsnr"])
    assert values["forgetting"]["rounds"] == [1, 2, 3]
    assert values["federation"]["counts"] == Subject(folder).federation.label_counts.tolist()
    size = values["cost"]["parameters"]
    assert values["cost"]["stored_parameters"] == 3 * size  # the model, the global one and the client's last
    assert values["cost"]["forward_flops"] == 3 * values["cost"]["model_flops"]


def test_local_models_are_those_of_the_next_round(folder: Path) -> None:
    """With the client's own state, seed and batches."""
    subject = Subject(folder)
    server, store = subject._state
    client = max(store.versions)
    kept = store.get(client)
    assert kept
    job = Train(subject.algorithm, server.w, server.b, 3, 0, server.down)
    reply = job.run(Worker(subject.experiment.module(subject.federation), subject.federation), client, kept)
    assert subject.locals([client])[0][0].equal(reply.w)
    assert not reply.w.equal(server.w)


def test_features_of_a_model_that_has_none(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "plain.py"
    own.write_text(
        "from torch import nn\nfrom accord import named\nfrom accord.models.model import Model\n@named\nclass Plain(Model):\n"
        "    def build(self, shape, classes):\n        return nn.Linear(shape[0], classes)\n"
    )
    run(Experiment.of({"clients": 4, "rounds": 1, "epochs": 1, "engine": "process", "model": "plain", "use": [str(own)]}), tmp_path / "out")
    answer = accord("analyze", tmp_path / "out", "--only", "features")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "Linear returns logits only" in answer.err
    assert accord("analyze", tmp_path / "out", "--only", "cost").code == 0
