"""Everything that a person can get wrong ends with exit code 2 and one line that names it; nothing else is written anywhere."""

from __future__ import annotations

import dataclasses
import html
import json
import os
import shutil
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.check import LARGEST, Range, options_of
from accord.cli import explained, main
from accord.engines.crew import Lost
from accord.experiment import Experiment
from accord.recipe import Entry, entries
from shell import TINY, accord, good, program, wrong

HINTS = typing.get_type_hints(Experiment, include_extras=True)
FLAG = {key: "--" + key.replace("_", "-") for key in HINTS}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty folder to work in, which a mistake leaves as it was; no network and no data set at hand."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ACCORD_DATA", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    yield
    assert not Path("runs").exists()


def says(line: str, *words: str) -> None:
    for word in words:
        assert word in line, (word, line)


# --- every key, generated from the fields ----------------------------------------------------------------------------------------------


def numeric(hint: Any) -> tuple[type, Range] | None:
    """The kind of number that a key is, and its range."""
    for option in typing.get_args(hint) if typing.get_origin(hint) is not Annotated else (hint,):
        if typing.get_origin(option) is Annotated:
            return typing.get_args(option)[0], typing.get_args(option)[1]
    return None


def bad_numbers(key: str) -> list[tuple[str, str]]:
    """(as a flag, as TOML) of numbers that a key cannot be."""
    found = numeric(HINTS[key])
    assert found is not None
    kind, limits = found
    low = limits.low if not limits.above else limits.low - 1e-9
    wrongs = ["nan", "inf", "-inf", "1e400", repr(low - 1 - (key in ("clients", "per_round"))), "-1"]  # where 0 says something else
    if limits.above:
        wrongs.append("0")
    if limits.high < float("inf"):
        wrongs.append(repr(limits.high + (1 if kind is int else 0.001)))
    if kind is int:
        wrongs += ["1.5", "1e30", str(10**12 if limits.high > 10**12 else 10**400), str(LARGEST + 1)]
    return [(w, w if w not in ("1e400",) else "inf") for w in wrongs]


NUMBERS = [key for key in HINTS if numeric(HINTS[key])]
TEXTS = [key for key in HINTS if HINTS[key] is str]


def test_every_key_is_covered() -> None:
    rest = set(HINTS) - set(NUMBERS) - set(TEXTS)
    assert rest == {"engine", "use", "evaluate", "track"}


def test_what_to_evaluate_is_one_of_four(tmp_path: Path) -> None:
    says(wrong("run", "--evaluate", "globl"), "--evaluate", "'globl'", "did you mean 'global'?")
    says(wrong("run", "--set", "evaluate=own"), "evaluate in --set", "'own'")
    file = tmp_path / "one.toml"
    file.write_text('evaluate = ["global", "test"]\n')
    says(wrong("run", file), "evaluate", "'test'")


@pytest.mark.parametrize("key", NUMBERS)
def test_numbers_out_of_range(key: str) -> None:
    for flag, written in bad_numbers(key):
        line = wrong("run", f"{FLAG[key]}={flag}")
        says(line, FLAG[key], "must be")
        says(wrong("run", "--set", f"{key}={flag}"), f"{key} in --set is")
        Path("e.toml").write_text(f"{key} = {written}\n")
        says(wrong("run", "e.toml"), f"{key} in e.toml is", "must be")
        says(wrong("compare", "e.toml"), f"{key} in e.toml is", "must be")


@pytest.mark.parametrize("key", HINTS)
def test_values_of_the_wrong_type(key: str) -> None:
    for written in ("true", "[[]]", "[1, [2]]", "{a = 1}", "2020-01-01", "12:30:00", '{"" = ""}'):
        Path("e.toml").write_text(f"{key} = {written}\n")
        says(wrong("run", "e.toml"), f"{key} in e.toml is", "must be")
    if key in NUMBERS and key != "steps":
        for written in ("", "ten", "1,5", "0x", "１２x", "1 2", "--3", "None"):
            says(wrong("run", f"{FLAG[key]}={written}"), f"{FLAG[key]} is {written!r}", "must be")
    if key in TEXTS:
        for written in ("5", "nan", "[]"):
            Path("e.toml").write_text(f"{key} = {written}\n")
            says(wrong("run", "e.toml"), f"{key} in e.toml is", "must be a text in quotes")


@pytest.mark.parametrize("key", HINTS)
def test_a_misspelt_key_or_flag_is_told_the_nearest(key: str) -> None:
    for word in (f"{key}x", key[:-1] + "zz" if len(key) > 5 else f"{key}z"):
        if word in HINTS:
            continue
        Path("e.toml").write_text(f"{word} = 1\n")
        says(wrong("run", "e.toml"), f"unknown key {word!r} in e.toml", "did you mean")
        says(wrong("run", "--set", f"{word}=1"), f"unknown key {word!r} in --set", "did you mean")
        flag = "--" + word.replace("_", "-")
        says(wrong("run", flag, "1"), f"no such option {flag}", "did you mean")
    says(wrong("run", FLAG[key]), FLAG[key], "requires an argument", "--help")


@pytest.mark.parametrize("key", ["algorithm", "data", "split", "model", "steps", "device"])
def test_empty_texts(key: str) -> None:
    says(wrong("run", FLAG[key], ""), f"{FLAG[key]} is empty; write")
    says(wrong("run", "--set", f"{key}="), f"{key} in --set is empty; write")


@given(
    st.sampled_from(NUMBERS), st.one_of(st.integers(), st.floats(), st.text(max_size=8), st.booleans(), st.lists(st.integers(), max_size=2))
)
@settings(max_examples=300)
def test_any_value_of_any_number_is_taken_or_refused_by_name(key: str, value: Any) -> None:
    refusal = None
    try:
        taken = getattr(Experiment.of({key: value}), key)
    except ValueError as error:
        refusal = str(error)
    if refusal is None:
        assert taken is None or isinstance(taken, int | float | str)
    else:
        assert refusal.startswith(key)
        assert "\n" not in refusal.replace(repr(value), "")


# --- every argument of every recipe ----------------------------------------------------------------------------------------------------

KEYS = {"algorithm": "algorithm", "part": "algorithm", "rule": "algorithm", "select": "algorithm", "personal": "algorithm",
        "split": "split", "model": "model", "data": "data", "buffers": "algorithm", "steps": "steps"}  # fmt: skip
PIECES = [e for kind in KEYS for e in entries(kind) if e.make.__module__.startswith("accord.")]


def plain(entry: Entry, name: str) -> str:
    """A call with one argument wanted and harmless values for those that have no default."""
    needed = [k for k in entry.hints if k not in entry.defaults and k != name]
    return ", ".join(f"{k}={'1' if any(o in (int, float) for o in options_of(entry.hints[k])) else repr('x')}" for k in needed)


@pytest.mark.parametrize("entry", PIECES, ids=lambda e: f"{e.kind}-{e.name}")
def test_every_argument_of_every_piece(entry: Entry) -> None:
    flag, head = FLAG[KEYS[entry.kind]], "fedavg + " if entry.kind not in ("algorithm", "split", "model", "data", "steps") else ""
    says(wrong("run", flag, f"{head}{entry.name}(no_such=1)"), f"{entry.name} has no argument 'no_such'")
    for name, hint in entry.hints.items():
        rest = plain(entry, name)
        options = options_of(hint)
        if not any(o in (int, float) for o in options):
            continue
        for value in ("nan", "inf", "-inf", "-1e400", "True", "[1]") if str not in options else ():
            line = wrong("run", flag, f"{head}{entry.name}({name}={value}{', ' if rest else ''}{rest})")
            says(line, f"{entry.name}({name}=...)" if value != "-inf" else "expected a value, not '-inf', at column")
        if int in options and float not in options and str not in options:
            for value in ("1.5", "-1", "1e30", str(10**30)):
                says(wrong("run", flag, f"{head}{entry.name}({name}={value}{', ' if rest else ''}{rest})"), f"{entry.name}({name}=...)")


MISTAKES = {
    ("--algorithm", "fedpox"): ("unknown name 'fedpox' at column 1 of 'fedpox'", "did you mean 'fedprox'"),
    ("--algorithm", "fedavg + constrian"): ("unknown name 'constrian' at column 10", "'constrain'"),
    ("--algorithm", "fedprox(mu=-1)"): ("fedprox(mu=...) is -1; it must be a number at least 0",),
    ("--algorithm", "fedprox(nu=1)"): ("fedprox has no argument 'nu' at column 9", "it takes mu"),
    ("--algorithm", "fedprox(1, 2)"): ("fedprox takes 1 arguments, not 2",),
    ("--algorithm", "fedprox(mu=1, mu=2)"): ("the argument 'mu' is given twice at column 15",),
    ("--algorithm", "constrain"): ("'constrain' has nothing to learn by", "'fedavg + constrain'"),
    ("--algorithm", "sgd(lr=0.1)"): ("has nothing to learn by", "'fedavg + sgd(lr=0.1)'"),
    ("--algorithm", "fedavg + fedavg +"): ("cannot read 'fedavg + fedavg +'", "write names, calls and +"),
    ("--algorithm", "fedavg + 3"): ("expected a name, not '3', at column 10",),
    ("--algorithm", "fedavg - constrain"): ("expected a name, not 'fedavg - constrain'",),
    ("--algorithm", "fedavg if 1else 2"): ("expected a name",),
    ("--algorithm", "fédävg"): ("unknown name 'fédävg'", "did you mean 'fedavg'"),
    ("--algorithm", "联邦"): ("unknown name '联邦'",),
    ("--algorithm", "fedavg\n+ \nconstrian"): ("constrian",),
    ("--algorithm", "__import__('os').system('x')"): ("expected a name",),
    ("--algorithm", "fedavg + digits"): ("unknown name 'digits'",),
    ("--algorithm", "(" * 5000 + ")" * 5000): ("cannot read '((((",),
    ("--algorithm", "fedavg + " * 5000 + "fedavg"): ("characters long",),
    ("--algorithm", "fedprox(mu=" + "9" * 5000 + ")"): ("cannot read 'fedprox(mu=999",),
    ("--algorithm", "fedavg + power_of_choice(5, d=3)"): ("power_of_choice", "must be at least"),
    ("--data", "digit"): ("unknown name 'digit'", "did you mean 'digits'"),
    ("--data", "./nowhere"): ("there is no folder ./nowhere",),
    ("--data", "nowhere.npz"): ("there is no file nowhere.npz",),
    ("--data", "digits(seed=99999999999)"): ("digits(seed=...) is 99999999999",),
    ("--data", "x" * 5000 + "/y"): ("xxxxxx", "File name too long"),
    ("--split", "dirichle(0.1)"): ("did you mean 'dirichlet'",),
    ("--split", "dirichlet(0)"): ("dirichlet(alpha=...) is 0; it must be a number above 0",),
    ("--split", "dirichlet(0.0001, min_size=70)"): ("min_size=70", "raise alpha, lower min_size or use fewer clients"),
    ("--split", "dirichlet(1e-300)"): ("min_size", "raise alpha"),
    ("--split", "dirichlet(1e-300, variant=fedconst)"): ("min_size", "raise alpha"),
    ("--split", "quantity(1e-9, min_size=30)"): ("quantity", "min_size=30", "raise alpha"),
    ("--split", "iid + iid"): ("cannot add 'iid'",),
    ("--split", "shards(1000)"): ("shards(per_client=1000)", "lower per_client or use fewer clients"),
    ("--split", "natural(writer)"): ("natural(column='writer')", "use another split"),
    ("--split", "5"): ("expected a name, not '5'",),
    ("--clients", "10000"): ("10000 clients cannot share 1437 samples: use at most 1437 clients",),
    ("--clients", "1000000000"): ("cannot share 1437 samples",),
    ("--clients", "0"): ("dirichlet", "needs a number of clients; only natural(column)"),
    ("--per-round", "21"): ("per_round is 21, and there are 20 clients",),
    ("--held-out", "1437"): ("1457 clients cannot share 1437 samples",),
    ("--model", "mpl"): ("unknown name 'mpl'", "did you mean 'mlp'"),
    ("--model", "lenet5"): ("lenet5 reads images", "(64,)", "use mlp, or image data"),
    ("--model", "cnn"): ("cnn reads images",),
    ("--model", "mlp(hidden=(0,))"): ("mlp(hidden=...) is 0",),
    ("--model", "mlp(hidden=(4000000000, 4000000000))"): ("out of memory", "use a smaller model"),
    ("--steps", "uniform(5, 2)"): ("uniform(5, 2)", "write uniform(2, 5)"),
    ("--steps", "many"): ("unknown name 'many'",),
    ("--engine", "proces"): ("--engine is 'proces'", "did you mean 'process'"),
    ("--device", "cud"): ("device 'cud' is not there", "write cpu"),
    ("--device", "meta"): ("device 'meta' is not there", "write cpu"),
    ("--device", "mkldnn"): ("device 'mkldnn' is not there", "write cpu"),
    ("--device", "0"): ("device '0' is not there",),
    ("--use", "nowhere.py"): ("cannot use 'nowhere.py'", "there is no such file"),
    ("--use", "no_such_module"): ("cannot use 'no_such_module'", "give a module's name or the path of a .py file"),
    ("--use", ""): ("cannot use ''",),
    ("--use", "."): ("cannot use '.'",),
    ("--set", "rounds"): ("--set 'rounds' is not KEY=VALUE",),
    ("--set", "=3"): ("unknown key ''",),
}  # fmt: skip


@pytest.mark.parametrize("flag", MISTAKES, ids=lambda f: f"{f[0][2:]}={f[1][:30]}")
def test_mistakes(flag: tuple[str, str]) -> None:
    says(wrong("run", *flag, "--out", "out"), *MISTAKES[flag])
    assert not Path("out").exists()


@pytest.mark.skipif(__import__("torch").cuda.is_available(), reason="there is such a device")
def test_a_device_that_is_absent() -> None:
    says(wrong("run", "--device", "cuda"), "device 'cuda' is not there", "write cpu")
    says(wrong("compare", "fedavg", "--device", "cuda:7"), "device 'cuda:7' is not there")


def test_pairs_that_exclude_each_other() -> None:
    says(wrong("run", "--epochs", 1, "--steps", 2), "epochs and steps are two ways", "give one of them")
    Path("e.toml").write_text("epochs = 1\nsteps = 2\n")
    says(wrong("run", "e.toml"), "epochs and steps are two ways")
    says(wrong("run", "--local-test", 0.1, "--aligned-test", 5), "local_test=0.1 and aligned_test=5 exclude each other")


# --- commands --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("rum",), ("No such command 'rum'", "did you mean 'run'")),
        (("",), ("No such command", "accord --help")),
        ((), ("Missing command", "accord --help")),
        (("--no-such",), ("no such option --no-such",)),
        (("run", "a", "b"), ("unexpected extra argument (b)",)),
        (("run", "digits"), ("digits compares algorithms: use `accord compare digits`",)),
        (("run", "digit"), ("'digit' is no TOML file and no experiment", "did you mean 'digits'")),
        (("run", "nothere.toml"), ("there is no file 'nothere.toml'",)),
        (("run", "x" * 5000), ("xxxx", "File name too long")),
        (("run", "--json=3"), ("--json",)),
        (("compare", "fedpox"), ("unknown name 'fedpox'", "did you mean 'fedprox'")),
        (("compare", "fedavg", "fedavg"), ("'fedavg' is given twice",)),
        (("compare", "a.toml", "b.toml"), ("a.toml and b.toml are two experiment files",)),
        (("compare", "--seeds", "0"), ("--seeds is 0", "at least 1")),
        (("compare", "--seeds", "many"), ("--seeds is 'many'",)),
        (("compare", "--seeds", "1000000000000"), ("--seeds is 1000000000000",)),
        (("compare", "--target", "nan"), ("--target is nan", "from 0 to 1")),
        (("compare", "--target", "70%"), ("--target is '70%'",)),
        (("compare", "--target", "70"), ("--target is 70.0", "from 0 to 1")),
        (("compare", "--per-round", "50"), ("per_round is 50",)),
        (("compare", "--split", "shards(1000)"), ("shards(per_client=1000)",)),
        (("compare", "--model", "lenet5"), ("lenet5 reads images",)),
        (("compare", "fedavg", "fedavg + constrian"), ("constrian",)),
        (("list",), ("Missing argument",)),
        (("list", "algorithm"), ("there is no list of 'algorithm'", "did you mean 'algorithms'")),
        (("list", "parts", "--use", "nowhere.py"), ("cannot use 'nowhere.py'",)),
        (("resume",), ("Missing argument",)),
        (("resume", "nowhere"), ("'nowhere' holds no run",)),
        (("report",), ("Missing argument",)),
        (("report", "nowhere"), ("nowhere is no run directory",)),
        (("report", "nowhere", "--target", "x"), ("nowhere",)),
    ],
)
def test_commands(command: tuple[str, ...], words: tuple[str, ...]) -> None:
    says(wrong(*command), *words)


def test_folders_that_cannot_be_written() -> None:
    Path("file").write_text("x")
    for out in ("file", "file/below", "/proc/nothing"):
        says(wrong("run", *TINY, "--rounds", 1, "--out", out), f"cannot put results into {out!r}", "choose another folder with --out")
        says(wrong("compare", "fedavg", *TINY, "--rounds", 1, "--out", out), f"cannot put results into {out!r}")
    assert Path("file").read_text() == "x"


def test_a_folder_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("locked").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    says(wrong("run", *TINY, "--rounds", 1, "--out", "locked"), "cannot put results into 'locked' (no permission to write in it)")


def test_what_is_explained_and_what_is_a_defect() -> None:
    assert explained(PermissionError(13, "Permission denied", "there")) == "'there': Permission denied"
    assert "out of memory" in str(explained(MemoryError()))
    assert "workers died" in str(explained(Lost("3 workers died")))
    assert explained(RuntimeError("a defect")) is None
    assert explained(OSError("without a file")) is None


def test_a_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCORD_TRACEBACK", "1")
    with pytest.raises(ValueError, match="fedpox"):
        main(["run", "--algorithm", "fedpox"])


# --- experiment files ------------------------------------------------------------------------------------------------------------------

FILES: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "broken": (b"rounds = = 3\n", ("e.toml is not a TOML file", "line 1, column 10")),
    "latin1": (b"name = '\xe9t\xe9'\n", ("e.toml is not a TOML file", "byte 9 is not UTF-8")),
    "utf16": ("rounds = 3\n".encode("utf-16"), ("e.toml is not a TOML file",)),
    "binary": (bytes(range(256)), ("e.toml is not a TOML file",)),
    "twice": (b"rounds = 3\nrounds = 4\n", ("e.toml is not a TOML file", "line 2")),
    "table": (b"[rounds]\na = 1\n", ("rounds in e.toml is {'a': 1}",)),
    "unknown table": (b"[training]\nlr = 1\n", ("unknown key 'training' in e.toml",)),
    "many digits": (b"rounds = " + b"9" * 5000, ("e.toml is not a TOML file",)),
    "deep": (b"rounds = " + b"[" * 3000 + b"]" * 3000, ("e.toml",)),
    "compares": (b"algorithms = ['fedavg']\nseeds = 2\n", ("use `accord compare e.toml`", "algorithms, seeds")),
    "use": (b"use = [1]\n", ("use in e.toml is 1",)),
}


@pytest.mark.parametrize("name", FILES)
def test_experiment_files(name: str) -> None:
    data, words = FILES[name]
    Path("e.toml").write_bytes(data)
    says(wrong("run", "e.toml"), *words)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("algorithms = 'fedavg'", ("algorithms is 'fedavg'; it must be a list",)),
        ("algorithms = [1, 2]", ("algorithms is 1; it must be a text in quotes",)),
        ("algorithms = [['fedavg']]", ("algorithms is ['fedavg']",)),
        ("algorithms = {a = 1}", ("algorithms is {'a': 1}",)),
        ("seeds = 1.5", ("seeds in e.toml is 1.5",)),
        ("seeds = [1]", ("seeds in e.toml is [1]",)),
        ("seeds = true", ("seeds in e.toml is True",)),
        ("target = []", ("target in e.toml is []",)),
        ("target = nan", ("target in e.toml is nan",)),
        ("target = 'high'", ("target in e.toml is 'high'",)),
    ],
)
def test_files_of_comparisons(text: str, words: tuple[str, ...]) -> None:
    Path("e.toml").write_text(f"{text}\nrounds = 1\n")
    says(wrong("compare", "e.toml"), *words)


def test_folders_and_other_things_in_place_of_files() -> None:
    Path("dir.toml").mkdir()
    says(wrong("run", "dir.toml"), "cannot read 'dir.toml'")
    says(wrong("run", "."), "cannot read '.'")
    Path("empty.toml").write_text("")
    good("run", "empty.toml", *TINY, "--rounds", 1, "--out", "out")


# --- data ------------------------------------------------------------------------------------------------------------------------------


def save(name: str = "data.npz", **arrays: Any) -> None:
    whole = {"x": np.zeros((30, 2), np.float32), "y": np.arange(30) % 3} | arrays
    np.savez(name, **{key: value for key, value in whole.items() if value is not None})


ARRAYS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "no inputs": ({"x": None, "pixels": np.zeros(3)}, ("data.npz has no array 'x_train'", "it has")),
    "no labels": ({"y": None}, ("data.npz has no array 'y_train'",)),
    "other lengths": ({"y": np.zeros(20, int)}, ("30 train inputs and 20 labels",)),
    "nan": ({"x": np.full((30, 2), np.nan)}, ("data.npz: 30 samples hold NaN or infinity",)),
    "inf": ({"x": np.full((30, 2), np.inf)}, ("hold NaN or infinity",)),
    "negative labels": ({"y": -np.ones(30, int)}, ("the labels in 'y'", "there is -1")),
    "huge labels": ({"y": np.full(30, 10**12)}, ("the labels in 'y'", "there is 1000000000000")),
    "broken labels": ({"y": np.full(30, 0.5)}, ("the labels in 'y'", "there is 0.5")),
    "text labels": ({"y": np.array(["a"] * 30)}, ("the labels in 'y'", "there is 'a'")),
    "nan labels": ({"y": np.full(30, np.nan)}, ("the labels in 'y'", "there is nan")),
    "text inputs": ({"x": np.array([["a", "b"]] * 30)}, ("data.npz: the inputs are of type",)),
    "objects": ({"x": np.array([{}] * 30, dtype=object)}, ("data.npz is no whole .npz file",)),
    "complex": ({"x": np.zeros((30, 2), complex)}, ("data.npz: the inputs are of type complex128",)),
    "no samples": ({"x": np.zeros((0, 2)), "y": np.zeros(0, int)}, ("data.npz: the array 'x' has the shape (0, 2)",)),
    "scalars": ({"x": np.float32(1), "y": np.int64(1)}, ("data.npz: the array 'x' has the shape ()",)),
    "other test shape": ({"x_test": np.zeros((5, 3)), "y_test": np.zeros(5, int)}, ("data.npz", "(2,)", "(3,)")),
}  # fmt: skip


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(name: str) -> None:
    arrays, words = ARRAYS[name]
    save(**arrays)
    says(wrong("run", "--data", "data.npz", *TINY), *words)


@pytest.mark.parametrize("cut", [0, 1, 100, 300, 0.5, 0.9, -1, -10])
def test_a_truncated_npz(cut: float) -> None:
    save("whole.npz", x=np.random.default_rng(0).random((100, 8)))
    data = Path("whole.npz").read_bytes()
    Path("data.npz").write_bytes(data[: int(cut * len(data)) if isinstance(cut, float) else cut])
    says(wrong("run", "--data", "data.npz"), "data.npz is no whole .npz file", "write it again")


def test_bytes_that_are_flipped_in_an_npz() -> None:
    np.savez_compressed("whole.npz", x=np.random.default_rng(0).random((50, 3)), y=np.arange(50) % 3)
    data = Path("whole.npz").read_bytes()
    for at in range(0, len(data), 29):
        Path("data.npz").write_bytes(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        answer = accord("run", "--data", "data.npz", *TINY, "--rounds", 1, "--split", "iid", "--out", "out")
        assert answer.code == 0 or (answer.code == 2 and answer.err.count("\n") == 1 and "data.npz" in answer.err), (at, answer)


def test_other_things_called_npz() -> None:
    Path("data.npz").write_text("x,y\n1,2\n")
    says(wrong("run", "--data", "data.npz"), "data.npz is no whole .npz file")
    with open("data.npz", "wb") as stream:
        np.save(stream, np.zeros(3))
    says(wrong("run", "--data", "data.npz"), "data.npz is no whole .npz file")
    Path("dir.npz").mkdir()
    says(wrong("run", "--data", "dir.npz"), "there is no file dir.npz")


def test_columns_for_natural_clients() -> None:
    save(writer=np.arange(30) % 7)
    common = ("--data", "data.npz", "--clients", 0, "--per-round", 2)
    says(wrong("run", *common, "--split", "natural(write)"), "natural(column='write')", "did you mean 'writer'")
    says(wrong("run", *common, "--split", "natural(writer, min_size=100)"), "")
    says(wrong("run", "--data", "data.npz", "--split", "natural(writer)", "--clients", 8, "--per-round", 2), "has 7 clients, not 8")
    says(wrong("run", *common, "--split", "natural(writer)", "--held-out", 7), "clients is 0")


def test_folders_and_hub_names_without_data() -> None:
    Path("empty").mkdir()
    says(wrong("run", "--data", "./empty"), "empty holds no parquet files", "give the folder that does")
    for data in ("cifar10", "nobody/nothing"):
        says(wrong("run", "--data", data), "is not at hand", "ACCORD_DATA")
        says(wrong("run", "--data", data, "--data-dir", "empty"), "is not a folder under empty", "put its parquet files under")
        says(wrong("run", "--data", data, "--data-dir", "nowhere"), "there is no folder nowhere")


# --- pieces of one's own ---------------------------------------------------------------------------------------------------------------

BURST = """
import accord

@accord.named
class HostileBurst(accord.Part):
    def gradient(self, client, batch, inner):
        inner(batch)
        if client.round >= 3:
            client.g.fill_(float("nan"))
"""
NET = '''import torch
from torch import nn
from accord import named
from accord.models import Model
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        {body}
    def forward(self, x):
        return {answer}
@named
class {name}(Model):
    """A model."""
    def build(self, shape, classes):
        return Net()
'''


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def (:\n", ("cannot use 'piece.py'", "in line 1 of")),
        ("x = 'open\n", ("cannot use 'piece.py'", "in line 1 of")),
        ("x = 1\n  y = 2\n", ("cannot use 'piece.py'", "in line 2 of")),
        ("1 / 0\n", ("cannot use 'piece.py': ZeroDivisionError",)),
        ("import no_such_module_here\n", ("cannot use 'piece.py'", "no_such_module_here")),
        ("\x00", ("cannot use 'piece.py'",)),
        ("# coding: nonsense\n", ("cannot use 'piece.py'",)),
        (
            "from accord import Part, named\n@named\nclass Proximal(Part):\n    mu: float = 1.0\n",
            ("'proximal' is taken by accord.parts.proximal",),
        ),
        ("from accord import Part, named\n@named\nclass Zap(Part):\n    mu: NoSuch = 1.0\n", ("cannot use 'piece.py'", "NoSuch")),
        ("from accord import named\n@named\ndef zap():\n    return 1\n", ("cannot use 'piece.py'",)),
        ("from accord import named\n@named\nclass Zap:\n    pass\n", ("cannot use 'piece.py'",)),
    ],
)
def test_pieces_that_cannot_be_used(text: str, words: tuple[str, ...]) -> None:
    Path("piece.py").write_text(text)
    for _ in range(2):  # a file that failed is not taken for one that is loaded
        says(wrong("run", "--use", "piece.py"), *words)
        says(wrong("list", "parts", "--use", "piece.py"), *words)


def test_a_piece_that_is_a_folder_or_no_text() -> None:
    Path("dir.py").mkdir()
    says(wrong("run", "--use", "dir.py"), "cannot use 'dir.py'")
    Path("bytes.py").write_bytes(b"x = '\xff'\n")
    says(wrong("run", "--use", "bytes.py"), "cannot use 'bytes.py'")


def late(*arguments: object) -> str:
    """The last line of a mistake that shows only when the run has begun, below the header."""
    answer = accord(*arguments)
    assert answer.code == 2, answer
    assert answer.out == ""
    assert "Traceback" not in answer.err
    return answer.err.rstrip("\n").splitlines()[-1]


@pytest.mark.parametrize("engine", ["process", "threads"])
def test_batch_norm_with_a_batch_of_one_sample(engine: str) -> None:
    body = "self.norm = nn.BatchNorm1d(64); self.head = nn.Linear(64, 10)"
    Path("norm_piece.py").write_text(NET.format(name="HostileNorm", body=body, answer="self.head(self.norm(x))"))
    common = ("--use", "norm_piece.py", "--model", "hostile_norm", "--clients", 4, "--per-round", 4, "--split", "iid", "--rounds", 1)
    line = late("run", *common, "--engine", engine, "--batch-size", 1, "--out", "out")
    says(line, "batch of one sample, which BatchNorm cannot normalise", "client ", "drop_last")


def test_fedsol_on_a_model_without_a_head() -> None:
    body = "self.w = nn.Parameter(torch.zeros(64, 10))"
    Path("bare_piece.py").write_text(NET.format(name="HostileBare", body=body, answer="x @ self.w"))
    common = ("--use", "bare_piece.py", "--model", "hostile_bare", *TINY, "--rounds", 1, "--out", "out")
    good("run", *common)
    says(late("run", *common, "--algorithm", "fedsol"), "head")
    says(late("run", *common, "--algorithm", "moon"), "features", "logits only")


def test_a_comparison_goes_on_where_one_of_its_algorithms_diverges() -> None:
    wild = "fedavg + sgd(lr=1e18)"
    answer = good("compare", "fedavg", wild, "scaffold", *TINY, "--rounds", 3, "--seeds", 2, "--json", "--out", "three")
    assert [row["seeds"] for row in answer.json["rows"]] == [2, 2, 2]
    said = good("compare", "fedavg", wild, "scaffold", *TINY, "--rounds", 3, "--seeds", 2, "--out", "three").out
    told = f"{wild} diverged (seed 0 in round 1, seed 1 in round 1) and counts with the model it had before"
    assert told in " ".join(said.split())
    assert told in html.unescape(Path("three/report.html").read_text())


def test_training_that_diverges() -> None:
    says(late("run", *TINY, "--rounds", 3, "--lr", 1e300, "--out", "out"), "round 1: no client gave a usable answer", "not finite")
    Path("burst_piece.py").write_text(BURST)
    late_on = good("run", *TINY, "--use", "burst_piece.py", "--algorithm", "fedavg + hostile_burst", "--rounds", 6, "--json", "--out", "on")
    assert (late_on.json["rounds"], len(Path("on/rounds.jsonl").read_text().splitlines())) == (3, 3)
    assert late_on.json["stopped"].startswith("round 4: no client gave a usable answer")
    assert late_on.json["accuracy"] > 0.1
    assert good("resume", "on", "--json").json == late_on.json
    answer = good("run", *TINY, "--rounds", 2, "--lr", 1e18, "--batch-size", 500, "--momentum", 0, "--json", "--out", "far")
    assert set(answer.json) >= {"accuracy"}
    for line in Path("far/rounds.jsonl").read_text().splitlines():
        assert "NaN" not in line
        assert "Infinity" not in line


def test_a_selection_that_asks_for_too_many() -> None:
    says(late("run", *TINY, "--per-round", 0, "--algorithm", "fedavg + uniform(9)", "--rounds", 1, "--out", "out"), "uniform", "9", "5")
    line = late("compare", "fedavg", "fedavg + uniform(9)", *TINY, "--per-round", 0, "--rounds", 1, "--seeds", 1, "--out", "out")
    says(line, "uniform", "9")


# --- folders of runs that were damaged -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an algorithm with state, and a comparison."""
    base = tmp_path_factory.mktemp("whole")
    good("run", *TINY, "--rounds", 2, "--algorithm", "scaffold", "--out", base / "run")
    good("compare", "fedavg", *TINY, "--rounds", 2, "--seeds", 1, "--out", base / "many")
    return base


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def edit(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    record = json.loads(path.read_text())
    path.write_text(json.dumps(change(record) or record))


DAMAGE: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "experiment cut": (lambda p: half(p / "experiment.toml"), ("experiment.toml is not a TOML file",)),
    "experiment gone": (lambda p: (p / "experiment.toml").unlink(), ("holds no run",)),
    "experiment unknown key": (lambda p: (p / "experiment.toml").write_text("round = 3\n"), ("unknown key 'round' in", "experiment.toml")),
    "experiment empty": (
        lambda p: (p / "experiment.toml").write_text(""),
        ("experiment.toml was changed since the checkpoint", "algorithm"),
    ),
    "experiment other seed": (
        lambda p: (p / "experiment.toml").write_text((p / "experiment.toml").read_text().replace("\nseed = 0", "\nseed = 1")),
        ("experiment.toml was changed since the checkpoint", "(seed)"),
    ),
    "result cut": (lambda p: half(p / "result.json"), ("result.json is damaged", "remove it")),
    "result empty": (lambda p: (p / "result.json").write_text(""), ("result.json is damaged",)),
    "result a list": (lambda p: (p / "result.json").write_text("[]"), ("result.json is damaged",)),
    "result without digest": (lambda p: edit(p / "result.json", lambda r: r.pop("digest") and None), ("result.json is damaged", "digest")),
    "manifest cut": (lambda p: half(p / "checkpoint/checkpoint.json"), ("is damaged", "remove that folder")),
    "manifest a number": (lambda p: (p / "checkpoint/checkpoint.json").write_text("3"), ("is damaged",)),
    "manifest empty": (lambda p: (p / "checkpoint/checkpoint.json").write_text("{}"), ("is damaged",)),
    "manifest without spent": (
        lambda p: edit(p / "checkpoint/checkpoint.json", lambda r: r.pop("spent") and None),
        ("is damaged", "spent"),
    ),
    "manifest without notes": (lambda p: edit(p / "checkpoint/checkpoint.json", lambda r: r.pop("experiment") and None), ("is damaged",)),
    "manifest bytes": (lambda p: (p / "checkpoint/checkpoint.json").write_bytes(b"\xff\xfe"), ("is damaged",)),
    "server cut": (lambda p: half(next((p / "checkpoint").glob("server-*"))), ("is damaged", "remove that folder")),
    "server gone": (lambda p: next((p / "checkpoint").glob("server-*")).unlink(), ("is damaged",)),
    "server of another model": (
        lambda p: shutil.copy(next((p / "checkpoint/clients").rglob("*.safetensors")), next((p / "checkpoint").glob("server-*"))),
        ("is damaged",),
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_resuming_what_is_damaged(name: str, whole: Path) -> None:
    damage, words = DAMAGE[name]
    shutil.copytree(whole / "run", "run")
    damage(Path("run"))
    before = {p: p.read_bytes() for p in Path("run").rglob("*") if p.is_file()}
    says(wrong("resume", "run"), "run", *words)
    says(wrong("resume", "run", "--json"), "run", *words)
    assert {p: p.read_bytes() for p in Path("run").rglob("*") if p.is_file()} == before, "a folder that cannot be read is left as it is"


def test_resuming_with_a_damaged_client(whole: Path) -> None:
    shutil.copytree(whole / "run", "run")
    Path("run/result.json").unlink()
    files = list(Path("run/checkpoint/clients").rglob("*.safetensors"))
    text = Path("run/experiment.toml").read_text()
    for file in files:
        half(file)
    # the finished run needs them no more; one that goes on does
    good("resume", "run")
    edit(Path("run/checkpoint/checkpoint.json"), lambda r: r["experiment"].update(rounds=9))
    Path("run/experiment.toml").write_text(text.replace("rounds = 2", "rounds = 9"))
    Path("run/result.json").unlink()
    says(late("resume", "run"), "what client", "is damaged", "remove run/checkpoint")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda p: half(p), ("comparison.json is damaged", "accord compare --out many")),
        (lambda p: p.write_text("[]"), ("comparison.json is damaged",)),
        (lambda p: edit(p, lambda r: r.pop("set_up") and None), ("comparison.json is damaged", "set_up")),
        (lambda p: edit(p, lambda r: r.update(seeds=[])), ("comparison.json is damaged",)),
        (lambda p: edit(p, lambda r: r.update(seeds="0")), ("comparison.json",)),
        (lambda p: edit(p, lambda r: r.update(algorithms="fedavg")), ("algorithms is 'fedavg'",)),
        (lambda p: edit(p, lambda r: r.update(target=7)), ("target in many/comparison.json is 7",)),
        (lambda p: edit(p, lambda r: r["set_up"].update(lr=-1)), ("lr in many/comparison.json is -1",)),
        (lambda p: edit(p, lambda r: r["set_up"].update(nonsense=1)), ("unknown key 'nonsense'",)),
    ],
)
def test_resuming_a_damaged_comparison(change: Callable[[Path], Any], words: tuple[str, ...], whole: Path) -> None:
    shutil.copytree(whole / "many", "many")
    change(Path("many/comparison.json"))
    says(wrong("resume", "many"), *words)


def test_reports_of_damaged_folders(whole: Path) -> None:
    Path("empty").mkdir()
    Path("file").write_text("x")
    for place in ("empty", "file"):
        says(wrong("report", place), f"{place} is no run directory")
    for name, damage in {
        "experiment.toml": lambda p: half(p),
        "result.json": lambda p: half(p),
        "rounds.jsonl": lambda p: p.write_text("nonsense\n" + p.read_text()),
        "environment.json": lambda p: p.write_text("[]"),
        "federation.json": lambda p: p.write_text("{"),
    }.items():
        shutil.copytree(whole / "run", name)
        damage(Path(name, name))
        says(wrong("report", name), name)
    says(wrong("report", whole / "run", "--out", "/proc/page.html"), "cannot write '/proc/page.html'", "--out")
    says(wrong("report", whole / "run", "--out", "empty"), "cannot write 'empty'")
    says(wrong("report", whole / "run", "--target", "2"), "--target is 2.0")
    says(wrong("report", whole / "run", "--baseline", "nobody"), "nobody")
    shutil.copytree(whole / "many", "many")
    half(Path("many/comparison.json"))
    says(wrong("report", "many"), "comparison.json")


# --- the installed program -------------------------------------------------------------------------------------------------------------


def test_the_program_survives_bytes_that_are_no_text_and_a_reader_that_leaves() -> None:
    answer = program("run", os.fsdecode(b"\xff\xfe.toml"))
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert "toml" in answer.err


def test_experiment_has_help_for_every_key() -> None:
    from accord.cli import _HELP

    assert set(_HELP) == {f.name for f in dataclasses.fields(Experiment)}
