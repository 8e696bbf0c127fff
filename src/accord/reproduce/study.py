"""A table or a figure of a paper as data: its rows and columns, the experiment in each cell, and the paper's numbers."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, ClassVar, Literal

from accord.check import Count, check, nearest
from accord.experiment import Experiment, read_file
from accord.recipe import read
from accord.reproduce.figures import Figure
from accord.reproduce.measures import Measure

_OWN = ("fill", "measure", "over", "plus", "numbers", "spreads", "stand_in")  # what rows and columns say besides an experiment's settings
_ABSENT = "-"  # stands where the table has no cell


@dataclass(frozen=True)
class Cell:
    """One number of a table, or one line of a figure: an experiment, what is measured of it, and what the paper has."""

    row: str
    column: str
    experiment: Experiment
    measure: Measure
    number: float | None = None  # the paper's, in the measure's unit
    spread: float | None = None  # the paper's standard deviation
    stand_in: Mapping[str, Any] = dataclasses.field(default_factory=dict, hash=False)  # settings where the paper's data are absent
    over: str = ""  # the row by whose number in the same column this one is divided, the paper's as well as the measured

    @property
    def name(self) -> str:
        """What `--cells` matches and tables call it."""
        return f"{self.row} | {self.column}"

    @property
    def base(self) -> str:
        """The name of the cell by whose number this one is divided; empty if by none."""
        return f"{self.over} | {self.column}" if self.over else ""

    @property
    def unit(self) -> str:
        """What its number counts."""
        return f"x {self.over}" if self.over else self.measure.unit


@dataclass(frozen=True)
class Claim:
    """What the paper says of two of its cells, or of one and a number: that what `more` names is the larger one, by at least `by`."""

    says: str
    more: str | float
    less: str | float
    by: float = 0.0


@dataclass(frozen=True)
class Study:
    """One file of `experiments/<paper>/`: what it shows, and its cells in the order of the paper.

    `stand_in` are settings that take the place of those of the same name where the data set of the paper is absent; rows and
    columns may add to them. `fill` puts values into the algorithm: with `fill = { rho = 0.5 }` in a column, "fedsol(rho={rho})" in
    a row is "fedsol(rho=0.5)" there.

    >>> study = load("fedconst/table3")
    >>> study.cells[6].name, study.cells[6].number, study.cells[6].experiment.rounds
    ('Orthogonal and center | Accuracy', 59.66, 50)
    """

    kinds: ClassVar[tuple[str, ...]] = ("table", "figure")

    id: str
    title: str
    kind: Literal["table", "figure"]
    shows: str
    cells: tuple[Cell, ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    seeds: int = 1  # how many the paper ran
    rounds: int = 0  # the largest number of rounds of any cell
    notes: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    stand_in: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    figure: Figure | None = None

    @property
    def trained(self) -> tuple[Cell, ...]:
        """The cells that take a run; the others are computed."""
        return tuple(cell for cell in self.cells if cell.measure.trained)

    @property
    def paper(self) -> str:
        """The folder that the file lies in."""
        return self.id.partition("/")[0]


def places() -> dict[str, Path]:
    """The files of all studies by their names.

    >>> "fedconst/table3" in places()
    True
    """
    root = Path(str(resources.files("accord") / "experiments"))
    return {f"{file.parent.name}/{file.stem}": file for file in sorted(root.glob("*/*.toml"))}


def load(name: str) -> Study:
    """A study by its name, such as `fedconst/table1`, or by the path of a file in the same form."""
    known = places()
    if name in known:
        return expand(name, read_file(known[name]), f"the study {name!r}")
    path = Path(name)
    if path.suffix != ".toml":
        raise ValueError(f"there is no study {name!r}{nearest(name, known)}; `accord reproduce --list` shows those there are")
    return expand(path.stem, read_file(path), name)


def expand(name: str, said: Mapping[str, Any], where: str) -> Study:
    """The study that a file describes.

    >>> said = {"title": "T", "kind": "table", "shows": "that.", "set_up": {"rounds": 5}, "columns": {"b": {"lr": 0.1}},
    ...         "rows": {"a": {"algorithm": "fedavg", "numbers": [50.0]}}}
    >>> [(cell.name, cell.number, cell.experiment.lr) for cell in expand("x/y", said, "here").cells]
    [('a | b', 50.0, 0.1)]
    """
    top = {"title": str, "kind": Literal[Study.kinds], "shows": str, "seeds": Count, "notes": tuple[str, ...]}
    tables = ("set_up", "columns", "rows", "stand_in", "figure", "claims")
    for key in said:
        if key not in (*top, *tables):
            raise ValueError(f"unknown key {key!r} in {where}{nearest(key, (*top, *tables))}")
    for key in ("title", "kind", "shows", "rows", "columns"):
        if key not in said:
            raise ValueError(f"{where} has no {key}")
    found = {key: check(said[key], hint, f"{key} in {where}") for key, hint in top.items() if key in said}
    rows, columns = (_table(said[key], f"[{key}] in {where}") for key in ("rows", "columns"))
    base, stand_in = said.get("set_up", {}), said.get("stand_in", {})
    cells = tuple(
        cell
        for row in rows
        for k, column in enumerate(columns)
        if (cell := _cell(row, column, k, {**base, "stand_in": stand_in}, rows[row], columns[column], where)) is not None
    )
    return Study(
        id=name,
        cells=tuple(_divided(cell, cells, where) for cell in cells),
        rows=tuple(rows),
        columns=tuple(columns),
        rounds=max((cell.experiment.rounds for cell in cells if cell.measure.trained), default=0),
        stand_in=stand_in,
        claims=tuple(_claims(said.get("claims", []), {cell.name for cell in cells}, where)),
        figure=Figure.of(said["figure"], f"[figure] in {where}") if "figure" in said else None,
        **found,
    )


def _table(value: Any, where: str) -> dict[str, dict[str, Any]]:
    if not isinstance(value, Mapping) or not value or not all(isinstance(each, Mapping) for each in value.values()):
        raise ValueError(f"{where} is {value!r}; it must hold tables, such as name = {{ algorithm = 'fedavg' }}")
    return {str(name): dict(each) for name, each in value.items()}


def _claims(said: Any, cells: Collection[str], where: str) -> Iterator[Claim]:
    """The claims of a file, which are about cells that it has."""
    hints = typing.get_type_hints(Claim)
    for k, each in enumerate(said, 1):
        place = f"claim {k} in {where}"
        if not isinstance(each, Mapping) or not {"says", "more", "less"} <= set(each) <= set(hints):
            raise ValueError(f"{place} is {each!r}; write says, more and less, and by where a margin is claimed")
        for key in ("more", "less"):
            if each[key] not in cells and (isinstance(each[key], str) or (key == "less" and not isinstance(each["more"], str))):
                raise ValueError(f"{key} of {place} is {each[key]!r}, which is no cell{nearest(str(each[key]), cells)}")
        yield Claim(**{key: check(value, hints[key], f"{key} of {place}") for key, value in each.items()})


def _cell(
    row: str, column: str, at: int, base: Mapping[str, Any], across: Mapping[str, Any], down: Mapping[str, Any], where: str
) -> Cell | None:
    """The cell of a row and a column; None where the table has none."""
    place = f"cell '{row} | {column}' in {where}"
    number, spread = (_entry(across.get(key), at, place) for key in ("numbers", "spreads"))
    if number == _ABSENT:
        return None
    said = {**base, **across, **down}
    settings = {key: value for key, value in said.items() if key not in _OWN}
    added = [str(each["plus"]) for each in (base, across, down) if "plus" in each]
    text = " + ".join([str(settings.pop("algorithm", "fedavg")), *added])
    for key, value in {key: value for each in (base, across, down) for key, value in each.get("fill", {}).items()}.items():
        text = text.replace(f"{{{key}}}", str(value))
    measure = read(str(said.get("measure", "accuracy")), Measure.kind)
    experiment = Experiment(per_round=0, name=row).with_({**settings, "algorithm": text}, place)
    instead = {key: value for each in (base, across, down) for key, value in each.get("stand_in", {}).items()}
    experiment.with_({key: value for key, value in instead.items() if key != "note"}, f"stand_in of {place}")
    over = check(said.get("over", ""), str, f"over of {place}")
    return Cell(row, column, experiment, measure, _number(number, place), _number(spread, place), instead, over)


def _divided(cell: Cell, cells: Collection[Cell], where: str) -> Cell:
    """The cell with the paper's number in units of that of the row it is set over."""
    if not cell.over:
        return cell
    base = next((each for each in cells if each.name == cell.base), None)
    if base is None:
        raise ValueError(f"over of cell {cell.name!r} in {where} is {cell.over!r}, which has no cell in this column")
    said = {key: value for key in ("number", "spread") if (value := getattr(cell, key)) is not None}
    return dataclasses.replace(cell, **{key: value / base.number for key, value in said.items()}) if base.number else cell


def _entry(values: Any, at: int, place: str) -> Any:
    if values is None:
        return None
    if not isinstance(values, list) or at >= len(values):
        raise ValueError(f"{place}: its row has no number for this column; write nan where the paper has none, '-' where there is no cell")
    return values[at]


def _number(value: Any, place: str) -> float | None:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{place}: the paper's number or spread is {value!r}; it must be a number, nan or '-'")
    return float(value)
