"""The command `accord analyze`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from accord.analysis.analyze import ORDER, analyze, piece


@click.command("analyze")
@click.argument("folders", nargs=-1, required=True, metavar="DIR ...")
@click.option(
    "--only", multiple=True, metavar="NAME", help="one of `accord list analyses`, such as 'curvature(probes=100)'; may be repeated"
)
@click.option("--json", "as_json", is_flag=True, help="print one JSON object and nothing else")
def analyze_command(folders: Sequence[str], only: Sequence[str], as_json: bool) -> None:
    """Analyse finished runs, or all runs of a comparison: curvature, landscape, clients, gradients, features, cost, knowledge."""
    for text in only:
        piece(text)
    runs = [run for folder in folders for run in runs_of(Path(folder))]
    console, found = Console(highlight=False), {}
    try:
        with Bars() as bars:
            for run in runs:
                found[str(run)] = analyze(run, only or ORDER, bars.tell)
    except KeyboardInterrupt:
        click.echo("accord: interrupted; the same command goes on where it was", err=True)
        raise click.exceptions.Exit(130) from None
    if as_json:
        click.echo(json.dumps(found))
        return
    for path, made in found.items():
        for each in made.values():
            for line in lines(each["values"]):
                console.print(Text.assemble((f"{each['name']:>10}  ", "bold"), line), soft_wrap=True)
        console.print(f"{'out':>10}  {Path(path) / 'analysis'}", soft_wrap=True)


def runs_of(folder: Path) -> list[Path]:
    """The run in a folder, or the runs of the comparison in it that began."""
    from accord.reports import load

    return [run.path for run in load([folder]).all_runs]


def lines(values: Mapping[str, Any]) -> list[str]:
    """The single numbers of an analysis, a few to a line."""
    said = [f"{key} {value:.5g}" for key, value in values.items() if isinstance(value, int | float) and not isinstance(value, bool)]
    return [", ".join(said[k : k + 6]) for k in range(0, len(said), 6)] or ["done"]


class Bars:
    """Progress bars on standard error, one for each thing that takes long."""

    def __init__(self) -> None:
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True, highlight=False),
            transient=True,
        )
        self._task: TaskID | None = None
        self._what = ""

    def __enter__(self) -> Bars:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._task is not None:
            self.bars.stop()

    def tell(self, what: str, done: int, total: int) -> None:
        """So much of something is done."""
        if self._task is None:
            self.bars.start()
        if self._task is None or what != self._what:
            self._task, self._what = self.bars.add_task(what, total=total), what
        self.bars.update(self._task, completed=done, total=total)
