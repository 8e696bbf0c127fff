"""Every registered part and every registered algorithm is put through the same demands; a new one is picked up by being registered."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

import pytest
import torch
from torch import Tensor

import accord
from accord.algorithm import Algorithm
from accord.client import first_down
from accord.flat import Flat
from accord.jobs import Train, Worker
from accord.part import Part
from accord.recipe import Entry, entries, read
from accord.server import Server, first_state, rounds
from small import batches, copies, federation, identical, net, train

PARTS = [e for e in entries("part") if e.make.__module__.startswith("accord.parts.")]
ALGORITHMS = [e for e in entries("algorithm") if e.make.__module__ == "accord.algorithms"]
NAMES = [e.name for e in PARTS]

# The text of a part whose name alone is not enough, with the setting that the tests use.
EXAMPLES: dict[str, str] = {"gradaug": "gradaug(width=0.25)"}

# The text with which a part must do nothing at all; None for parts that have no strength to turn down.
NOTHING: dict[str, str | None] = {
    "adapt": None,
    "align": "align(mu=0)",
    "beside": "beside(beta=0)",
    "constrain": "constrain(center=False, orthogonal=False)",
    "contrast": "contrast(mu=0)",
    "control": None,
    "corrective": "corrective(alpha=0)",
    "debias": "debias(mu=0, beta=0)",
    "distil": "distil(beta=0)",
    "dynamic": "dynamic(alpha=0)",
    "gradaug": "gradaug(mu=0)",
    "inertia": "inertia(beta=0)",
    "mixup": "mixup(gamma=0)",
    "normalise": None,
    "not_true": "not_true(beta=0)",
    "perturb": "perturb(rho=0)",
    "proximal": "proximal(mu=0)",
    "represent": "represent(l2r=0, cmi=0)",
    "task": None,
}

# Parts that are the innermost of an onion by themselves: they take the place of the task, not a place around it.
INNERMOST = {"task"}

RULE = accord.sgd(lr=0.05, momentum=0.9, decay=0.01, batch=5, epochs=1)


# Parts that choose whose data is trained on, and change nothing in a client's round.
ABOUT_DATA = {"gather"}


def text_of(name: str) -> str:
    return EXAMPLES.get(name, name)


def part_of(name: str) -> Part:
    found = read(text_of(name), "part")
    assert isinstance(found, Part)
    return found


def onion(*names: str, rule: accord.sgd = RULE) -> Algorithm:
    """FedAvg with these parts around it, in this order."""
    algorithm = accord.fedavg() + rule
    for name in names:
        part = part_of(name)
        algorithm = algorithm if part in algorithm.parts else algorithm + part
    return algorithm


def a_round(algorithm: Algorithm, *, norm: bool = False, seed: int = 3) -> tuple[accord.Reply, Tensor, dict[Any, Any]]:
    """Two clients' local rounds and a server step, twice, so that states are no longer those of a first round."""
    module = net(norm=norm)
    w, state, kept = Flat(net(norm=norm)).w.clone(), None, {}
    for r in range(2):
        down = {} if state is None else {p: {n: state[p][n] for n in p.sends} for p in algorithm.all_parts if p.sends}
        replies = []
        for k in range(2):
            reply = accord.local_round(
                algorithm, module, batches(4, seed=10 + k), w0=w, down=down, kept=kept.get(k), seed=seed + k, round=r
            )
            kept[k] = reply.kept
            replies.append(reply)
        w, state = accord.server_step(algorithm, w, replies, state=state, population=4)
    return replies[0], w, state


def tensors_in(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)


def assert_finite(reply: accord.Reply, w: Tensor, state: object) -> None:
    assert reply.steps > 0
    assert torch.isfinite(w).all()
    for held in (reply.w, reply.b, *tensors_in(dict(reply.kept)), *tensors_in(dict(reply.up)), *tensors_in(state)):
        assert torch.isfinite(held).all()


# --- parts as values -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_is_a_frozen_value(name: str) -> None:
    part, again = part_of(name), part_of(name)
    assert part == again
    assert part is not again
    assert hash(part) == hash(again)
    assert {part: 1}[again] == 1
    assert type(part).__dataclass_params__.frozen  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError):
        part.anything = 1  # type: ignore[attr-defined]
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, field.name, 0)


@pytest.mark.parametrize("name", NAMES)
def test_travels_as_text_and_as_pickle(name: str) -> None:
    part = part_of(name)
    assert read(repr(part), "part") == part
    assert repr(read(repr(part), "part")) == repr(part)
    assert pickle.loads(pickle.dumps(part)) == part
    assert hash(pickle.loads(pickle.dumps(part))) == hash(part)


@pytest.mark.parametrize("entry", PARTS, ids=lambda e: e.name)
def test_says_what_it_is(entry: Entry) -> None:
    doc = inspect.getdoc(entry.make)
    assert doc, f"{entry.name} has no docstring"
    assert doc is not inspect.getdoc(Part), f"{entry.name} has no docstring of its own"
    first = doc.split("\n")[0]
    word = re.match(r"[A-Za-z]*", first)
    assert word is not None
    assert len(first.split()) >= 4, f"{entry.name}: {first!r} is no sentence"
    assert first.endswith("."), f"{entry.name}: {first!r} does not end like a sentence"
    assert len(word[0]) < 2 or first[0].isupper(), f"{entry.name}: {first!r} begins neither with a capital nor with a formula"
    assert entry.summary == first
    assert inspect.getmodule(entry.make).__doc__, f"{entry.make.__module__} does not open with a sentence"  # type: ignore[union-attr]


@pytest.mark.parametrize("entry", PARTS, ids=lambda e: e.name)
def test_has_typed_arguments_with_limits(entry: Entry) -> None:
    """A number without a range would accept nan or a negative strength."""
    for name, hint in entry.hints.items():
        assert hint is not Any, f"{entry.name}({name}=...) has no type"
        assert hint not in (int, float), f"{entry.name}({name}=...) has no range: use NonNegative, Positive, Fraction, Count or Whole"


# --- what a part must not do -----------------------------------------------------------------------------------------------------------


def limits_zero(hint: Any) -> bool:
    """Whether an annotation is a number from zero on, as a strength is."""
    if get_origin(hint) is not Annotated:
        return False
    base, limits = get_args(hint)[:2]
    return base is float and limits.low == 0 and not limits.above


@pytest.mark.parametrize("entry", PARTS, ids=lambda e: e.name)
def test_no_strength_is_fedavg_bit_for_bit(entry: Entry) -> None:
    strengths = [name for name, hint in entry.hints.items() if limits_zero(hint)]
    if strengths:
        assert entry.name in NOTHING, f"{entry.name} has the strength {strengths[0]}: say in NOTHING with what text it does nothing"
    text = NOTHING.get(entry.name)
    if text is None:
        return
    for norm in (False, True):
        reply, w, state = a_round(accord.fedavg() + RULE + read(text, "part"), norm=norm)
        wanted, w_wanted, state_wanted = a_round(accord.fedavg() + RULE, norm=norm)
        assert reply.w.equal(wanted.w)
        assert reply.b.equal(wanted.b)
        assert w.equal(w_wanted)
        assert state.get(accord.fedavg().buffers) is None or identical(state[accord.buffers()], state_wanted[accord.buffers()])


@pytest.mark.parametrize("name", sorted(set(NAMES) - INNERMOST - ABOUT_DATA))
def test_strength_changes_something(name: str) -> None:
    """The counterpart: with its example settings a part is not FedAvg."""
    if part_of(name).has("trains_on"):  # it changes who trains on what, which shows in a federation only
        assert not train(onion(name), net(), federation(), 1).w.equal(train(onion(), net(), federation(), 1).w)
        return
    reply, w, _ = a_round(onion(name))
    plain, w_plain, _ = a_round(onion())
    if name == "distil":  # at w = w0 its gradient is round-off; it shows from the second step on
        assert (reply.w - plain.w).abs().max() > 1e-6
    assert not w.equal(w_plain) or not reply.w.equal(plain.w)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("name", NAMES)
def test_is_deterministic(name: str, norm: bool) -> None:
    first, second = a_round(onion(name), norm=norm), a_round(onion(name), norm=norm)
    for a, b in zip(first[:1], second[:1], strict=True):
        assert identical([a.w, a.b, a.kept, a.up], [b.w, b.b, b.kept, b.up])
    assert first[1].equal(second[1])
    assert identical(first[2], second[2])
    assert_finite(*first)


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "batchnorm"])
@pytest.mark.parametrize("name", NAMES)
def test_mutates_nothing_it_was_given(name: str, norm: bool) -> None:
    algorithm, module = onion(name), net(norm=norm)
    before_module = copies(dict(module.state_dict()))
    earlier, w, state = a_round(algorithm, norm=norm)
    down = {p: {n: state[p][n] for n in p.sends} for p in algorithm.all_parts if p.sends}
    given = [w, down, earlier.kept, batches(2, seed=20), state]
    before = copies(given)
    reply = accord.local_round(algorithm, module, given[3], w0=w, down=down, kept=earlier.kept)
    assert identical(given, before)
    assert identical(dict(module.state_dict()), before_module)
    sent = [reply.w, reply.b, reply.kept, reply.up]
    before_sent = copies(sent)
    accord.server_step(algorithm, w, [reply], state=state, population=3)
    assert identical(given, before)
    assert identical(sent, before_sent)


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_survives_the_next_client_of_the_same_worker(name: str) -> None:
    """What a client keeps and sends must not be a view of the worker's own vectors."""
    algorithm, data = onion(name), federation()
    worker, w = Worker(net(norm=True), data), Flat(net(norm=True)).w.clone()
    job = Train(algorithm, w, worker.model.read_statistics(), 0, 0, first_down(algorithm, w))
    first = job.run(worker, 0, {})
    kept = copies([first.w, first.b, first.kept, first.up])
    for client in (1, 2):
        job.run(worker, client, {})
    dataclasses.replace(job, round=1).run(worker, 0, first.kept)
    assert identical([first.w, first.b, first.kept, first.up], kept)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_starts_clean_whoever_was_there_before(name: str) -> None:
    algorithm, data = onion(name), federation()
    w = Flat(net(norm=True)).w.clone()
    answers = []
    for order in ((3, 0), (0, 3)):
        worker = Worker(net(norm=True), data)
        job = Train(algorithm, w, worker.model.read_statistics(), 0, 0, first_down(algorithm, w))
        answers.append({k: job.run(worker, k, {}) for k in order})
    for k in (0, 3):
        a, b = answers[0][k], answers[1][k]
        assert identical([a.w, a.b, a.kept, a.up], [b.w, b.b, b.kept, b.up])


@pytest.mark.parametrize("stop", [0, 1, 2])
@pytest.mark.parametrize("name", sorted(set(NAMES) - ABOUT_DATA))
def test_a_round_may_be_cut_between_any_two_steps(name: str, stop: int) -> None:
    """Another worker, in another process, goes on where the first one stopped."""
    algorithm, data = onion(name), federation((12, 7, 9))
    w = Flat(net(norm=True)).w.clone()
    first, second = Worker(net(norm=True, dropout=0.5), data), Worker(net(norm=True, dropout=0.5), data)
    job = Train(algorithm, w, first.model.read_statistics(), 0, 0, first_down(algorithm, w))
    whole = job.run(first, 0, {})
    assert whole.steps > 2
    paused = pickle.loads(pickle.dumps(job.run_until(first, 0, {}, stop=stop)))
    job.run(second, 1, {})
    end = job.run_until(second, 0, {}, paused)
    for field in ("w", "b", "kept", "up", "steps", "loss"):
        assert identical(getattr(end, field), getattr(whole, field)), field


@pytest.mark.parametrize("name", NAMES)
def test_states_have_the_shape_that_they_start_with(name: str) -> None:
    algorithm = onion(name)
    w = Flat(net()).w.clone()
    reply, _, state = a_round(algorithm)
    for part in algorithm.all_parts:
        assert set(part.sends) <= set(part.server_state(w))
        start = {n: (t.shape, t.dtype) for n, t in part.server_state(w).items()}
        assert {n: (t.shape, t.dtype) for n, t in state.get(part, {}).items()} == start
        assert set(reply.up) <= set(algorithm.all_parts)
    assert set(first_state(algorithm, w)) <= set(algorithm.all_parts)


# --- composition -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second", sorted(set(NAMES) - INNERMOST))
@pytest.mark.parametrize("first", sorted(set(NAMES) - INNERMOST))
def test_composes_with_every_other_part_in_this_order(first: str, second: str) -> None:
    if first == second:
        with pytest.raises(ValueError, match="twice"):
            onion(first) + part_of(first)
        return
    algorithm = onion(first, second)
    assert read(repr(algorithm)) == algorithm
    assert_finite(*a_round(algorithm))


@pytest.mark.parametrize("name", sorted(set(NAMES) - INNERMOST - {"perturb"}))
def test_composes_inside_a_perturbation(name: str) -> None:
    algorithm = accord.fedavg() + accord.perturb(by=part_of(name), rho=0.5, adaptive="drift") + RULE
    assert read(repr(algorithm)) == algorithm
    assert_finite(*a_round(algorithm))


@pytest.mark.parametrize("name", sorted(set(NAMES) - INNERMOST))
def test_trains_under_every_statistics_policy_and_for_the_head_only(name: str) -> None:
    for policy in ("average", "local", "freeze"):
        assert_finite(*a_round(onion(name) + accord.buffers(policy), norm=True))
    rule = dataclasses.replace(RULE, on="head")
    reply, _, _ = a_round(onion(name, rule=rule))
    assert reply.steps


def test_all_parts_at_once() -> None:
    names = sorted(set(NAMES) - INNERMOST)
    for order in (names, names[::-1]):
        assert_finite(*a_round(onion(*order)))


# --- algorithms ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", ALGORITHMS, ids=lambda e: e.name)
def test_algorithm_is_read_by_its_bare_name(entry: Entry) -> None:
    algorithm = read(entry.name)
    assert isinstance(algorithm, Algorithm)
    assert algorithm == entry.make()
    assert read(repr(algorithm)) == algorithm
    assert repr(read(repr(algorithm))) == repr(algorithm)
    assert hash(algorithm) == hash(read(entry.name))
    assert pickle.loads(pickle.dumps(algorithm)) == algorithm
    assert entry.summary.endswith("."), f"{entry.name}: {entry.summary!r} is not a sentence"
    cited = "et al., 20" in entry.summary or "FedSOL's Appendix H" in entry.summary
    assert cited or entry.name in ("centralised", "local_only"), f"{entry.name}: {entry.summary!r} names no paper"
    for part in algorithm.all_parts:
        assert part.name in NAMES


@pytest.mark.parametrize("entry", ALGORITHMS, ids=lambda e: e.name)
def test_algorithm_trains(entry: Entry) -> None:
    algorithm, data = read(entry.name) + accord.uniform(4) + RULE, federation()
    server = train(algorithm, net(dtype=torch.float32, norm=True), federation(dtype=torch.float32), 2)
    assert torch.isfinite(server.w).all()
    assert server.w.dtype == torch.float32
    module, server = net(), Server.start(algorithm, net())
    before = server.w
    losses = [loss(cohort.server.model(module), data) for cohort in rounds(algorithm, module, data, rounds=12, server=server)]
    if not server.w.equal(before):  # some algorithms leave the global weights alone and train a model for each client
        assert min(losses) < loss(module, data), f"{entry.name} never lowered the loss in 12 rounds"


def loss(module: torch.nn.Module, data: accord.Federation) -> float:
    batch = data.train.gather(torch.arange(len(data.train)))
    with torch.no_grad():
        return float(torch.nn.functional.cross_entropy(module(batch.x).logits, batch.y))


@pytest.mark.parametrize("entry", ALGORITHMS, ids=lambda e: e.name)
def test_algorithm_works_under_the_constraint(entry: Entry) -> None:
    algorithm = read(f"{entry.name} + constrain(order=joint)") if entry.name != "fedconst" else read(entry.name)
    assert torch.isfinite(train(algorithm + RULE, net(), federation(), 2).w).all()
