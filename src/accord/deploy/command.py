"""The commands `accord serve`, `accord join`, `accord keys` and `accord federate export`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import click

from accord.check import Count, NonNegative, Positive, Range, Whole, check
from accord.deploy import join as joining
from accord.deploy import serve as serving
from accord.deploy.export import export
from accord.deploy.keys import write_keys
from accord.deploy.nodes import interruptible
from accord.experiment import Experiment

_PORT = Annotated[int, Range(1, 65535)]


def number(flag: str, text: str, hint: Any) -> Any:
    """The number that a flag's text is."""
    from accord.cli import literal

    return check(literal("rounds", text), hint, flag)


def needed() -> None:
    """Say what to install where Flower is not."""
    if find_spec("flwr") is None:
        raise ValueError("a real federation runs on Flower, which is not installed: pip install 'accord[flower]'")


def from_file(file: str) -> Experiment:
    """The experiment of a file, with paths that hold wherever the server's processes run."""
    from accord.cli import gather

    asked, _ = gather(file, {}, ())
    if any(part.has("trains_on") for part in asked.recipe().all_parts):
        raise ValueError(f"{asked.algorithm!r} trains on data of all clients in one place, which sites do not have: choose another")
    if not asked.clients:
        raise ValueError(f"{file}: clients is 0; a federation of sites has as many clients as sites: write clients = 3, or how many")
    looked = [each for each in asked.track if each in ("drift", "knowledge")]
    if looked:
        raise ValueError(f"{file}: track has {looked[0]!r}, which looks on while clients train, and sites do not show that: leave it out")
    local = tuple(str(Path(each).resolve()) if each.endswith(".py") else each for each in asked.use)
    return dataclasses.replace(asked, use=local, data_dir=str(Path(asked.data_dir).resolve()) if asked.data_dir else "")


@click.command("serve")
@click.argument("experiment", metavar="EXPERIMENT.toml")
@click.option("--host", default="127.0.0.1", metavar="HOST", help="where to listen (default: this machine only)")
@click.option("--port", default="9100", metavar="N", help="the one port of everything (default: 9100)")
@click.option("--tls-dir", metavar="DIR", help="the server folder that `accord keys` made: encryption, and only sites with a key")
@click.option("--min-clients", default="0", metavar="N", help="sites that must be connected before a round begins (default: all)")
@click.option("--round-timeout", default="600", metavar="S", help="seconds that a site has to answer (default: 600)")
@click.option("--state", default="federation", metavar="DIR", help="checkpoints, results, database (default: federation)")
@click.option("--no-test", is_flag=True, help="the server holds no data: sites say the shape of theirs, and only they test the model")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object at the end and nothing else on standard output")
def serve_command(
    experiment: str,
    host: str,
    port: str,
    tls_dir: str | None,
    min_clients: str,
    round_timeout: str,
    state: str,
    no_test: bool,
    as_json: bool,
) -> None:
    """Run an experiment over real sites. The same command goes on from where it was interrupted."""
    needed()
    interruptible()
    from accord.cli import print_run
    from accord.screen import Screen

    asked = from_file(experiment)
    service = serving.Service(
        host,
        number("--port", port, _PORT),
        Path(tls_dir).resolve() if tls_dir else None,
        number("--min-clients", min_clients, Whole),
        number("--round-timeout", round_timeout, Positive),
        not no_test,
    )
    if asked.clients is not None and service.least > asked.clients:
        raise ValueError(f"--min-clients is {service.least}, and the experiment has {asked.clients} clients: write at most that")
    with Screen(as_json) as screen:
        result = serving.serve(asked, Path(state), service, lambda line: screen.err.print(line, soft_wrap=True, markup=False))
        print_run(result, as_json, screen)


@click.command("join")
@click.argument("superlink", metavar="HOST:PORT")
@click.option("--data", required=True, metavar="TEXT|PATH", help="this site's data, as `accord run --data` reads them")
@click.option("--split", default="", metavar="TEXT", help="for rehearsals: split the data like this and hold one part")
@click.option("--split-index", default="-1", metavar="I", help="which part, from 0; without --split, which client this site is")
@click.option("--name", metavar="NAME", help="what this site is called (default: the machine's name); a key's name goes before it")
@click.option("--key", metavar="FILE", help="this site's private key")
@click.option("--ca", metavar="FILE", help="the certificate of the federation's authority")
@click.option("--insecure", is_flag=True, help="speak without encryption to another machine")
@click.option("--state", default="site", metavar="DIR", help="what this site keeps between rounds, and logs (default: site)")
@click.option("--data-dir", default="", metavar="DIR", help="where to look for data sets first (or ACCORD_DATA)")
@click.option("--device", default="cpu", metavar="NAME", help="cpu, cuda, ...")
@click.option("--threads", default="1", metavar="N", help="threads to train on (default: 1, which gives the digest of one machine)")
@click.option("--use", multiple=True, metavar="FILE", help="a Python file or module with pieces of your own; may be repeated")
@click.option("--allow", multiple=True, metavar="NAME", help="a part that tells of single samples or classes, or single-example")
@click.option("--anew", is_flag=True, help="if what was kept is lost, begin as in a first round")
@click.option("--dp-clip", default="0", metavar="C", help="privacy: clip each update to this norm (0: no clipping, no noise)")
@click.option("--dp-noise", default="1", metavar="Z", help="privacy: noise of deviation Z times 2 C (default: 1)")
@click.option("--dp-delta", default="1e-5", metavar="D", help="privacy: the delta of (epsilon, delta) (default: 1e-5)")
def join_command(
    superlink: str,
    data: str,
    split: str,
    split_index: str,
    name: str | None,
    key: str | None,
    ca: str | None,
    insecure: bool,
    state: str,
    data_dir: str,
    device: str,
    threads: str,
    use: Sequence[str],
    allow: Sequence[str],
    anew: bool,
    dp_clip: str,
    dp_noise: str,
    dp_delta: str,
) -> None:
    """Be one site of a federation until interrupted: train here on data that never leave, and show what is asked and sent."""
    needed()
    interruptible()
    from accord.flower.site import Site

    index = number("--split-index", split_index, Annotated[int, Range(-1, 10**6)])
    if split and index < 0:
        raise ValueError(f"--split {split!r} wants --split-index, the part of the split that this site holds: 0 for the first")
    files = [Path(each).expanduser().resolve() if each else None for each in (key, ca)]
    for file in files:
        if file is not None and not file.is_file():
            raise ValueError(f"there is no file {str(file)!r}")
    site = Site(
        name or (f"site-{index + 1}" if split else joining.hostname()),
        Path(state).expanduser().resolve(),
        str(Path(data).resolve()) if Path(data).exists() else data,
        split,
        index,
        str(Path(data_dir).resolve()) if data_dir else "",
        device,
        number("--threads", threads, Count),
        tuple(str(Path(each).resolve()) if each.endswith(".py") else each for each in use),
        tuple(allow),
        anew,
        number("--dp-clip", dp_clip, NonNegative),
        number("--dp-noise", dp_noise, Positive),
        number("--dp-delta", dp_delta, Annotated[float, Range(0, 0.5, above=True)]),
    )
    joining.join(site, superlink, key=files[0], ca=files[1], insecure=insecure, say=lambda line: click.echo(line, err=True))


@click.command("keys")
@click.argument("folder", metavar="DIR")
@click.option("--sites", required=True, metavar="N", help="how many sites get a key pair")
@click.option("--host", "hosts", multiple=True, metavar="NAME", help="a name or address that sites reach the server by; may be repeated")
def keys_command(folder: str, sites: str, hosts: Sequence[str]) -> None:
    """Make an authority, a server certificate and a key pair for each site, each folder with a README on where it goes."""
    needed()
    for each in write_keys(Path(folder), number("--sites", sites, Count), hosts):
        click.echo(f"{each}: {(each / 'README').read_text(encoding='utf-8').splitlines()[0]}")


@click.group("federate")
def federate_command() -> None:
    """A federation in the form that other tools take."""


@federate_command.command("export")
@click.argument("folder", metavar="DIR")
@click.option("--experiment", default="digits", metavar="EXPERIMENT.toml", help="what is trained (default: handwritten digits)")
@click.option("--state", default="federation", metavar="DIR", help="the server's folder (default: federation)")
@click.option("--min-clients", default="0", metavar="N", help="sites that must be connected before a round begins (default: all)")
@click.option("--round-timeout", default="600", metavar="S", help="seconds that a site has to answer (default: 600)")
@click.option("--no-test", is_flag=True, help="the server holds no data")
def export_command(folder: str, experiment: str, state: str, min_clients: str, round_timeout: str, no_test: bool) -> None:
    """Write an ordinary Flower app directory, which `flwr run` runs."""
    least, timeout = number("--min-clients", min_clients, Whole), number("--round-timeout", round_timeout, Positive)
    where = Path(state).expanduser().resolve()
    click.echo(export(from_file(experiment), Path(folder), where, least=least, timeout=timeout, test_here=not no_test))
