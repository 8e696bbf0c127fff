"""Federations of real processes on loopback: the digest of a run in one process, over TLS, through kills and sabotage, between hosts."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from accord.deploy.export import export
from accord.deploy.join import members
from accord.deploy.keys import write_keys
from accord.deploy.nodes import program, stop_all
from accord.experiment import Experiment
from accord.flower.site import Site
from accord.run import run
from documents import ROOT, blocks
from flower.fleet import LIMIT, PATIENCE, Fleet
from flower.test_rounds import reference

ASKED = Experiment(algorithm="scaffold + constrain", split="dirichlet(0.5)", clients=3, rounds=6, per_round=0, epochs=1)
SLOW = 45.0  # seconds that the sabotaged federation gives its sites


@pytest.fixture
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("plain") / "fleet", ASKED)
    for k in range(3):
        fleet.add(k)
    fleet.start()
    yield fleet
    fleet.stop()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys") / "keys"
    write_keys(folder, 3, ["10.77.0.1", "10.77.1.1", "10.77.2.1"])
    return folder


@pytest.fixture
def sealed(keys: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("sealed") / "fleet", ASKED, options=["--tls-dir", str(keys / "server")])
    for k in range(3):
        own = keys / f"site-{k + 1}"
        fleet.add(k, more=["--key", str(own / "site.key"), "--ca", str(own / "ca.crt")])
    fleet.start()
    yield fleet
    fleet.stop()


@pytest.fixture
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    os.environ["SABOTAGE_SECONDS"] = str(PATIENCE * SLOW + 5)
    asked = ASKED.with_({"rounds": 10})
    fleet = Fleet(tmp_path_factory.mktemp("troubled") / "fleet", asked, timeout=SLOW)
    fleet.add(0, more=["--use", str(Path(__file__).with_name("sabotage.py"))])
    fleet.add(1)
    fleet.add(2)
    fleet.start()
    yield fleet
    fleet.stop()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    digest: str = run(ASKED.with_({"engine": "process"}), tmp_path_factory.mktemp("run"))["digest"]
    return digest


def test_a_killed_server_goes_on_to_the_digest_of_one_process(plain: Fleet, expected: str) -> None:
    plain.round(1)
    os.kill(plain.server.child("flower-superlink"), signal.SIGKILL)  # one of its programs: it is started again and the run goes on
    plain.until(lambda: "SuperLink ended (exit -9" in plain.server.said, "the SuperLink to be missed")
    plain.round(3)
    plain.server.kill(signal.SIGKILL)
    done = len(plain.lines())
    assert 3 <= done < 6
    plain.server.start()
    found = plain.result()
    assert found["digest"] == expected
    assert [line["clients"] for line in plain.lines()] == [[0, 1, 2]] * 6
    assert plain.server.said.count(f"round {done} of 6 done") == 1
    assert "digest" in plain.server.said


def test_the_same_over_tls_with_keys_and_strangers_are_refused(sealed: Fleet, keys: Path, expected: str, tmp_path: Path) -> None:
    write_keys(tmp_path / "other", 1, [])
    other, ours = tmp_path / "other" / "site-1", keys / "site-1"
    strangers = {
        "no key": (None, ours / "ca.crt", False),
        "unknown key": (other / "site.key", ours / "ca.crt", False),
        "wrong authority": (ours / "site.key", other / "ca.crt", False),
        "plain http": (None, None, True),
    }
    nodes = {}
    sealed.round(1)
    assert "brings code or data of its own (evil.py)" in evil(sealed, tmp_path)
    assert not (tmp_path / "pwned").exists()
    for name, (key, ca, bare) in strangers.items():
        (tmp_path / name).mkdir()
        site = Site(name, tmp_path / name, "digits")
        nodes[name] = members(site, f"127.0.0.1:{sealed.port}", tmp_path / "door", key=key, ca=ca, plain=bare)[1]
        nodes[name].command = [*nodes[name].command, "--max-retries", "2"]
        nodes[name].start()
    try:
        for name, node in nodes.items():
            assert node.process is not None
            try:
                assert node.process.wait(LIMIT * 60) != 0, name
            except subprocess.TimeoutExpired:
                assert name == "plain http"
            assert "SuperNode ID" not in node.log.read_text()
    finally:
        stop_all(list(nodes.values()))
    found = sealed.result()
    assert found["digest"] == expected
    assert [line["clients"] for line in sealed.lines()] == [[0, 1, 2]] * 6
    assert sealed.server.said.count("is connected") == 3
    log = (sealed.folder / "site0" / "site.log").read_text()
    assert log.count("asked to train") == 6
    assert "sends up control/1/change (15010,) float32 60,040 B" in log


def evil(fleet: Fleet, folder: Path) -> str:
    """What becomes of an app with code that someone brings to the control interface, without any credential, as whoever reaches it can."""
    app, home = folder / "evil", fleet.folder / "server" / "flower"
    export(ASKED, app, folder / "evil-state")
    (app / "evil.py").write_text(
        f"open({str(folder / 'pwned')!r}, 'w').write('in')\nfrom accord.flower import server_app\napp = server_app\n"
    )
    text = (app / "pyproject.toml").read_text()
    text = text.replace('"accord.flower:server_app"', '"evil:app"').replace('"README.md",', '"README.md", "evil.py",')
    (app / "pyproject.toml").write_text(text)
    env = os.environ | {"FLWR_HOME": str(home), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

    def flwr(*arguments: str) -> str:
        told = subprocess.run([program("flwr"), *arguments], env=env, capture_output=True, text=True, check=False)
        return told.stdout + told.stderr

    told = flwr("run", str(app), "here")
    started = re.search(r"Successfully started run (\d+)", told)
    assert started, told  # the interface is as open as the documentation says
    log: list[str] = []
    fleet.until(lambda: log.append(flwr("log", started[1], "here", "--show")) or "Error" in log[-1], "the stranger's app to end", 60)
    return log[-1]


def test_sabotage_and_a_killed_site_are_named_and_the_run_goes_on(troubled: Fleet) -> None:
    troubled.round(6)
    victim = troubled.sites[2]
    begun = (troubled.folder / "site2" / "site.log").read_text().count("asked to train")
    troubled.until(
        lambda: (troubled.folder / "site2" / "site.log").read_text().count("asked to train") > begun,
        "the victim to be asked once more",
    )
    victim.kill(signal.SIGKILL)
    gone = len(troubled.lines())
    troubled.round(gone + 1)
    troubled.until(lambda: "site-3 is gone" in troubled.server.said, "the victim to be missed")
    victim.start()
    found, lines = troubled.result(), troubled.lines()
    why = {(line["round"], each["client"]): each["reason"] for line in lines for each in line["rejected"]}
    assert why[1, 0].startswith("did not answer within")
    assert why[2, 0] == "sent numbers that are not finite"
    assert "in shape (2, 2) as float32" in why[3, 0]
    assert why[4, 0] == "did not send the state control/1/change; it sent normalise/1/a"
    assert why[5, 0].endswith("as bytes that are no float32 array of shape (3,)")
    assert {at for at, client in why if client == 2} >= {gone + 1}
    assert lines[-1]["clients"] == [0, 1, 2]
    assert "waiting for sites: 2 of 3 connected (missing: site-3)" in troubled.server.said
    assert "site-1 left out: it sent numbers that are not finite" in troubled.server.said
    away = {line["round"] - 1: {0, 1, 2} - set(line["clients"]) for line in lines}
    assert found["digest"] == reference(troubled.experiment, away)


class Hosts:
    """Four hosts as network namespaces: a server with a line to each of three sites, and nothing else."""

    def __init__(self) -> None:
        self.names = [f"accord{os.getpid() % 10_000}{end}" for end in "xabc"]

    def open(self) -> None:
        server, *sites = self.names
        for name in self.names:
            self.ip("netns", "add", name)
            self.ip("-n", name, "link", "set", "lo", "up")
        for k, name in enumerate(sites):
            self.ip("link", "add", f"{name}v", "netns", server, "type", "veth", "peer", "name", "eth0", "netns", name)
            for where, line, address in ((server, f"{name}v", f"10.77.{k}.1/24"), (name, "eth0", f"10.77.{k}.2/24")):
                self.ip("-n", where, "addr", "add", address, "dev", line)
                self.ip("-n", where, "link", "set", line, "up")

    def ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True)

    def inside(self, host: int) -> list[str]:
        return ["ip", "netns", "exec", self.names[host]]

    def close(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("hosts as network namespaces need root and iproute2")
    found = Hosts()
    try:
        found.open()
    except subprocess.CalledProcessError as error:
        found.close()
        pytest.skip(f"network namespaces are not to be had here: {error.stderr.decode().strip()}")
    yield found
    found.close()


def proxy(folder: Path, server: Path, port: int) -> list[str]:
    """The documentation's nginx configuration, for these certificates and this port."""
    (block,) = [block for block in blocks(ROOT / "docs" / "federation.md") if block.attributes.get("title") == "accord.conf"]
    text = block.text.replace("/etc/accord/server", str(server)).replace("127.0.0.1:9100", f"127.0.0.1:{port}")
    temporary = "".join(f"{kind}_temp_path {folder / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    (folder / "nginx.conf").write_text(
        f"pid {folder / 'pid'}; error_log {folder / 'error.log'}; daemon off; user root;"
        f"events {{}} http {{ access_log {folder / 'access.log'}; {temporary} {text} }}"
    )
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def status(hosts: Hosts, path: str, ca: Path) -> str:
    """What a site's host gets for a path of the server."""
    code = (
        "import http.client, ssl, sys; context = ssl.create_default_context(cafile=sys.argv[2]);"
        "c = http.client.HTTPSConnection('10.77.0.1', 8443, context=context);"
        "c.request('POST', sys.argv[1], b''); print(c.getresponse().status)"
    )
    told = subprocess.run([*hosts.inside(1), sys.executable, "-c", code, path, str(ca)], capture_output=True, text=True, check=False)
    return told.stdout.strip() or told.stderr.strip().splitlines()[-1]


def test_three_hosts_reach_a_fourth_through_a_proxy_that_shows_the_fleet_path_only(hosts: Hosts, keys: Path, tmp_path: Path) -> None:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed")
    asked = ASKED.with_({"rounds": 2})
    fleet = Fleet(tmp_path / "fleet", asked, options=["--tls-dir", str(keys / "server")], within=hosts.inside(0))
    for k in range(3):
        own = keys / f"site-{k + 1}"
        more = ["--key", str(own / "site.key"), "--ca", str(own / "ca.crt")]
        fleet.add(k, address=f"10.77.{k}.1:8443", more=more, within=hosts.inside(k + 1))
    web = subprocess.Popen([*hosts.inside(0), *proxy(tmp_path, keys / "server", fleet.port)])
    try:
        fleet.start()
        fleet.round(1)
        assert status(hosts, "/v1/control/list-runs", keys / "site-1" / "ca.crt") == "404"
        assert status(hosts, "/v1/runtime/acquire-task", keys / "site-1" / "ca.crt") == "404"
        assert status(hosts, "/v1/fleet/register-node", keys / "site-1" / "ca.crt") == "415"  # the interface itself answers: no such body
        found = fleet.result()
        assert found["digest"] == run(asked.with_({"engine": "process"}), tmp_path / "run")["digest"]
    finally:
        fleet.stop()
        web.terminate()
        web.wait()
