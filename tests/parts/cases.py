"""How the tests of parts run a golden case: one client, one server step or a whole run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

import accord
from accord.flat import Flat, Layout
from test_golden import Case, Local, case, deals, tiny, train

States = Mapping[str, Mapping[str, str]]  # a part's text -> a state's name -> the prefix of its arrays, or `-prefix` for minus them


def local(golden: Path, name: str, algorithm: str, **row: object) -> accord.Reply:
    """One client's update: compares the weights after every stored step and at the end, and returns the last reply."""
    known, spec = case(golden, name), Local(name, algorithm, **row)  # type: ignore[arg-type]
    layout, last = Flat(spec.model(known)).layout, len(known.hyper["batch_order"])
    for steps in [s for s in range(1, last) if known.group(f"expected/{s}/")]:
        known.compare(layout, train(spec, known, steps).w, f"expected/{steps}/")
    reply = train(spec, known, last)
    known.compare(layout, reply.w, "expected/")
    return reply


def compare(known: Case, layout: Layout, found: Tensor, prefix: str) -> None:
    """A vector against the arrays of a prefix; without arrays there, the case does not say."""
    assert known.group(prefix), f"{known.folder.name} has no {prefix}"
    known.compare(layout, found, prefix)


def stepped(golden: Path, name: str, algorithm: str, states: States) -> None:
    """Several server steps on given uploads, from the weights and states that the last one left."""
    known = case(golden, name)
    layout, chosen = Layout.of(known.group("global/")), accord.read(algorithm)
    w, state = layout.pack(known.group("global/")), None
    for r in range(1, known.hyper["rounds"] + 1):
        replies = [accord.Reply(layout.pack(known.group(f"local/{r}/{k}/")), samples=n) for k, n in enumerate(known.hyper["n_k"])]
        w, state = accord.server_step(chosen, w, replies, state=state)
        compare(known, layout, w, f"expected/{r}/")
        for part, of in states.items():
            for held, prefix in of.items():
                sign = -1 if prefix.startswith("-") else 1
                compare(known, layout, sign * state[accord.read(part)][held], prefix.lstrip("-").format(round=r))
    compare(known, layout, w, "expected/")


def run(golden: Path, name: str, algorithm: str, server: States, clients: States) -> None:
    """Several rounds with a changing cohort: weights and server states after each, clients' states at the end."""
    known = case(golden, name)
    h, flat, chosen = known.hyper, Flat(tiny(known)), accord.read(algorithm) + known.rule(lr_decay=0.99)
    w, state, kept = flat.w.clone(), None, {}
    for r, participants in deals(known):
        down = {p: {n: state[p][n] for n in p.sends} for p in chosen.all_parts if p.sends} if state else None
        replies = []
        for k, deal in participants:
            replies.append(accord.local_round(chosen, tiny(known), deal, w0=w, down=down, kept=kept.get(k), round=r))
            kept[k] = replies[-1].kept
        w, state = accord.server_step(chosen, w, replies, state=state, population=h["clients"])
        compare(known, flat.layout, w, f"expected/{r + 1}/")
        for part, of in server.items():
            for held, prefix in of.items():
                compare(known, flat.layout, state[accord.read(part)][held], prefix.format(round=r + 1))
    for k, states in kept.items():
        for part, of in clients.items():
            for held, prefix in of.items():
                compare(known, flat.layout, states[accord.read(part)][held], prefix.format(round=h["rounds"], client=k))


def vector(known: Case, prefix: str) -> Tensor:
    """The arrays of a prefix as one vector."""
    return Layout.of(known.group("init/")).pack(known.group(prefix))


def close(found: Tensor, wanted: Tensor, limit: float = 1e-9) -> None:
    """Two vectors are equal to a limit relative to their size."""
    torch.testing.assert_close(found, wanted, rtol=limit, atol=limit)
