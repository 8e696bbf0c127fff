"""The command `accord reproduce`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from accord.check import Count, Fraction, check
from accord.checkpoint import write_atomically
from accord.experiment import checked
from accord.reproduce.estimate import Estimate, calibrate, estimate, shapes
from accord.reproduce.figures import draw
from accord.reproduce.outcome import Outcome, finished, markdown, outcomes, reasons, table
from accord.reproduce.play import Plan, absent, plan, play
from accord.reproduce.publish import draw_kept, keep
from accord.reproduce.study import Study, load, places
from accord.run import make

if TYPE_CHECKING:
    from accord.screen import Screen


@click.command("reproduce")
@click.argument("study", required=False, metavar="ID")
@click.option("--list", "listed", is_flag=True, help="show every table and figure, what it needs, what is missing here and its cost")
@click.option("--cells", default="*", metavar="PATTERN", help="only the cells whose row, column or 'row | column' matches")
@click.option("--seeds", metavar="N", help="how many seeds (default: as many as the paper)")
@click.option("--rounds", metavar="N", help="how many rounds (default: as many as the paper)")
@click.option("--data-fraction", metavar="F", help="use this share of the training samples (default: as the paper)")
@click.option("--epoch-fraction", metavar="F", help="this share of the local epochs, at least one (default: as the paper)")
@click.option("--data-dir", default="", metavar="DIR", help="where to look for data sets first (or ACCORD_DATA)")
@click.option("--workers", default="0", metavar="N", help="runs side by side; 0: one a core")
@click.option(
    "--out",
    metavar="DIR",
    help="where the results go (default: runs/reproduce): DIR/ID, and DIR/cells with every run, which is kept and used again",
)
@click.option("--publish", metavar="DIR", help="run nothing: keep what is finished as JSON files in DIR, and draw the page of all in it")
@click.option("--json", "as_json", is_flag=True, help="print one JSON object and nothing else")
def reproduce_command(
    study: str | None,
    listed: bool,
    cells: str,
    seeds: str | None,
    rounds: str | None,
    data_fraction: str | None,
    epoch_fraction: str | None,
    data_dir: str,
    workers: str,
    out: str | None,
    publish: str | None,
    as_json: bool,
) -> None:
    """Run a table or a figure of a paper again, and print the paper's numbers beside the measured ones."""
    if study is None and publish is not None:
        draw_kept(Path(publish))
        return
    if listed or study is None:
        show_list([study] if study else sorted(places()), data_dir, as_json)
        return
    from accord.cli import literal
    from accord.screen import Screen

    chosen = load(study)
    root = Path(out) if out else Path("runs") / "reproduce"
    folder = root / chosen.id
    given = {key: literal(key, value) for key, value in (("rounds", rounds), ("data_fraction", data_fraction)) if value is not None}
    count = None if seeds is None else check(literal("rounds", seeds), Count, "--seeds")
    share = None if epoch_fraction is None else check(literal("data_fraction", epoch_fraction), Fraction, "--epoch-fraction")
    flags: dict[str, Any] = {"cells": cells, "seeds": count, "epoch_fraction": share}
    flags |= {key: checked({key: value}, "the flags")[key] for key, value in given.items()}
    beside = checked({"workers": literal("workers", workers)}, "the flags")["workers"]
    planned = plan(chosen, root / "cells", data_dir=data_dir, **flags)
    make(root / "cells")
    make(folder)
    with Screen(as_json) as screen:
        if publish is None:
            _run(planned, beside, screen)
        else:
            screen.err.print(f"{keep(planned, Path(publish), flags)} runs of {chosen.id} kept in {publish}", markup=False)
            draw_kept(Path(publish))
        tell(chosen, outcomes(planned), folder, screen, as_json)


def _run(planned: Plan, workers: int, screen: Screen) -> None:
    """Run what is not finished."""
    study, done = planned.study, sum(finished(job.folder) is not None for job in planned.jobs)
    screen.err.print(f"{study.id}: {study.title}. {study.shows}", soft_wrap=True, markup=False)
    if planned.jobs:
        screen.plan(planned.jobs, f"{len(planned.jobs)} runs for {len(planned.cells)} cells, {done} of them finished already")
    play(planned, workers=workers, watch=screen.cell, analysed=analyse)
    screen.stop()


def tell(study: Study, found: list[Outcome], folder: Path, screen: Screen, as_json: bool) -> None:
    """Write what came out, and print it."""
    page = draw(study, found, folder)
    about: dict[str, Any] = {"id": study.id, "title": study.title, "shows": study.shows, "notes": list(study.notes)}
    about |= {"out": str(folder), "figures": str(page) if page else None, "cells": [each.record() for each in found]}
    write_atomically(folder / "outcome.json", json.dumps(about, indent=1))
    write_atomically(folder / "table.md", markdown(found))
    if as_json:
        click.echo(json.dumps(about))
        return
    screen.out.print(table(found))
    for note in (*reasons(found), *(f"note: {each}" for each in study.notes)):
        screen.out.print(note, soft_wrap=True, markup=False)
    screen.out.print(f"out: {folder}" + (f"\nfigures: {page}" if page else ""), soft_wrap=True, markup=False)


def analyse(run: Path, name: str) -> None:
    """Make one analysis of a finished run."""
    from accord.analysis import analyze

    analyze(run, only=[name])


def show_list(names: list[str], data_dir: str, as_json: bool) -> None:
    """Print what there is to reproduce."""
    studies = [load(name) for name in names]
    paces = calibrate(shapes(studies))
    rows = [row(study, estimate(study, paces), data_dir) for study in studies]
    if as_json:
        click.echo(json.dumps(rows))
        return
    for each in rows:
        click.echo(f"{each['id']}  {each['title']}")
        cost = each["cost"] or "cost unknown until the data are at hand"
        click.echo(f"    {len(each['cells'])} cells; needs {', '.join(each['data']) or 'no data'}; {cost}")
        for reason in each["missing"]:
            click.echo(f"    missing here: {reason}")


def row(study: Study, found: Estimate | None, data_dir: str) -> dict[str, Any]:
    """What the list says of one study."""
    data = list(dict.fromkeys(cell.experiment.data for cell in study.trained))
    return {
        "id": study.id,
        "title": study.title,
        "kind": study.kind,
        "shows": study.shows,
        "cells": [cell.name for cell in study.cells],
        "seeds": study.seeds,
        "rounds": study.rounds,
        "data": data,
        "samples": found.samples if found else None,
        "flops": found.flops if found else None,
        "hours": found.hours if found else None,
        "cost": str(found) if found else "",
        "missing": list(lacking(study, data, data_dir)),
    }


def lacking(study: Study, data: list[str], data_dir: str) -> Iterator[str]:
    """The data sets that are not at hand, and what stands in for them."""
    for each in data:
        if absent(each, data_dir, fetch=False):
            instead = next(
                (cell.stand_in["data"] for cell in study.trained if cell.experiment.data == each and "data" in cell.stand_in), ""
            )
            yield each + (f"; {instead} stands in" if instead and not absent(instead, data_dir, fetch=False) else "")
