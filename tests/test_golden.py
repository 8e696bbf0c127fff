"""What the authors' own programs computed, reproduced through the library's public pieces.

A row names a case and the algorithm's text. Everything else is read from the case: starting weights, batches, constants of the optimiser,
tolerance, and the weights after every step. `down` and `kept` say which arrays are a part's state; `sent` names what it must have at
the end.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import accord
from accord.client import Client
from accord.flat import Flat, Layout
from accord.part import Part
from small import client_at


class TinyNet(nn.Module):
    """The model of most cases: 1106 parameters, 1068 without biases."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1, bias=bias)
        self.conv2 = nn.Conv2d(4, 8, 3, padding=1, bias=bias)
        self.linear_1 = nn.Linear(32, 16, bias=bias)
        self.classifier = nn.Linear(16, 10, bias=bias)

    def forward(self, x: Tensor) -> accord.Output:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        z = F.relu(self.linear_1(x.flatten(1)))
        return accord.Output(self.classifier(z), z)


@dataclass(frozen=True)
class Case:
    """One folder of the golden data."""

    folder: Path

    @cached_property
    def about(self) -> dict[str, Any]:
        return json.loads((self.folder / "case.json").read_text())  # type: ignore[no-any-return]

    @cached_property
    def arrays(self) -> dict[str, Tensor]:
        with np.load(self.folder / "tensors.npz") as stored:
            return {name: torch.from_numpy(stored[name]) for name in stored.files}

    @property
    def hyper(self) -> dict[str, Any]:
        return self.about["hyper"]  # type: ignore[no-any-return]

    def group(self, prefix: str) -> dict[str, Tensor]:
        """The arrays directly under a prefix such as `expected/2/`."""
        cut = {name.removeprefix(prefix): t for name, t in self.arrays.items() if name.startswith(prefix)}
        return {name: t for name, t in cut.items() if "/" not in name}

    def rule(self, **more: Any) -> accord.sgd:
        h = self.hyper
        return accord.sgd(lr=h["lr"], momentum=h["momentum"], decay=h.get("weight_decay", 0.0), nesterov=h["nesterov"], **more)

    def compare(self, layout: Layout, found: Tensor, prefix: str) -> None:
        """The flat vector against the arrays under a prefix, at the tolerance that the case states."""
        wanted, limits = self.group(prefix), self.about["tolerance"]
        assert set(wanted) >= {s.name for s in layout.slots}, f"{self.folder.name} has no {prefix}"
        for name, tensor in layout.named(found).items():
            torch.testing.assert_close(
                tensor, wanted[name], rtol=limits["rtol"], atol=limits["atol"], msg=lambda why, name=name: f"{prefix}{name}: {why}"
            )


def case(golden: Path, name: str) -> Case:
    assert (golden / name / "case.json").is_file(), f"the golden data have no case {name}"
    return Case(golden / name)


def tiny(case: Case) -> nn.Module:
    init = case.group("init/")
    module = TinyNet(bias="conv1.bias" in init).to(next(iter(init.values())).dtype)
    module.load_state_dict(init)
    return module


# --- one client's local update ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Local:
    """A row: a case of one client, the algorithm that reproduces it, and where its parts' states are stored."""

    case: str
    algorithm: str
    down: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # part's text -> state's name -> prefix of the arrays
    kept: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    keeps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # what `reply.kept` must hold at the end
    sends: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # what `reply.up` must hold at the end
    model: Callable[[Case], nn.Module] = tiny


_VARIATES: dict[str, Any] = {"down": {"control": {"c": "c/"}}, "kept": {"control": {"c": "c_i/"}}}
LOCAL = [
    Local("fedavg", "fedavg"),
    Local("fedavg_float32", "fedavg"),
    Local("fa_fedavg", "fedavg"),
    Local("fedprox_mu1", "fedprox(mu=1)"),
    Local(
        "scaffold",
        "scaffold",
        **_VARIATES,
        keeps={"control": {"c": "message/c_i_plus/"}},
        sends={"control": {"change": "message/delta_c/"}},
    ),
    Local("fedsam_r0.1", "fedsam(rho=0.1)"),
    Local("fedasam_r1", "fedavg + perturb(rho=1, adaptive=weight)"),
    Local("fedsol_adaptive_head", "fedsol"),
    Local("fedsol_adaptive_full_drift", "fedsol(on=all)"),
    Local("fedsol_fixed_head_drift", "fedsol(adaptive=False)"),
    Local("fedconst-alg1-wd-inside", "fedconst"),
    Local("fedconst-alg1-wd-inside-centred", "fedconst"),
    Local("fedconst-alg1-wd-inside-centred", "fedavg + constrain(order=joint)"),  # where the rows are centred both orders are one
    Local("fedconst-alg1-scaffold", "scaffold + constrain", **_VARIATES),
    Local("fedconst-alg1-fedsam", "fedsam(rho=0.1) + constrain"),
]


def states(layout: Layout, case: Case, named: Mapping[str, Mapping[str, str]]) -> dict[Any, dict[str, Tensor]]:
    return {accord.read(part): {name: layout.pack(case.group(prefix)) for name, prefix in of.items()} for part, of in named.items()}


def train(row: Local, case: Case, steps: int) -> accord.Reply:
    module, algorithm = row.model(case), accord.read(row.algorithm) + case.rule()
    layout, order = Flat(row.model(case)).layout, case.hyper["batch_order"][:steps]
    deal = [(case.arrays["x"][b], case.arrays["y"][b]) for b in order]
    down, kept = states(layout, case, row.down), states(layout, case, row.kept)
    w, w0 = layout.pack(case.group("init/")), layout.pack(case.group("global/") or case.group("init/"))
    if w.equal(w0):
        return accord.local_round(algorithm, module, deal, w0=w0, down=down, kept=kept)
    assert not kept
    client = client_at(algorithm, module, w0, w, down=down)
    client.train(accord.Batch(x, y) for x, y in deal)
    return client.reply()


@pytest.mark.parametrize("row", LOCAL, ids=lambda row: f"{row.case}={row.algorithm}")
def test_local_update(row: Local, golden: Path) -> None:
    known = case(golden, row.case)
    layout, last = Flat(row.model(known)).layout, len(known.hyper["batch_order"])
    stored = [s for s in range(1, last) if known.group(f"expected/{s}/")]
    for steps in stored:
        known.compare(layout, train(row, known, steps).w, f"expected/{steps}/")
    reply = train(row, known, last)
    known.compare(layout, reply.w, "expected/")
    for held, named in ((reply.kept, row.keeps), (reply.up, row.sends)):
        for part, of in named.items():
            for name, prefix in of.items():
                known.compare(layout, held[accord.read(part)][name], prefix)


@pytest.mark.parametrize(
    ("name", "text"), [("sam_fedsol_rho0.1", "fedsam(rho=0.1)"), ("asam_fedsol_rho1", "fedavg + perturb(rho=1, adaptive=weight)")]
)
def test_one_perturbed_step(name: str, text: str, golden: Path) -> None:
    known = case(golden, name)
    algorithm, module = accord.read(text) + known.rule(), tiny(known)
    reply = accord.local_round(algorithm, module, [(known.arrays["x"], known.arrays["y"])])
    known.compare(Flat(tiny(known)).layout, reply.w, "expected/")
    w = Flat(tiny(known)).w
    client = client_at(algorithm, tiny(known), w, w)
    client.pull(accord.task(), accord.Batch(known.arrays["x"], known.arrays["y"]), "all")
    known.compare(client.layout, client.g, "message/grad/")


# --- the constraint alone --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Given(Part):
    """A part whose gradient is a given vector."""

    g: Tensor

    def gradient(self, client: Client, batch: accord.Batch, inner: accord.Gradient) -> None:
        client.g.copy_(self.g)


@pytest.mark.parametrize(
    ("prefix", "text"),
    [("expected/", "constrain"), ("expected_center/", "constrain(orthogonal=False)"), ("expected_orth/", "constrain(center=False)")],
)
def test_projection(prefix: str, text: str, golden: Path) -> None:
    known = case(golden, "fedconst-fn-grad")
    module = TinyNet().double()
    module.load_state_dict(known.group("original/"))
    layout = Flat(TinyNet()).layout
    given = Given(layout.pack(known.group("grad/")))
    algorithm = accord.Algorithm((given, accord.read(text, "part"))) + accord.sgd(lr=1, momentum=0)
    reply = accord.local_round(algorithm, module, [(torch.zeros(1, 3, 8, 8).double(), torch.zeros(1).long())])
    known.compare(layout, layout.pack(known.group("original/")) - reply.w, prefix)


# --- the server's step -----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """A row: a case of one server step, and where the clients' weights and sample counts are."""

    case: str
    algorithm: str
    clients: str
    start: str
    samples: Callable[[Case], list[int]]


AGGREGATE = [
    Step("agg_weighted_mean", "fedavg", "local", "global/", lambda c: c.hyper["n_k"]),
    Step("agg_weighted_mean_buffers", "fedavg", "local", "local/0/", lambda c: c.hyper["n_k"]),
    Step("agg_fedalign_server", "fedavg", "local", "local/0/", lambda c: c.hyper["num_samples"]),
    Step("fedconst-agg-weighted", "fedconst", "client", "init/", lambda c: c.arrays["n"].tolist()),
]


def split(named: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """A state dictionary as weights and statistics, all of one type."""
    moving = {name: t.double() for name, t in named.items() if "running_" in name or "num_batches" in name}
    return {name: t for name, t in named.items() if name not in moving}, moving


@pytest.mark.parametrize("row", AGGREGATE, ids=lambda row: row.case)
def test_server_step(row: Step, golden: Path) -> None:
    known = case(golden, row.case)
    algorithm, counts = accord.read(row.algorithm), row.samples(known)
    w0, b0 = split(known.group(row.start))
    weights, statistics = Layout.of(w0), Layout.of(b0)
    replies = []
    for k, n in enumerate(counts):
        w, b = split(known.group(f"{row.clients}/{k}/"))
        replies.append(accord.Reply(weights.pack(w), samples=n, b=statistics.pack(b) if b else torch.empty(0)))
    w, state = accord.server_step(algorithm, weights.pack(w0), replies)
    known.compare(weights, w, "expected/")
    if not statistics.size:
        return
    wanted = {name: t.double() for name, t in known.group("expected/").items() if name in b0}
    averaged = statistics.named(state[algorithm.buffers]["b"])
    for name, tensor in averaged.items():
        if name.endswith("num_batches_tracked") and not known.arrays[f"expected/{name}"].is_floating_point():
            assert float(tensor) // 1 == float(wanted[name])  # the reference cuts the mean off; the library rounds it when it loads it
        else:
            torch.testing.assert_close(tensor, wanted[name], rtol=1e-10, atol=1e-12)


def test_uniform_mean_of_trained_clients(golden: Path) -> None:
    """FedOptz' harness without its correction: clients of unequal size, incomplete batches dropped, an unweighted mean."""
    known = case(golden, "fedoptz_fedavg")
    h, module = known.hyper, tiny(known)
    algorithm = accord.read("fedavg(uniform)") + accord.sgd(lr=h["lr"], momentum=h["momentum"])
    ends = np.cumsum([0, *h["n_k"]])
    replies = []
    for a, b in itertools.pairwise(ends):
        x, y = known.arrays["x"][a:b], known.arrays["y"][a:b]
        deal = [pair for pair in zip(x.split(h["batch_size"]), y.split(h["batch_size"]), strict=True) if len(pair[1]) == h["batch_size"]]
        replies.append(accord.local_round(algorithm, module, deal))
    flat = Flat(tiny(known))
    w, _ = accord.server_step(algorithm, flat.w, replies)
    known.compare(flat.layout, w, "expected/")


# --- whole runs ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A row: a case of several rounds, and the prefixes of the parts' states: the server's per round, the clients' at the end."""

    case: str
    algorithm: str
    server: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    clients: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


RUNS = [
    Run("run_fedavg", "fedavg"),
    Run("run_scaffold", "scaffold", {"control": {"c": "message/{round}/c/"}}, {"control": {"c": "message/{round}/c_i/{client}/"}}),
    Run("run_fedsol_head", "fedsol"),
]


def deals(known: Case) -> Iterator[tuple[int, list[tuple[int, list[tuple[Tensor, Tensor]]]]]]:
    """Round by round: the participants and their batches."""
    h = known.hyper
    for r, sampled in enumerate(h["sampled"]):
        order = {k: h["batches_of_client"][str(k)] * h["local_epochs"] for k in sampled}
        yield r, [(k, [(known.arrays["x"][b], known.arrays["y"][b]) for b in order[k]]) for k in sampled]


@pytest.mark.parametrize("row", RUNS, ids=lambda row: row.case)
def test_run(row: Run, golden: Path) -> None:
    known = case(golden, row.case)
    h, flat = known.hyper, Flat(tiny(known))
    algorithm = accord.read(row.algorithm) + known.rule(lr_decay=0.99)
    w, state, kept = flat.w.clone(), None, {}
    for r, participants in deals(known):
        assert algorithm.rule.lr * 0.99**r == pytest.approx(h["lr_per_round"][r], rel=1e-12)
        down = {part: values for part, values in (state or {}).items() if part in algorithm.parts}
        replies = []
        for k, deal in participants:
            reply = accord.local_round(algorithm, tiny(known), deal, w0=w, down=down, kept=kept.get(k), round=r)
            kept[k] = reply.kept
            replies.append(reply)
        w, state = accord.server_step(algorithm, w, replies, state=state, population=h["clients"])
        known.compare(flat.layout, w, f"expected/{r + 1}/")
        for part, of in row.server.items():
            for name, prefix in of.items():
                known.compare(flat.layout, state[accord.read(part)][name], prefix.format(round=r + 1))
    known.compare(flat.layout, w, "expected/")
    for k in range(h["clients"]):
        for part, of in row.clients.items():
            for name, prefix in of.items():
                held = kept[k][accord.read(part)][name] if k in kept else torch.zeros_like(w)
                known.compare(flat.layout, held, prefix.format(round=h["rounds"], client=k))


# --- what the cases say about each other -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedprox_mu1", "fedsol_adaptive_head"])
def test_the_first_step_is_fedavgs(name: str, golden: Path) -> None:
    row = next(row for row in LOCAL if row.case == name)
    found, wanted = train(row, case(golden, name), 1).w, train(LOCAL[0], case(golden, "fedavg"), 1).w
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-16)


def test_the_cases_can_tell_algorithms_apart(golden: Path) -> None:
    """The wrong algorithm fails every case of another: the tolerances are far below the effects."""
    for row in LOCAL:
        for other in ("fedavg", "fedprox(mu=1)", "fedsam(rho=0.1)", "fedsol"):
            known = case(golden, row.case)
            if row.case in ("fa_fedavg", "fedavg_float32", "fedavg") or row.algorithm.startswith(other.split("(")[0]):
                continue
            wrong = train(Local(row.case, other), known, len(known.hyper["batch_order"]))
            with pytest.raises(AssertionError):
                known.compare(Flat(tiny(known)).layout, wrong.w, "expected/")
