"""Every study there is: its file can be read, what it names exists, and its rows and columns run for a round on small data."""

from __future__ import annotations

import dataclasses
import io
import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from accord.experiment import Experiment
from accord.recipe import read
from accord.reports.record import read_run
from accord.reproduce.estimate import facts_of
from accord.reproduce.figures import drawings
from accord.reproduce.outcome import markdown, outcomes
from accord.reproduce.play import absent, plan
from accord.reproduce.study import Cell, Study, load, places
from accord.reproduce.verdict import verdicts
from accord.run import run
from accord.select import All

STUDIES = sorted(places())
CLIENTS = 10


def parquet(place: Path, n: int, image: str, shape: tuple[int, ...], labels: tuple[str, ...], writers: bool = False) -> None:
    """Random images in the hub's schema, ten classes, each of ten writers with some of every class."""
    pa, pq, pictures = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet"), pytest.importorskip("PIL.Image")
    rng = np.random.RandomState(n)
    held = []
    for pixels in rng.randint(256, size=(n, *shape)).astype(np.uint8):
        png = io.BytesIO()
        pictures.fromarray(pixels).save(png, "PNG")
        held.append({"bytes": png.getvalue(), "path": None})
    columns = {label: np.arange(n) % 10 for label in labels} | ({"writer_id": np.arange(n) // 10 % CLIENTS} if writers else {})
    place.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({image: pa.array(held), **columns}), place)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a little CIFAR-10, CIFAR-100 and QMNIST, as the hub lays them out; all other data sets are absent."""
    root = tmp_path_factory.mktemp("data")
    for part, n in (("train", 200), ("test", 20)):
        parquet(root / f"uoft-cs/cifar10/plain_text/{part}-00000-of-00001.parquet", n, "img", (32, 32, 3), ("label",))
        parquet(root / f"uoft-cs/cifar100/cifar100/{part}-00000-of-00001.parquet", n, "img", (32, 32, 3), ("fine_label", "coarse_label"))
        parquet(root / f"qmnist-writers/{part}.parquet", n, "image", (28, 28), ("label",), writers=True)
    return root


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of all studies lie, so that those they share are made once."""
    return tmp_path_factory.mktemp("cells")


def shrunk(experiment: Experiment) -> Experiment:
    """One short round of the same thing on few clients with a narrow model."""
    model = read(experiment.model, "model")
    narrow = {"width": 4} if hasattr(model, "width") else {"hidden": 8} if isinstance(getattr(model, "hidden", ()), int) else {}
    steps = {"steps": 1} if experiment.steps is not None else {"epochs": 1}
    fewer = {"clients": min(experiment.clients, CLIENTS)} if experiment.clients else {}
    fewer |= {"per_round": 2} if experiment.per_round or experiment.recipe().select == All() else {}
    changes = {"rounds": 1, "evaluate_every": 1, "evaluate_last": 0, "aligned_test": min(experiment.aligned_test, 10), "engine": "process"}
    return experiment.with_({**changes, **steps, **fewer, "model": repr(dataclasses.replace(model, **narrow))})


def shortened(study: Study) -> Study:
    """The study with such experiments, and of the cells that take a run at least one in every row and column."""
    kept: dict[str, Cell] = {}
    for name in (lambda c: c.row, lambda c: c.column):
        for place, line in enumerate(dict.fromkeys(name(cell) for cell in study.trained)):
            mine = [cell for cell in study.trained if name(cell) == line]
            if not any(name(cell) == line for cell in kept.values()):
                chosen = mine[place % len(mine)]
                kept[chosen.name] = chosen
                kept |= {cell.name: cell for cell in study.cells if cell.name == chosen.base}
    instead = {"clients": CLIENTS}
    short = [
        dataclasses.replace(
            cell,
            experiment=shrunk(cell.experiment),
            stand_in={key: min(value, instead[key]) if key in instead else value for key, value in cell.stand_in.items()},
        )
        for cell in study.cells
        if cell.name in kept
    ]
    return dataclasses.replace(study, cells=tuple(short))


@cache
def weights(model: str, data: str) -> int:
    """How many a model has on these data, without any memory for them."""
    facts = facts_of(Experiment(data=data))
    assert facts is not None, data
    with torch.device("meta"):
        return sum(p.numel() for p in read(model, "model").build(facts.shape, facts.classes).parameters())


@pytest.mark.parametrize("name", STUDIES)
def test_what_a_study_names_exists(name: str) -> None:
    study = load(name)
    assert study.id == name
    assert study.title
    assert study.shows.endswith((".", ")"))
    assert {cell.row for cell in study.cells} == set(study.rows)
    assert {cell.column for cell in study.cells} == set(study.columns)
    assert (study.figure is not None) == (study.kind == "figure")
    for experiment in {cell.experiment for cell in study.trained}:
        assert experiment.recipe().parts
        read(experiment.split, "split")
    for model, data in {(cell.experiment.model, cell.experiment.data) for cell in study.trained}:
        assert weights(model, data) > 100


QUICKLY = {  # what an analysis looks at here
    "clients": "clients(clients=2, samples=10, batch=10, probes=2)",
    "curvature": "curvature(samples=20, steps=12, probes=4, batch=20)",
    "features": "features(samples=20, clients=2, batch=20)",
    "gsnr": "gsnr(clients=2, samples=10, draws=1)",
    "landscape": "landscape(samples=20, points=2, steps=6, batch=20)",
    "spectrum": "spectrum(samples=20, steps=6, points=20, batch=20)",
}


def test_the_numbers_that_studies_read_off_analyses_are_there(small: Path, cells: Path) -> None:
    pytest.importorskip("curvlinops")
    from accord.analysis import analyze

    studies = [load(name) for name in STUDIES]
    read_off = {cell.measure for study in studies for cell in study.cells if cell.measure.analyses}
    shown = {name for study in studies for name in (study.figure.needs if study.figure else ())}
    wanted = sorted({name for measure in read_off for name in measure.analyses} | shown)
    experiment = Experiment(data="cifar10(augment=())", data_dir=str(small), clients=4, model="lenet5(init=he)", rounds=2, engine="process")
    run(experiment, cells / "analysed")
    analyze(cells / "analysed", [QUICKLY.get(name, name) for name in wanted])
    measured = {repr(measure): measure.of(read_run(cells / "analysed")) for measure in read_off if measure.name == "analysis"}
    assert len(measured) > 10
    assert not [name for name, value in measured.items() if value is None]


@pytest.mark.parametrize("name", [name for name in STUDIES if load(name).trained])
def test_a_study_runs(name: str, small: Path, cells: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accord.track._STRIDE", 1)  # the proximal gradient is looked at in every step of so short a round
    study = shortened(load(name))
    where = str(small)
    planned = plan(study, cells, seeds=1, lacks=lambda experiment, folder: absent(experiment.data, where, fetch=False), data_dir=where)
    for job in planned.jobs:
        result = run(job.experiment, job.folder, keep=True)
        assert result["rounds"] == 1
        assert read_run(job.folder).finished
    found = outcomes(planned)
    for each in found:
        assert each.missing or each.folders
        if each.cell.measure.name in ("accuracy", "heterogeneity", "seconds", "tracked") and not each.missing:
            assert each.mean is not None, each.cell.name
    assert markdown(found).count("\n| ") == len(study.cells) + 1
    assert all(verdict.word in ("not tested", "one seed, the same way", "one seed, the other way") for verdict in verdicts(study, found))
    drawn = {re.sub(r"panel-\d+-", "", picture.key) for picture in drawings(study, found)}
    analysed = planned.missing or (study.figure and study.figure.needs) or any(cell.measure.analyses for cell in study.cells)
    shown = study.figure.draw if study.figure and not analysed else ()
    assert not [key for key in shown if not any(each.startswith(key) for each in drawn)], drawn


def test_the_readme_says_what_every_study_shows() -> None:
    text = (places()[STUDIES[0]].parents[1] / "README.md").read_text(encoding="utf-8")
    sections = {part.split()[0].strip(":").lower(): part for part in text.split("\n## ")[1:]}
    assert set(sections) == {load(name).paper for name in STUDIES}
    assert not [name for name in STUDIES if f"`{name.partition('/')[2].removesuffix('-code')}`" not in sections[name.partition("/")[0]]]
