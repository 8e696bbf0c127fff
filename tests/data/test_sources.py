"""Sources: small files in the hub's schema, damaged ones, the cache, and the real data sets where they are at hand."""

from __future__ import annotations

import gzip
import io
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from accord.data import Digits, Folder, Hub, Npz, federate, read_data
from accord.data import folder as folders
from accord.data.cache import cached
from accord.recipe import names, read

Image = pytest.importorskip("PIL.Image")
pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


def pictures(n: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    shape = (n, 6, 5, channels)
    return np.random.RandomState(seed).randint(256, size=shape).astype(np.uint8)


def png(pixels: np.ndarray) -> bytes:
    held = io.BytesIO()
    Image.fromarray(pixels.squeeze(2) if pixels.shape[2] == 1 else pixels).save(held, "PNG")
    return held.getvalue()


def write(path: Path, images: np.ndarray, image: str = "img", **columns: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {image: pa.array([{"bytes": png(each), "path": None} for each in images]), **columns}
    parquet.write_table(pa.table(table), path)


@pytest.fixture
def cifar(tmp_path: Path) -> Path:
    """A folder of data sets with a small CIFAR-10 in it, its training data in two files."""
    inside = tmp_path / "uoft-cs" / "cifar10" / "plain_text"
    images = pictures(30)
    for part in range(2):
        write(inside / f"train-0000{part}-of-00002.parquet", images[15 * part : 15 * part + 15], label=np.arange(15) % 10)
    write(inside / "test-00000-of-00001.parquet", pictures(8, seed=1), label=np.arange(8))
    return tmp_path


def test_parquet_in_the_hubs_layout(cifar: Path):
    data = read_data("cifar10").load(cifar)
    assert torch.equal(data.x, torch.from_numpy(pictures(30)))
    assert data.y.tolist() == [*range(10), *range(5)] * 2
    assert (len(data.test_x), data.classes, len(data.augment)) == (8, 10, 2)


def test_the_folder_may_be_named_by_the_environment_or_lack_the_owner(cifar: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "other").mkdir()
    shutil.copytree(cifar / "uoft-cs" / "cifar10", tmp_path / "other" / "cifar10")
    monkeypatch.setenv("ACCORD_DATA", str(tmp_path / "other"))
    assert len(read_data("cifar10").load().x) == 30
    assert len(read_data("uoft-cs/cifar10").load().x) == 30


def test_the_data_sets_of_the_papers_in_the_hubs_schemas(tmp_path: Path):
    """Their columns and splits: SVHN's extra and CINIC-10's validation stay unused, FEMNIST has no test split and a writer for each."""
    digits, names = pictures(12), ("train", "test", "extra", "validation")
    for k, name in enumerate(names[:3]):
        write(
            tmp_path / "ufldl-stanford/svhn/cropped_digits" / f"{name}-00000-of-00001.parquet",
            pictures(12 + k),
            "image",
            label=[1] * (12 + k),
        )
    for k, name in enumerate((names[0], names[3], names[1])):
        write(tmp_path / "flwrlabs/cinic10/data" / f"{name}-00000-of-00001.parquet", pictures(12 + k), "image", label=[2] * (12 + k))
    writers, labels = [f"f000{k % 4}_14" for k in range(40)], np.arange(40) % 2 + 60
    path = tmp_path / "flwrlabs/femnist/data/train-00000-of-00001.parquet"
    write(path, pictures(40, 1), "image", writer_id=writers, hsf_id=[1] * 40, character=labels)
    svhn, turned, cinic, femnist = (read_data(t).load(tmp_path) for t in ("svhn", "svhn(inverted=True)", "cinic10", "femnist"))
    assert (len(svhn.x), len(svhn.test_x), svhn.classes) == (12, 13, 10)
    assert torch.equal(svhn.x, torch.from_numpy(digits))
    assert torch.equal(turned.x, torch.from_numpy(((256 - digits.astype(int)) % 256).astype(np.uint8)))
    assert torch.equal(turned.y, svhn.y)
    assert (len(cinic.x), len(cinic.test_x), cinic.classes) == (12, 14, 10)
    assert (len(femnist.x), len(femnist.test_x), femnist.classes, femnist.x.shape[3]) == (36, 4, 62, 1)
    assert set(femnist.columns) >= {"writer_id", "hsf_id"}
    assert federate("femnist", "natural(writer_id)", data_dir=tmp_path).population == 4


def test_columns_are_found_by_type_and_kept_for_natural_splits(tmp_path: Path):
    write(tmp_path / "train.parquet", pictures(20, 1), "picture", label=np.arange(20) % 4, writer=[f"w{k % 3}" for k in range(20)])
    data = Folder(str(tmp_path)).load()
    assert (len(data.x), len(data.test_x), data.x.shape[3]) == (18, 2, 1)
    assert len(data.columns["writer"]) == 18
    federation = federate(Folder(str(tmp_path)), "natural(writer)")
    assert federation.population == 3


def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path):
    write(tmp_path / "train.parquet", pictures(4), image="image", labels=np.arange(4))
    with pytest.raises(ValueError, match=r"no column 'img' \(did you mean 'image'\?\); write image= one of image or labels"):
        Folder(str(tmp_path), image="img", label="labels").load()
    with pytest.raises(ValueError, match=r"no columns that could be the label; write label= one of image or labels"):
        Folder(str(tmp_path)).load()


@pytest.mark.parametrize(
    ("labels", "said"), [([0.5, 1, 2, 3], "0.5"), (["a", "b", "c", "d"], "'a'"), ([0, 1, -1, 2], "-1"), ([0, None, 1, 1], "nan")]
)
def test_labels_that_are_no_classes_are_shown(tmp_path: Path, labels: list, said: str):
    write(tmp_path / "train.parquet", pictures(4), label=pa.array(labels))
    with pytest.raises(ValueError, match=f"whole numbers from 0, and there is {said}"):
        Folder(str(tmp_path)).load()


def test_damaged_files_are_named(cifar: Path):
    file = next(cifar.rglob("train-00001*"))
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(ValueError, match=r"train-00001-of-00002\.parquet cannot be read"):
        read_data("cifar10").load(cifar)


def test_damaged_and_unequal_images_are_numbered(tmp_path: Path):
    images = [png(each) for each in pictures(3)]
    for wrong, said in (
        (images[1][:40], "image 1 cannot be decoded"),
        (png(np.zeros((4, 4, 3), np.uint8)), "image 1 has 4x4 pixels.*5x6.*size="),
    ):
        table = pa.table({"img": pa.array([{"bytes": b, "path": None} for b in (images[0], wrong, images[2])]), "label": [0, 1, 0]})
        parquet.write_table(table, tmp_path / "train.parquet")
        with pytest.raises(ValueError, match=said):
            Folder(str(tmp_path)).load()
    assert Folder(str(tmp_path), size=4).load().x.shape[1:] == (4, 4, 3)


def test_image_folders(tmp_path: Path):
    for split, n in (("train", 6), ("test", 2)):
        for number, name in enumerate(["ant", "bee"]):
            (tmp_path / split / name).mkdir(parents=True)
            for at, each in enumerate(pictures(n, seed=number)):
                (tmp_path / split / name / f"{at}.png").write_bytes(png(each))
    data = read_data(str(tmp_path)).load()
    assert (tuple(data.x.shape), data.y.tolist(), len(data.test_x)) == ((12, 6, 5, 3), [0] * 6 + [1] * 6, 4)
    assert torch.equal(data.x[6:], torch.from_numpy(pictures(6, seed=1)))


def test_a_grey_image_among_coloured_ones_becomes_coloured(tmp_path: Path):
    rows = [png(pictures(1, 1)[0]), png(pictures(1)[0])] * 5
    table = pa.table({"img": pa.array([{"bytes": b, "path": None} for b in rows]), "label": [0, 1] * 5})
    parquet.write_table(table, tmp_path / "train.parquet")
    assert Folder(str(tmp_path)).load().x.shape[3] == 3


def test_idx_files(tmp_path: Path):
    for start, images, labels in (("train", pictures(12, 1), np.arange(12) % 3), ("t10k", pictures(4, 1), np.arange(4) % 3)):
        pixels = struct.pack(">4B3i", 0, 0, 8, 3, len(images), 6, 5) + images.tobytes()
        (tmp_path / f"{start}-images-idx3-ubyte.gz").write_bytes(gzip.compress(pixels))
        (tmp_path / f"{start}-labels-idx1-ubyte").write_bytes(
            struct.pack(">4Bi", 0, 0, 8, 1, len(labels)) + labels.astype(np.uint8).tobytes()
        )
    data = Folder(str(tmp_path)).load()
    assert torch.equal(data.x, torch.from_numpy(pictures(12, 1)))
    assert data.test_y.tolist() == [0, 1, 2, 0]
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0")
    with pytest.raises(ValueError, match="no whole idx file"):
        Folder(str(tmp_path)).load()


def test_folders_that_hold_nothing_or_are_not_there(tmp_path: Path, cifar: Path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no parquet files"):
        Folder(str(tmp_path / "empty")).load()
    with pytest.raises(ValueError, match=r"there is no folder .*emty \(did you mean 'empty'\?\)"):
        read_data(str(tmp_path / "emty")).load()
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere"):
        read_data("cifar10").load(tmp_path / "nowhere")


@pytest.mark.usefixtures("no_data")
def test_an_absent_network_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(ValueError, match=r"'uoft-cs/cifar10' is not at hand.*set ACCORD_DATA=<folder>"):
        read_data("cifar10").load()


@pytest.mark.usefixtures("no_data")
def test_an_absent_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(ValueError, match=r"pip install 'accord\[hub\]'"):
        read_data("owner/name").load()


@pytest.mark.usefixtures("no_data")
def test_tables_of_the_hub_are_read_like_files(cifar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    local = str(cifar / "uoft-cs" / "cifar10" / "plain_text")
    data = Hub(local).load()
    assert torch.equal(data.x, torch.from_numpy(pictures(30)))


def test_decoding_happens_once(cifar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "cache"))
    first = read_data("cifar10").load(cifar)
    monkeypatch.setattr(folders, "read_parquet", lambda files: pytest.fail("decoded again"))
    again = read_data("cifar10").load(cifar)
    assert torch.equal(first.x, again.x)
    assert len(list((tmp_path / "cache").iterdir())) == 1


@pytest.mark.parametrize("damage", ["cut", "empty", "flipped"])
def test_a_damaged_cache_is_made_again(cifar: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damage: str):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "cache"))
    first = read_data("cifar10").load(cifar)
    (file,) = (tmp_path / "cache").iterdir()
    raw = bytearray(file.read_bytes())
    whole = bytes(raw)
    raw[-1] ^= 1
    file.unlink()
    file.write_bytes({"cut": whole[:-10], "empty": b"", "flipped": bytes(raw)}[damage])
    assert torch.equal(read_data("cifar10").load(cifar).x, first.x)
    assert file.read_bytes() == whole


def test_a_changed_file_is_decoded_again(cifar: Path):
    read_data("cifar10").load(cifar)
    write(next(cifar.rglob("test-*")), pictures(8, seed=5), label=np.arange(8))
    assert torch.equal(read_data("cifar10").load(cifar).test_x, torch.from_numpy(pictures(8, seed=5)))


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "file"))
    assert cached("some", lambda: {"x": torch.arange(3)})["x"].tolist() == [0, 1, 2]


def test_npz_files(tmp_path: Path):
    place = tmp_path / "some.npz"
    np.savez(
        place,
        x_train=pictures(10),
        y_train=np.arange(10)[:, None],
        x_test=pictures(3),
        y_test=np.arange(3),
        writer=np.array(list("abcde") * 2),
    )
    data = read_data(str(place)).load()
    assert (tuple(data.x.shape), len(data.test_x), data.classes) == ((10, 6, 5, 3), 3, 10)
    assert data.columns["writer"].tolist() == [0, 1, 2, 3, 4] * 2
    assert data.mean is not None
    assert data.mean.shape == (3,)


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"x_train": np.zeros((4, 2))}, "no array 'y_train'"),
        ({"x": np.zeros((4, 2)), "y": np.zeros(3, int)}, "4 train inputs and 3 labels"),
        ({"x": np.full((4, 2), np.nan), "y": np.zeros(4, int)}, "4 samples hold NaN"),
        ({"x": np.zeros((4, 2)), "y": np.array([0, 1, 2, 0.5])}, "there is 0.5"),
        ({"x": np.array(["a", "b"]), "y": np.zeros(2, int)}, "they must be numbers"),
    ],
)
def test_wrong_npz_files_are_named(tmp_path: Path, arrays: dict, said: str):
    np.savez(tmp_path / "some.npz", **arrays)
    with pytest.raises(ValueError, match=said):
        Npz(str(tmp_path / "some.npz")).load()


def test_a_truncated_npz_is_named(tmp_path: Path):
    np.savez(tmp_path / "some.npz", x=np.zeros((50, 9)), y=np.zeros(50, int))
    raw = (tmp_path / "some.npz").read_bytes()
    for length in (0, 10, len(raw) // 2, len(raw) - 5):
        (tmp_path / "some.npz").write_bytes(raw[:length])
        with pytest.raises(ValueError, match=r"some\.npz is no whole \.npz file"):
            Npz(str(tmp_path / "some.npz")).load()
    with pytest.raises(ValueError, match="there is no file"):
        Npz(str(tmp_path / "other.npz")).load()


def test_digits_are_real_and_stratified():
    data = Digits().load()
    assert np.bincount(data.test_y.numpy()).min() >= 34
    assert abs(float(data.x.mean())) < 0.05
    assert torch.equal(Digits().load().x, data.x)
    assert not torch.equal(Digits(seed=1).load().y, data.y)


@pytest.mark.parametrize("text", ["synthetic", "gaussians", "synthetic_images(samples=60)"])
def test_generated_data_follow_their_seed(text: str):
    first, again, other = (read_data(t).load() for t in (text, text, text.rstrip(")") + (", seed=1)" if "(" in text else "(seed=1)")))
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x[:20], other.x[:20])


def test_every_source_is_its_text():
    examples = {"hub": "hub('a/b', mean=(0.1, 0.2, 0.3))", "folder": "folder('x')", "npz": "npz('x.npz')"}
    for name in names("data"):
        source = read_data(examples.get(name, name))
        assert read(repr(source), "data") == source


def test_real_cifar10(real: Path):
    federation = federate("cifar10", "dirichlet(0.1)", 100, data_dir=real)
    assert (len(federation.train), len(federation.test), federation.train.shape) == (50_000, 10_000, (3, 32, 32))
    assert torch.bincount(federation.train.y).tolist() == [5000] * 10
    assert federation.train.y[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert federation.test.y[:10].tolist() == [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
    assert federation.train.x[0, 0, 0].tolist() == [59, 62, 63]
    x = federation.train.gather(torch.arange(5000)).x
    assert float(x.mean()) == pytest.approx(0, abs=0.02)
    assert float(x.std()) == pytest.approx(1, abs=0.02)


def test_real_cifar100(real: Path):
    fine = read_data("cifar100").load(real)
    assert (fine.classes, torch.bincount(fine.y).unique().tolist(), fine.y[:5].tolist()) == (100, [500], [19, 29, 0, 11, 1])
    assert fine.columns["coarse_label"][:5].tolist() == [11, 15, 4, 14, 1]


def test_real_qmnist_writers(real: Path):
    federation = federate("qmnist_writers", "natural(writer_id)", local_test=0.1, data_dir=real)
    assert (federation.population, federation.train.shape, len(federation.test)) == (539, (1, 28, 28), 10_000)
    assert federation.train.y[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert int(federation.clients.sizes.sum() + federation.tests.sizes.sum()) == 60_000
