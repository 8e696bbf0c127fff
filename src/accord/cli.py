"""The command line: thin over the library, one line for every mistake."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from accord import catalogue, listing, presets
from accord import tune as tuning
from accord.analysis.command import analyze_command
from accord.check import nearest
from accord.compare import Cell, cells, compare, verify
from accord.deploy.command import federate_command, join_command, keys_command, serve_command
from accord.engines.crew import Lost
from accord.experiment import Experiment, checked, cores
from accord.reproduce.command import reproduce_command
from accord.run import make, resume, run
from accord.screen import Screen

_F = TypeVar("_F", bound=Callable[..., Any])
_SEVERAL = ("use", "evaluate", "track")  # flags that may stand more than once
_HELP = {
    "algorithm": "recipe text, such as 'scaffold + constrain'",
    "name": "what tables call it",
    "data": "a source (accord list data), a folder, a .npz file or a hub name",
    "data_fraction": "use this share of the training samples, drawn by the split's seed",
    "split": "how samples go to clients (accord list splits)",
    "clients": "how many; 0: as many as the data has",
    "model": "accord list models",
    "rounds": "how many",
    "per_round": "clients a round, drawn at random (default: 5, unless the recipe says); 0: as the recipe says",
    "epochs": "local passes a round",
    "steps": "local steps a round in place of epochs; a number or 'uniform(5, 50)'",
    "batch_size": "samples a local step",
    "lr": "local learning rate",
    "momentum": "local momentum",
    "weight_decay": "local weight decay",
    "lr_decay": "factor on the learning rate each round",
    "dropout": "probability that a client asked does not answer",
    "seed": "of weights, selection and batches",
    "split_seed": "of the split",
    "local_test": "share of each client's data kept for its own test",
    "aligned_test": "test samples a client drawn from the global test set by its own class mix",
    "held_out": "further clients that never train",
    "evaluate_every": "rounds between evaluations",
    "evaluate_last": "so many rounds at the end are all evaluated",
    "evaluate": "on whose data: global, local, personal, new (default: all there are); may be repeated",
    "track": "record of each round: drift, knowledge; write it also to: tensorboard, mlflow, wandb (offline); may be repeated",
    "state_memory": "megabytes of client state in memory, the rest on disk",
    "engine": "auto, process, threads, processes or ray",
    "workers": "0: one a core",
    "address": "of a Ray cluster to join: auto or HOST:PORT",
    "device": "cpu, cuda, ...",
    "data_dir": "where to look for data sets first (or ACCORD_DATA)",
    "use": "a Python file or module with pieces of your own; may be repeated",
}


def settings(command: _F) -> _F:
    """A flag for every key of an experiment."""
    for field in reversed(dataclasses.fields(Experiment)):
        flag = "--" + field.name.replace("_", "-")
        shown: Any = {"metavar": "TEXT", "default": None, "help": _HELP[field.name], "multiple": field.name in _SEVERAL}
        command = click.option(flag, field.name, **shown)(command)
    command = click.option("--set", "sets", multiple=True, metavar="KEY=VALUE", help="set any key, over file and flags")(command)
    command = click.option("--out", metavar="DIR", help="where the results go (default: runs/<time>)")(command)
    return click.option("--json", "as_json", is_flag=True, help="print one JSON object and nothing else")(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110}, no_args_is_help=False)
@click.version_option(package_name="accord")
def accord() -> None:
    """Federated learning for clients that disagree."""


@accord.command("run")
@click.argument("experiment", required=False)
@settings
def run_command(experiment: str | None, sets: Sequence[str], out: str | None, as_json: bool, **flags: Any) -> None:
    """Train one algorithm. EXPERIMENT is a TOML file or a name that `accord list experiments` shows; without one, handwritten digits."""
    asked, extra = gather(experiment, flags, sets)
    if extra:
        raise ValueError(f"{experiment} compares algorithms: use `accord compare {experiment}`, or leave out {', '.join(sorted(extra))}")
    _one(asked, Path(out) if out else fresh("run"), as_json)


@accord.command("compare")
@click.argument("algorithms", nargs=-1)
@settings
@click.option("--seeds", metavar="N", help="how many seeds, beginning with --seed (default: 3)")
@click.option("--target", metavar="ACC", help="accuracy that counts as reached (default: what the first algorithm ends with)")
def compare_command(
    algorithms: Sequence[str],
    sets: Sequence[str],
    out: str | None,
    as_json: bool,
    seeds: str | None,
    target: str | None,
    **flags: Any,
) -> None:
    """Train several ALGORITHMS over several seeds. One of them may be a TOML file; without any, handwritten digits are used."""
    files = [text for text in algorithms if text.endswith(".toml") or text in catalogue.names()]
    if len(files) > 1:
        raise ValueError(f"{files[0]} and {files[1]} are two experiment files: give one")
    asked, extra = gather(files[0] if files else "digits", flags, sets)
    named = [text for text in algorithms if text not in files] or catalogue.texts(extra.get("algorithms")) or [asked.algorithm]
    place = f" in {files[0]}" if files else ""
    count = catalogue.whole(seeds, "--seeds") if seeds is not None else catalogue.whole(extra.get("seeds", 3), f"seeds{place}")
    aim = catalogue.fraction(target, "--target") if target is not None else catalogue.fraction(extra.get("target"), f"target{place}")
    folder = Path(out) if out else fresh("compare")
    _many(cells(asked, named, count, folder), folder, aim, as_json)


@accord.command("tune")
@click.argument("methods", nargs=-1)
@settings
@click.option("--trials", default="5", metavar="N", help="settings to try for each method (default: 5)")
@click.option("--preset", "paper", metavar="PAPER", help=f"the candidates of one paper ({', '.join(presets.names())}; default: all)")
@click.option("--seeds", default="3", metavar="N", help="seeds of the comparison at the end (default: 3)")
@click.option("--target", metavar="ACC", help="accuracy that counts as reached (default: what the first method ends with)")
def tune_command(
    methods: Sequence[str],
    sets: Sequence[str],
    out: str | None,
    as_json: bool,
    trials: str,
    paper: str | None,
    seeds: str,
    target: str | None,
    **flags: Any,
) -> None:
    """Try settings of METHODS on held-out clients' data, as many for each, then compare the best ones on the test set.

    A paper's preset also sets what it says of the local work, where flags do not, and names its methods when none is given.
    """
    chosen = presets.preset(paper) if paper else presets.papers()
    asked, _ = gather("digits", {**chosen.set_up, **{key: value for key, value in flags.items() if value not in (None, ())}}, sets)
    if not asked.held_out:
        asked = dataclasses.replace(asked, held_out=max(1, (asked.clients or 5) // 5))
    folder, aim = Path(out) if out else fresh("tune"), catalogue.fraction(target, "--target")
    count, repeats = catalogue.whole(trials, "--trials"), catalogue.whole(seeds, "--seeds")
    planned = tuning.trials(asked, methods or list(chosen.methods if paper else ("fedavg", "fedprox", "fedsol")), chosen, count, folder)
    with Screen(as_json) as screen:
        screen.plan([trial.cell for trial in planned])
        tuning.tune(planned, asked, repeats, folder, workers=asked.workers or cores(), target=aim, watch=screen.cell)
        screen.compared(folder, as_json, json.loads((folder / "tune.json").read_text(encoding="utf-8")))


@accord.command("resume")
@click.argument("folder", metavar="DIR")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object and nothing else")
def resume_command(folder: str, as_json: bool) -> None:
    """Finish an interrupted run or comparison; the result is the one it would have had."""
    out = Path(folder)
    if (out / "comparison.json").is_file():
        planned, aim = catalogue.planned(out)
        _many(planned, out, aim, as_json)
        return
    with Screen(as_json) as screen:
        print_run(resume(out, progress=screen.line, began=screen.header), as_json, screen)


@accord.command("report")
@click.argument("folders", nargs=-1, required=True, metavar="DIR ...")
@click.option("--out", metavar="PAGE.html", help="where the page goes (default: report.html in the first folder)")
@click.option("--target", metavar="ACC", help="accuracy that counts as reached")
@click.option("--baseline", metavar="ALGORITHM", help="what the others are compared with (default: the first)")
def report_command(folders: Sequence[str], out: str | None, target: str | None, baseline: str | None) -> None:
    """Make one self-contained page of runs and comparisons."""
    from accord.reports import load, write_page

    page = Path(out) if out else Path(folders[0]) / "report.html"
    comparison, aim = load(list(folders)), catalogue.fraction(target, "--target")
    try:
        click.echo(write_page(comparison, page, baseline=baseline, target=aim))
    except OSError as error:
        raise ValueError(f"cannot write {str(page)!r} ({error.strerror}): choose another file with --out") from None


@accord.command("list")
@click.argument("what", metavar="|".join(listing.KINDS))
@click.option("--use", multiple=True, help="a Python file or module with pieces of your own")
@click.option("--split", "texts", multiple=True, metavar="TEXT", help="for splits: show this one (default: all); may be repeated")
@click.option("--data", default="digits", metavar="TEXT", help="for splits: the data to split (default: digits)")
@click.option("--clients", default="20", metavar="N", help="for splits: over how many clients (default: 20)")
@click.option("--split-seed", default="0", metavar="N", help="for splits: the seed (default: 0)")
@click.option("--json", "as_json", is_flag=True, help="print one JSON array")
def list_command(what: str, use: Sequence[str], texts: Sequence[str], data: str, clients: str, split_seed: str, as_json: bool) -> None:
    """Show what there is to choose from, with arguments and what they may be; of splits also how unlike they make the clients."""
    Experiment(use=tuple(use)).load_pieces()
    if what == "splits":
        count, seed = _flag("clients", literal("clients", clients)), _flag("split_seed", literal("split_seed", split_seed))
        found = list(listing.splits(texts, data, count, seed))
    else:
        found = list(listing.rows(what))
    listing.show(found, as_json)


for command in (reproduce_command, analyze_command, serve_command, join_command, keys_command, federate_command):
    accord.add_command(command)


def gather(file: str | None, flags: Mapping[str, Any], sets: Sequence[str]) -> tuple[Experiment, dict[str, Any]]:
    """The experiment that file, flags and `--set` describe, in this order of strength, and the keys that only `compare` knows."""
    read, where = catalogue.read(file) if file else ({}, "")
    extra: dict[str, Any] = {key: read.pop(key) for key in ("algorithms", "seeds", "target") if key in read}
    given = {key: _flag(key, literal(key, value)) for key, value in flags.items() if value not in (None, ())}
    found = Experiment().with_(read, where).with_(given)
    for each in sets:
        key, equals, value = each.partition("=")
        if not equals:
            raise ValueError(f"--set {each!r} is not KEY=VALUE, such as --set rounds=50")
        found = found.with_({key.strip(): literal(key.strip(), value.strip())}, "--set")
    return found, extra


def _flag(key: str, value: Any) -> Any:
    try:
        return checked({key: value})[key]
    except ValueError as error:
        raise ValueError(f"--{key.replace('_', '-')}{str(error).removeprefix(key)}") from None


def literal(key: str, value: Any) -> Any:
    """The number that a flag's text is, or the text itself, always so for a key that wants a text.

    >>> literal("rounds", "30"), literal("lr", "0.1"), literal("name", "30")
    (30, 0.1, '30')
    """
    if not isinstance(value, str) or typing.get_type_hints(Experiment).get(key) is str:
        return value
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def _one(asked: Experiment, out: Path, as_json: bool) -> None:
    with Screen(as_json) as screen:
        result = run(asked, out, progress=screen.line, began=screen.header)
        if "stopped" in result and not result["rounds"]:  # a setting must be wrong
            raise ValueError(result["stopped"])
        print_run(result, as_json, screen)


def print_run(result: Mapping[str, Any], as_json: bool, screen: Screen) -> None:
    """What a run says at its end."""
    if as_json:
        keys = ("algorithm", "digest", "accuracy", "rounds", "seconds", "bytes_up", "bytes_down", "out", "stopped")
        click.echo(json.dumps({key: result[key] for key in keys if key in result}))
    else:
        screen.result(result)


def _many(planned: Sequence[Cell], out: Path, target: float | None, as_json: bool) -> None:
    first = planned[0].experiment
    verify(planned)
    make(out)
    with Screen(as_json) as screen:
        screen.plan(planned)
        compare(planned, out, workers=1 if first.engine != "auto" else first.workers or cores(), target=target, watch=screen.cell)
        screen.compared(out, as_json)


def fresh(kind: str) -> Path:
    """A new folder for results."""
    base = Path("runs") / f"{time.strftime('%Y%m%d-%H%M%S')}-{kind}"
    number = next(k for k in range(1, 1000) if not (base if k == 1 else Path(f"{base}-{k}")).exists())
    return base if number == 1 else Path(f"{base}-{number}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; mistakes end with one line and exit code 2, an interruption with 130."""
    try:
        sys.exit(accord.main(arguments, prog_name="accord", standalone_mode=False) or 0)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.exceptions.Abort, KeyboardInterrupt):
        _say("interrupted; `accord resume` goes on from the last checkpoint")
        sys.exit(130)
    except click.ClickException as error:
        _say(_usage(error))
        sys.exit(2)
    except BrokenPipeError:  # who read the output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except (ValueError, OSError, MemoryError, RuntimeError) as error:
        said = explained(error)
        if said is None or os.environ.get("ACCORD_TRACEBACK"):
            raise
        _say(said)
        sys.exit(2)


def explained(error: Exception) -> str | None:
    """What a person can do something about, in a line; None for what only a traceback explains.

    >>> explained(FileExistsError(17, "File exists", "out")), explained(RuntimeError("shapes do not fit"))
    ("'out': File exists", None)
    """
    if isinstance(error, ValueError | Lost):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename!r}: {error.strerror}"
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error) or "out of memory" in str(error):
        return f"out of memory ({' '.join(str(error).split())[:200]}): use a smaller model, batch or data set, or fewer workers"
    return None


def _usage(error: click.ClickException) -> str:
    if isinstance(error, click.NoSuchOption):
        known = [option for param in (error.ctx.command.params if error.ctx else []) for option in param.opts]
        return f"no such option {error.option_name}{nearest(error.option_name, known)}"
    if isinstance(error, click.UsageError) and error.message.startswith("No such command"):
        return f"{error.message.rstrip('.')}{nearest(error.message.split(chr(39))[1], accord.commands)}; see accord --help"
    command = f"{error.ctx.info_name} " if isinstance(error, click.UsageError) and error.ctx and error.ctx.parent else ""
    return f"{error.format_message().rstrip('.')}; see accord {command}--help"


def _say(message: str) -> None:
    line = " ".join(message.split())
    click.echo(f"accord: {line if len(line) <= 1000 else f'{line[:600]} ... {line[-395:]}'}", err=True)


if __name__ == "__main__":
    main()
