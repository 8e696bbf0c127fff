"""Keys, the gate, the exported app and the commands, without a network."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_ssh_private_key, load_ssh_public_key

from accord.deploy.export import export
from accord.deploy.join import plain_http
from accord.deploy.keys import write_keys
from accord.deploy.nodes import Tail, environment, secret
from accord.deploy.serve import Service, idle, same, serve
from accord.experiment import Experiment
from shell import accord


def test_keys_certificates_and_who_may_read_them(tmp_path: Path) -> None:
    folders = write_keys(tmp_path / "k", 2, ["fl.example.org", "10.0.0.7"])
    root, leaf = (x509.load_pem_x509_certificate((tmp_path / "k" / "server" / name).read_bytes()) for name in ("ca.crt", "server.crt"))
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "fl.example.org"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "10.0.0.7"]
    key = load_pem_private_key((tmp_path / "k" / "server" / "server.key").read_bytes(), None)
    assert key.public_key() == leaf.public_key()
    for number in (1, 2):
        site = load_ssh_private_key((tmp_path / "k" / f"site-{number}" / "site.key").read_bytes(), None)
        assert site.public_key() == load_ssh_public_key((tmp_path / "k" / "server" / "sites" / f"site-{number}.pub").read_bytes())
    assert all((folder / "README").is_file() for folder in folders)
    for file in (tmp_path / "k").rglob("*.key"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert not list((tmp_path / "k" / "server").rglob("ca.key"))
    with pytest.raises(ValueError, match="never written over"):
        write_keys(tmp_path / "k", 1, [])


def test_openssl_agrees_with_the_certificate(tmp_path: Path) -> None:
    write_keys(tmp_path / "k", 1, ["fl.example.org"])
    server = tmp_path / "k" / "server"
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "fl.example.org"]
    told = subprocess.run([*command, "-CAfile", server / "ca.crt", server / "server.crt"], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


GATED = """
import os, sys, shutil
from pathlib import Path
from accord.deploy.gate import shut
apps = Path(sys.argv[1]); code = Path(sys.argv[2])
shut(apps)
(apps / "pyproject.toml").write_text("x = 1")
assert (apps / "pyproject.toml").read_text() == "x = 1"
def refused(act):
    try:
        act()
    except PermissionError as error:
        assert "brings code or data of its own" in str(error)
    else:
        raise AssertionError(act)
refused(lambda: (apps / "evil.py").write_text("1"))
refused(lambda: shutil.copy2(code, apps / "evil.py"))
refused(lambda: (apps / ".." / "apps" / "evil.so").open("rb"))
refused(lambda: os.open(apps / "evil.pth", os.O_CREAT | os.O_WRONLY))
os.symlink(apps, code.with_name("link"))
refused(lambda: (code.with_name("link") / "evil.py").open("w"))
sys.path.insert(0, str(apps))
try:
    import planted
except PermissionError:
    print("shut")
"""


def test_nothing_of_an_app_but_settings_passes_the_gate(tmp_path: Path) -> None:
    apps, code = tmp_path / "apps", tmp_path / "code.py"
    apps.mkdir()
    code.write_text("print('evil')")
    (apps / "planted.py").write_text("print('evil')")
    told = subprocess.run([sys.executable, "-c", GATED, str(apps), str(code)], capture_output=True, text=True, check=False)
    assert told.stdout == "shut\n", told.stderr


def test_the_environment_of_flower_is_private_and_starts_one_program_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "1")
    monkeypatch.setenv("FLWR_OIDC_ENABLED", "1")
    found = environment(tmp_path, ["flwr-clientapp"])
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert found["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert "FLWR_OIDC_ENABLED" not in found
    assert os.listdir(found["PATH"]) == ["flwr-clientapp"]
    assert stat.S_IMODE(secret(tmp_path).stat().st_mode) == 0o600


def test_the_exported_app_is_one_that_flower_builds(tmp_path: Path) -> None:
    from flwr.cli.build import build_fab_from_disk
    from flwr.cli.config_utils import load_and_validate

    app = export(Experiment(clients=3), tmp_path / "app", tmp_path / "state", least=2, timeout=30.0)
    config, warnings = load_and_validate(app / "pyproject.toml")
    assert warnings == []
    assert config["tool"]["flwr"]["app"]["components"] == {
        "serverapp": "accord.flower:server_app",
        "clientapp": "accord.flower:client_app",
    }
    given = config["tool"]["flwr"]["app"]["config"]
    assert Experiment.of(tomllib.loads(given["experiment"])) == Experiment(clients=3)
    assert (given["min-clients"], given["round-timeout"], given["test-here"]) == (2, 30.0, True)
    assert len(build_fab_from_disk(app)) < 10_000


@pytest.mark.parametrize(
    ("address", "ca", "key", "insecure", "plain"),
    [
        ("127.0.0.1:9100", None, None, False, True),
        ("localhost:9100", None, None, False, True),
        ("fl.example.org:9100", None, None, False, False),
        ("fl.example.org:9100", None, None, True, True),
        ("127.0.0.1:9100", Path("ca"), Path("key"), False, False),
        ("127.0.0.1.example.org:9100", None, None, False, False),
    ],
)
def test_when_nothing_is_encrypted(address: str, ca: Path | None, key: Path | None, insecure: bool, plain: bool) -> None:
    assert plain_http(address, ca, key, insecure) is plain


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("serve", "digits", "--port", "0"), "--port"),
        (("serve", "digits", "--min-clients", "21"), "write at most that"),
        (("serve", "digits", "--round-timeout", "-1"), "--round-timeout"),
        (("serve", "nothing.toml"), "nothing.toml"),
        (("serve", "tracked.toml"), "sites do not show that"),
        (("join", "localhost:1"), "--data"),
        (("join", "localhost:1", "--data", "digits", "--split", "iid"), "--split-index"),
        (("join", "localhost:1", "--data", "digits", "--key", "/no/key"), "there is no file '/no/key'"),
        (("join", "localhost:1", "--data", "digits", "--dp-noise", "0"), "--dp-noise"),
        (("keys", "x"), "--sites"),
        (("keys", "x", "--sites", "0"), "--sites"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tracked.toml").write_text('clients = 3\ntrack = ["wandb", "drift"]\n')
    answer = accord(*arguments)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert said in answer.err


def test_a_folder_holds_one_experiment(tmp_path: Path) -> None:
    same(Experiment(clients=3), tmp_path)
    same(Experiment(clients=3, engine="process"), tmp_path)
    with pytest.raises(ValueError, match="holds another experiment"):
        same(Experiment(clients=4), tmp_path)


def test_a_folder_is_idle_unless_someone_plays(tmp_path: Path) -> None:
    import fcntl

    assert idle(tmp_path)
    with (tmp_path / "playing.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not idle(tmp_path)
    assert idle(tmp_path)


def test_a_finished_experiment_is_only_read(tmp_path: Path) -> None:
    keys = ("algorithm", "digest", "accuracy", "rounds", "seconds", "bytes_up", "bytes_down", "evaluation", "rejected", "engine")
    (tmp_path / "result.json").write_text(json.dumps(dict.fromkeys(keys, 1)))
    assert serve(Experiment(clients=3), tmp_path, Service(), print)["digest"] == 1
    assert not (tmp_path / "flower").exists()


def test_the_certificates_of_a_server_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="accord keys DIR"):
        Service(tls=tmp_path).certificates()


def test_a_tail_shows_whole_lines_once(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_text("old\n")
    tail = Tail(file)
    assert tail.lines() == []
    with file.open("a") as log:
        log.write("one\ntw")
    assert tail.lines() == ["one"]
    with file.open("a") as log:
        log.write("o\nthree\n")
    assert tail.lines() == ["two", "three"]
