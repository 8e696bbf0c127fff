"""What a person sees while experiments run: a header, bars with the time left, a table. All of it goes to standard error but the result."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from accord.compare import Cell
from accord.reports import Row, load, summarise, write_page
from accord.reports.tables import to_dicts, to_rich
from accord.reports.words import stops, summary
from accord.run import Run, accuracy

_WIDTH = 120  # columns of what goes into a file or a pipe


class Screen:
    """Progress on standard error; tables and results on standard output, unless that is reserved for JSON."""

    def __init__(self, quiet: bool) -> None:
        self.err = Console(stderr=True, highlight=False)
        self.out = Console(stderr=quiet, highlight=False)
        if not self.out.is_terminal and "COLUMNS" not in os.environ:
            self.out.width = _WIDTH
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.err,
            transient=True,
        )
        self._task: TaskID | None = None
        self._rounds: dict[Path, int] = {}
        self._total = 0

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the bars, if they have begun: ending them prints a line."""
        if self._task is not None:
            self.bars.stop()

    def header(self, run: Run) -> None:
        """What is about to run."""
        for key, value in run.header().items():
            self.err.print(Text.assemble((f"{key:>10}  ", "bold"), str(value)), soft_wrap=True)
        self.err.print(Text.assemble(("       out  ", "bold"), str(run.out)), soft_wrap=True)
        self.bars.start()
        self._task = self.bars.add_task("rounds", total=run.experiment.rounds, completed=run.server.round, said="")

    def line(self, line: Mapping[str, Any]) -> None:
        """One round is over."""
        assert self._task is not None
        found = accuracy(line["evaluation"]) if "evaluation" in line else None
        said = f"accuracy {100 * found:.2f} %, {line['engine']}" if found is not None else None
        self.bars.update(self._task, completed=line["round"])
        if said:
            self.bars.update(self._task, said=said)
        for each in line["rejected"]:
            self.err.print(Text(f"round {line['round']}: client {each['client']} left out: it {each['reason']}", style="yellow"))

    def plan(self, planned: Sequence[Cell], what: str = "") -> None:
        """These runs are about to begin; `what` they are, where they are no comparison on one set-up."""
        self._total = sum(cell.experiment.rounds for cell in planned)
        first = planned[0].experiment
        algorithms = len({cell.experiment.name for cell in planned})
        runs = f"{algorithms} algorithms, {len(planned) // algorithms} seeds"
        self.err.print(Text(what or f"{runs}: {first.data}, {first.split}, {first.clients} clients, {first.rounds} rounds"))
        self.bars.start()
        self._task = self.bars.add_task("rounds", total=self._total, said="")

    def cell(self, cell: Cell, line: Mapping[str, Any]) -> None:
        """One run of a comparison tells how far it is."""
        assert self._task is not None
        if "done" in line:
            self._rounds[cell.folder] = cell.experiment.rounds
            self.bars.update(self._task, completed=sum(self._rounds.values()), said=f"done: {cell.label}")
            return
        self._rounds[cell.folder] = line["round"]
        found = accuracy(line.get("evaluation", {}))
        said = f"{cell.label}" + (f": {100 * found:.1f} %" if found is not None else "")
        self.bars.update(self._task, completed=sum(self._rounds.values()), said=said)

    def result(self, result: Mapping[str, Any]) -> None:
        """The end of one run."""
        self.stop()
        for kind, found in result["evaluation"].items():
            if kind == "global":
                self.out.print(f"{kind:>10}  {100 * found['accuracy']:.2f} % of the test set")
            else:
                self.out.print(
                    f"{kind:>10}  {100 * found['mean']:.2f} % (mean of {found['clients']} clients, spread {100 * found['spread']:.2f}, "
                    f"worst tenth {100 * found['worst']:.2f} %)"
                )
        megabytes = (result["bytes_up"] + result["bytes_down"]) / 1e6
        self.out.print(f"{'cost':>10}  {result['rounds']} rounds, {result['seconds']:.1f} s ({result['engine']}), {megabytes:.1f} MB sent")
        if result["rejected"]:
            self.out.print(f"{'left out':>10}  {result['rejected']} answers that could not be used (see rounds.jsonl)")
        if "stopped" in result:
            self.out.print(Text(f"{'stopped':>10}  {result['stopped']}"), soft_wrap=True)
        self.out.print(f"{'digest':>10}  {result['digest']}")
        self.out.print(f"{'out':>10}  {result['out']}", soft_wrap=True)

    def compared(self, out: Path, as_json: bool, more: Mapping[str, Any] | None = None) -> None:
        """The end of a comparison: its page, and its table or one JSON object, which `more` adds to."""
        comparison = load([out])
        rows = summarise(comparison)
        page = write_page(comparison, out / "report.html")
        if as_json:
            said = {"rows": to_dicts(rows), "set_up": comparison.set_up, "out": str(out), "report": str(page), **(more or {})}
            click.echo(json.dumps(said))
        else:
            for method, each in (more or {}).get("chosen", {}).items():
                self.out.print(Text(f"{method}: {each['algorithm']} ({100 * each['score']:.2f} % of the validation clients' data)"))
            self.table(rows, " ".join([*summary(rows), *stops(comparison)]), page)

    def table(self, rows: Sequence[Row], summary: str, page: Path) -> None:
        """The end of a comparison."""
        self.stop()
        self.out.print(to_rich(rows, width=self.out.width))
        self.out.print(Text(summary))
        self.out.print(f"\nreport: {page.resolve()}", soft_wrap=True)
