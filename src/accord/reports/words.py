"""The question that a comparison asks and the answer that it allows, in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from accord.check import listed
from accord.reports.record import Comparison
from accord.reports.statistics import Row
from accord.reports.tables import percent, points

# Settings that say where and how a run was made, not what it computes.
INDIFFERENT = ("name", "algorithm", "seed", "out", "engine", "workers", "address", "device", "data_dir", "state_memory")


def title(comparison: Comparison) -> str:
    """A heading: what is compared, on what data.

    >>> title(Comparison({"a": (), "b": ()}))
    'Comparison of 2 algorithms'
    """
    names = comparison.algorithms
    data = _setting(comparison, "data").partition("(")[0]
    head = names[0] if len(names) == 1 else f"Comparison of {len(names)} algorithms"
    return f"{head} on {data}" if data else head


def _setting(comparison: Comparison, key: str) -> str:
    """A setting that all runs share, as it was typed where that is known; empty where they differ or have none."""
    found = {str(run.experiment[key]) for run in comparison.all_runs if run.experiment.get(key)}
    typed = comparison.set_up.get(key)
    if len(found) != 1:
        return ""
    return str(typed) if typed and typed != "auto" else found.pop()


def question(comparison: Comparison, rows: Sequence[Row]) -> str:
    """What was asked.

    >>> question(Comparison({"a": ()}), [])
    'How accurate is a?'
    """
    data, split, clients = (_setting(comparison, key) for key in ("data", "split", "clients"))
    data = data.partition("(")[0]  # its arguments stand under Configuration
    model, rounds, each = (_setting(comparison, key) for key in ("model", "rounds", "per_round"))
    where = "".join((f" on {data}" if data else "", f" split by {split}" if split else "", f" over {clients} clients" if clients else ""))
    how = [f"the model {model.partition('(')[0]}"] if model else []
    how += [f"{rounds} rounds" + (f" of {each} clients" if each else "")] if rounds else []
    how += (
        [f"{'seeds' if len(comparison.seeds) > 1 else 'seed'} {listed(comparison.seeds).replace(' or ', ' and ')}"]
        if comparison.seeds
        else []
    )
    given = f", with {', '.join(how)}" if how else ""
    names = [row.algorithm for row in rows] or list(comparison.algorithms)
    if len(names) == 1:
        return f"How accurate is {names[0]}{where}{given}?"
    base = rows[0].baseline if rows else names[0]
    others = [name for name in names if name != base]
    does = "does" if len(others) == 1 else "do"
    return f"How {does} {listed(others).replace(' or ', ' and ')} compare with {base} in accuracy{where}{given}?"


def answer(rows: Sequence[Row]) -> list[str]:
    """What can be said, in the given order of the algorithms, and what cannot.

    >>> answer([])
    ['No run has finished, so there is nothing to say yet.']
    """
    if not any(row.seeds for row in rows):
        return ["No run has finished, so there is nothing to say yet."]
    base = next(row for row in rows if row.algorithm == row.baseline)
    said = [_level(base)]
    said += [_against(row) for row in rows if row is not base]
    if max(row.seeds for row in rows) < 2:
        said.append("There is one seed only: nothing can be said about whether another seed would give the same. Run at least three.")
    return said


def summary(rows: Sequence[Row]) -> list[str]:
    """The answer in one sentence, each group in the given order; nothing where there is nothing to compare.

    >>> summary([])
    []
    """
    words = {"better": "better than", "worse": "worse than", "not distinguishable": "not distinguishable from"}
    groups = {word: [row.algorithm for row in rows if row.verdict == verdict] for verdict, word in words.items()}
    found = [f"{word} {rows[0].baseline}: {', '.join(names)}" for word, names in groups.items() if names]
    return [f"{text[0].upper()}{text[1:]}." for text in ["; ".join(found)] if text]


def _level(row: Row) -> str:
    if not row.seeds:
        return f"{row.algorithm}: no run has finished."
    if row.sd is None:
        return f"{row.algorithm} ends at an accuracy of {percent(row.mean)} % in its one finished run."
    return f"{row.algorithm} ends at an accuracy of {percent(row.mean)} % (standard deviation {percent(row.sd)} over {row.seeds} seeds)."


def _against(row: Row) -> str:
    if row.difference is None:
        return f"{row.algorithm}: no seed has finished both for it and for {row.baseline}, so there is no difference to give."
    if row.low is None or row.high is None:
        return f"{row.algorithm}: {points(row.difference)} points with one common seed, which distinguishes nothing."
    ends = f"{points(row.difference)} points, 95 % interval {points(row.low)} to {points(row.high)}, {row.pairs} pairs of runs"
    if row.verdict in ("better", "worse"):
        exact = " Every seed gave the same difference, so the interval has no width." if row.low == row.high else ""
        return f"{row.algorithm} is {row.verdict} than {row.baseline}: {ends}.{exact}"
    return f"{row.algorithm} is not distinguishable from {row.baseline}: {ends}; the interval includes zero."


def stops(comparison: Comparison) -> list[str]:
    """Which runs diverged, and when.

    >>> stops(Comparison({}))
    []
    """
    said = []
    for name in comparison.algorithms:
        when = [f"seed {run.seed} in round {run.result['rounds'] + 1}" for run in comparison.runs[name] if run.stopped]
        if when:
            said.append(f"{name} diverged ({', '.join(when)}) and counts with the model it had before.")
    return said


def cautions(comparison: Comparison, rows: Sequence[Row]) -> list[str]:
    """What a reader should know before she believes the answer.

    >>> cautions(Comparison({}), [])
    []
    """
    said = [f"The runs are not alike: {text}." for text in mismatches(comparison)]
    unfinished = [f"{row.algorithm} ({row.unfinished})" for row in rows if row.unfinished]
    if unfinished:
        said.append(f"Runs without a result are left out of every number: {', '.join(unfinished)}.")
    said += stops(comparison)
    for name in comparison.algorithms:
        lost = sum(len(entry.get("rejected") or ()) for run in comparison.runs[name] for entry in run.rounds)
        if lost:
            said.append(f"{name}: {lost} replies of clients were rejected, and the runs went on without them.")
    tested = sum(row.low is not None for row in rows)
    if tested > 1:
        said.append(f"Each interval covers its own difference 95 times in 100; it is not widened for there being {tested} of them.")
    if tested and all(row.pairs < 5 for row in rows):
        said.append("With so few seeds the intervals lean on the differences being normally distributed, which cannot be checked.")
    return said


def mismatches(comparison: Comparison) -> list[str]:
    """The settings in which runs differ that ought to differ by algorithm and seed only.

    >>> from accord.reports.record import Path, Run
    >>> run = lambda name, rounds: Run(Path(name), name, 0, {"rounds": rounds})
    >>> mismatches(Comparison({"a": (run("a", 5),), "b": (run("b", 9),)}))
    ['rounds is 5 (a) and 9 (b) at seed 0']
    """
    found: dict[str, str] = {}
    keys = dict.fromkeys(key for run in comparison.all_runs for key in run.experiment if key not in INDIFFERENT)
    for seed in comparison.seeds:
        runs = [run for run in comparison.all_runs if run.seed == seed]
        for key in keys:
            _differing(found, key, [(str(run.experiment.get(key, "absent")), run.name) for run in runs], f" at seed {seed}")
        _differing(found, "the split's fingerprint", [(run.fingerprint, run.name) for run in runs if run.fingerprint], f" at seed {seed}")
    for name, group in comparison.runs.items():
        recipes = [(str(run.experiment.get("algorithm", "absent")), f"seed {run.seed}") for run in group]
        _differing(found, f"the recipe of {name}", recipes, "")
    return list(found.values())


def _differing(found: dict[str, str], what: str, values: list[tuple[str, str]], where: str) -> None:
    users: dict[str, list[str]] = {}
    for value, user in values:
        users.setdefault(value, []).append(user)
    if len(users) > 1 and what not in found:
        shown = [f"{value} ({', '.join(names)})" for value, names in users.items()]
        found[what] = f"{what} is {listed(shown).replace(' or ', ' and ')}{where}"
