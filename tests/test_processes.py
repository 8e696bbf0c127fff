"""Worker processes: what travels, who does what, and what happens when something goes wrong in one of them."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import accord
from accord.engines import processes
from accord.engines.arena import Arena
from accord.engines.auto import Auto
from accord.engines.crew import Lost, dismiss, hire, portable, ready, receive, send
from accord.engines.plan import Task, plan
from accord.engines.process import Process
from accord.engines.processes import Processes
from accord.flat import digest
from accord.jobs import Evaluate, Job, Score, Train
from accord.pieces import Pieces, use
from accord.server import Server, rounds
from accord.store import Store
from small import Net, federation, identical, net

TEXT = "scaffold + constrain + sgd(lr=0.05, batch=2, epochs=2)"


def module(dropout: float = 0.0) -> Net:
    return net(dtype=torch.float32, norm=True, dropout=dropout)


def data() -> accord.Federation:
    return federation(dtype=torch.float32)


@pytest.fixture(scope="module")
def two() -> Iterator[Processes]:
    """Two workers that serve most of these tests, as they do a whole comparison."""
    with Processes(module(), data(), workers=2) as engine:
        yield engine


def outcome(engine: Any, text: str = TEXT, count: int = 2) -> str:
    algorithm = accord.read(text)
    server, store = Server.start(algorithm, module()), Store(algorithm.keys)
    for _ in rounds(algorithm, module(), data(), rounds=count, engine=engine, server=server, store=store):
        pass
    return digest(
        {
            "w": server.w,
            "b": server.b,
            **{f"{k}{i}{n}": t for k in range(7) for i, s in enumerate(store.get(k).values()) for n, t in s.items()},
        }
    )


@pytest.fixture(scope="module")
def wanted() -> str:
    with Process(module(), data()) as engine:
        return outcome(engine)


def start(text: str = TEXT) -> Train:
    algorithm = accord.read(text)
    server = Server.start(algorithm, module())
    return Train(algorithm, server.w, server.b, 0, 0, server.down)


# --- what travels ----------------------------------------------------------------------------------------------------------------------

TYPES = st.sampled_from(
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
SHAPES = st.lists(st.integers(0, 5), max_size=3)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    whole = torch.randint(0, 2, draw(SHAPES), generator=torch.Generator().manual_seed(draw(st.integers(0, 99)))).to(draw(TYPES))
    kind = draw(st.sampled_from(["plain", "turned", "part", "expanded"]))
    if kind == "turned":
        return whole.permute(tuple(reversed(range(whole.ndim))))
    if kind == "part" and whole.ndim:
        return whole[1:]
    return whole.expand(3, *whole.shape) if kind == "expanded" else whole


THINGS = st.recursive(
    st.one_of(tensors(), st.integers(), st.text(max_size=5), st.none(), st.booleans(), st.binary(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.integers(), inner, max_size=4)),
    max_leaves=8,
)


@given(st.lists(THINGS, min_size=1, max_size=4))
def test_whatever_is_packed_comes_out_the_same(things: list[Any]) -> None:
    """One after another through the same block, on both sides of it."""
    here, there = Arena(), Arena()
    for thing in things:
        packed = here.pack(thing)
        there.give(here.take())
        borrowed = there.unpack(packed, copy=False)
        assert identical(borrowed, thing)
        assert identical(there.unpack(packed), thing)
        assert here.take() is None


def test_copies_last_and_views_do_not() -> None:
    arena = Arena()
    packed = arena.pack({"w": torch.ones(4)})
    kept, borrowed = arena.unpack(packed), arena.unpack(packed, copy=False)
    arena.pack({"w": torch.zeros(4)})
    assert kept["w"].tolist() == [1, 1, 1, 1]
    assert borrowed["w"].tolist() == [0, 0, 0, 0]


def test_a_block_grows_and_is_not_made_anew_for_less() -> None:
    arena = Arena()
    arena.pack(torch.ones(100))
    first = arena.take()
    assert first is not None
    assert first.is_shared()
    arena.pack(torch.ones(10))
    assert arena.take() is None
    arena.pack(torch.ones(1000))
    assert arena.take() is not None


def test_parameters_and_gradients_travel_as_they_are() -> None:
    arena = Arena()
    weight = torch.nn.Parameter(torch.ones(3))
    assert identical(arena.unpack(arena.pack([weight]))[0].detach(), torch.ones(3))
    assert not arena.unpack(arena.pack([torch.ones(3, requires_grad=True)]))[0].requires_grad


# --- who does what ---------------------------------------------------------------------------------------------------------------------

COSTS = st.dictionaries(st.integers(0, 50), st.integers(0, 40), max_size=12)


def times(costs: Mapping[int, int], queues: list[deque[Task]]) -> dict[int, list[tuple[int, int, int, Task]]]:
    """(start, end, worker, task) of every piece, if each worker does its tasks in order."""
    found: dict[int, list[tuple[int, int, int, Task]]] = {}
    stops = {t.client: t.stop for queue in queues for t in queue if t.stop is not None}
    for worker, queue in enumerate(queues):
        now = 0
        for task in queue:
            length = task.stop if task.stop is not None else costs[task.client] - (stops[task.client] if task.resumed else 0)
            found.setdefault(task.client, []).append((now, now + length, worker, task))
            now += length
    return found


@given(COSTS, st.integers(1, 6), st.sampled_from([None, 0, 1, 5.5, 1e9]))
def test_every_client_is_done_once_or_in_two_pieces_that_do_not_overlap(costs: dict[int, int], workers: int, worth: float | None) -> None:
    queues = plan(costs, workers, worth)
    assert len(queues) == workers
    placed = times(costs, queues)
    assert set(placed) == set(costs)
    for client, pieces in placed.items():
        if len(pieces) == 1:
            assert pieces[0][3] == Task(client)
            continue
        (first,) = [p for p in pieces if p[3].stop is not None]
        (second,) = [p for p in pieces if p[3].resumed]
        assert len(pieces) == 2
        assert 0 < first[1] - first[0] < costs[client]
        assert (first[1] - first[0]) + (second[1] - second[0]) == costs[client]
        assert first[1] <= second[0]
        assert first[2] != second[2]


@given(COSTS, st.integers(1, 6), st.sampled_from([None, 0, 1, 5.5]))
def test_no_worker_is_busy_for_much_longer_than_its_share(costs: dict[int, int], workers: int, worth: float | None) -> None:
    """Longest first: at most 4/3 of the best (Graham, 1969). With cuts: the best there is, an even share or the longest client."""
    queues = plan(costs, workers, worth)
    ends = [end for pieces in times(costs, queues).values() for _, end, _, _ in pieces]
    best = max(-(-sum(costs.values()) // workers), max(costs.values(), default=0))
    longest = max(ends, default=0)
    if worth is not None:
        assert longest <= best + worth
    assert longest <= best + max(costs.values(), default=0)
    assert sum(1 for queue in queues for task in queue if task.resumed) < workers


@given(COSTS, st.integers(1, 6))
def test_without_cuts_no_client_is_in_pieces(costs: dict[int, int], workers: int) -> None:
    assert all(t == Task(t.client) for queue in plan(costs, workers) for t in queue)


# --- the engine ------------------------------------------------------------------------------------------------------------------------


def test_clients_cut_in_two_give_the_same_bits(two: Processes, wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Task] = []

    def watched(costs: Mapping[int, int], workers: int, worth: float | None = None) -> list[deque[Task]]:
        queues = plan(costs, workers, worth)
        made.extend(task for queue in queues for task in queue if task.resumed)
        return queues

    monkeypatch.setattr(processes, "plan", watched)
    monkeypatch.setattr(processes, "_WORTH", 1e-12)
    assert outcome(two) == wanted
    assert outcome(two) == wanted
    assert made


@pytest.mark.parametrize("moment", [0, 1])
def test_a_worker_that_dies_with_half_a_client(two: Processes, wanted: str, moment: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds the first or the second piece is killed; the client starts again from the beginning of its round."""
    monkeypatch.setattr(processes, "_WORTH", 1e-12)
    real, killed = processes.send, []

    def killing(hand: Any, message: Any) -> bool:
        said = real(hand, message)
        desk = next(d for d in two.desks if d.hand is hand)
        task = desk.tasks.get(message[1]) if message[0] == "task" else None
        if task is not None and not killed and (task.resumed if moment else task.stop is not None):
            os.kill(hand.process.pid, signal.SIGKILL)
            killed.append(hand.process.pid)
        return said

    monkeypatch.setattr(processes, "send", killing)
    two._pace = 1.0
    assert outcome(two) == wanted
    assert killed


def test_more_workers_than_clients_and_no_clients_at_all(two: Processes) -> None:
    assert list(two.map(start(), [])) == []
    ((client, reply),) = two.map(start(), [3])
    assert (client, reply.client) == (3, 3)
    with Process(module(), data()) as here:
        ((_, same),) = here.map(start(), [3])
    assert reply.w.equal(same.w)
    assert identical(list(reply.kept.values()), list(same.kept.values()))


@pytest.mark.parametrize("taken", [0, 1, 4])
def test_a_round_that_is_abandoned_leaves_the_workers_idle(two: Processes, wanted: str, taken: int) -> None:
    answers = two.map(start(), range(7))
    for _ in range(taken):
        next(answers)
    answers.close()  # type: ignore[attr-defined]
    assert not any(desk.tasks for desk in two.desks)
    assert outcome(two) == wanted


@pytest.mark.parametrize("place", ["receive", "_feed"])
def test_ctrl_c_at_any_line_does_not_wait_for_answers_that_were_taken(
    two: Processes, wanted: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the workers and the pipes hold is unknown then, so they are let go, and others are hired when they are needed."""
    owner: Any = two if place.startswith("_") else processes
    real, calls = getattr(owner, place), []

    def interrupted(*arguments: Any) -> Any:
        found = real(*arguments)
        calls.append(place)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(owner, place, interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(two.map(start(), range(7)))
    assert two.desks == []
    if place == "receive":
        assert outcome(two) == wanted


# --- what goes wrong in a worker -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Odd(Job):
    """A job that does what it is told."""

    what: str = ""

    def run(self, worker: Any, client: int, kept: Any) -> Any:
        if client == 2:
            if self.what == "value":
                raise ValueError("client two says no")
            if self.what == "torch":
                return torch.zeros(2) @ torch.zeros(3)
            if self.what == "strange":
                raise Strange("one", 2)
            if self.what == "unpicklable":
                return lambda: None
            if self.what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        return client * 10


class Strange(Exception):
    """An error that cannot be made again from its text."""

    def __init__(self, first: str, second: int) -> None:
        Exception.__init__(self, f"{first} and {second}")


def odd(what: str) -> Odd:
    return Odd(accord.fedavg(), torch.zeros(1), torch.zeros(0), what=what)


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("value", ValueError, "client two says no"),
        ("torch", RuntimeError, "inconsistent tensor size|size mismatch|shape"),
        ("strange", RuntimeError, "Strange: one and 2"),
        ("unpicklable", Exception, "lambda"),
    ],
)
def test_an_error_arrives_with_its_type_its_text_and_where_it_was(two: Processes, what: str, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text) as caught:
        list(two.map(odd(what), range(5)))
    assert any("in a worker process" in note and "test_processes.py" in note for note in caught.value.__notes__) or what == "unpicklable"
    assert dict(two.map(odd(""), range(5))) == {k: 10 * k for k in range(5)}


def test_a_client_that_takes_every_worker_with_it_is_given_up(two: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "DEATHS", 2)
    two._deaths.clear()
    with pytest.raises(Lost, match=r"2 workers died while training client 2 \(the last with exit code -9\): out of memory\?"):
        list(two.map(odd("die"), range(5)))
    two._deaths.clear()
    assert dict(two.map(odd(""), range(5))) == {k: 10 * k for k in range(5)}


def test_notes_travel() -> None:
    for error in (ValueError("a"), Strange("b", 1), KeyError("k")):
        found = portable(error)
        assert str(error) in str(found)
        assert "in a worker process" in found.__notes__[0]


def test_a_worker_ends_when_its_owner_lets_go() -> None:
    hand = hire(crew_echo)
    assert send(hand, 3)
    assert ready([hand]) == [hand]
    assert receive(hand) == 6
    dismiss([hand])
    assert not hand.process.is_alive()
    assert hand.process.exitcode == 0
    hand = hire(crew_echo)
    hand.process.kill()
    hand.process.join()
    assert receive(hand) is None
    assert hand.fate == "exit code -9"
    dismiss([hand])


def crew_echo(pipe: Any) -> None:
    while True:
        pipe.send(2 * pipe.recv())


def test_pieces_of_ones_own_are_imported_before_what_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unpickled in a process that does not know the file yet, as a new worker does."""
    file = tmp_path / "travelling_piece.py"
    file.write_text("class Thing:\n    value = 7\n")
    use(str(file))
    thing = sys.modules["accord_use_travelling_piece"].Thing()
    assert str(file) in Pieces().files
    packed = pickle.dumps((Pieces(), thing))
    monkeypatch.delitem(sys.modules, "accord_use_travelling_piece")
    assert pickle.loads(packed)[1].value == 7
    monkeypatch.delitem(sys.modules, "accord_use_travelling_piece")


# --- the engine that decides -----------------------------------------------------------------------------------------------------------


class _Counted(Process):
    """Stands for worker processes, without starting any."""

    made = 0

    def __init__(self, module: Any, federation: Any, *, workers: int, device: str = "cpu") -> None:
        _Counted.made += 1
        Process.__init__(self, module, federation, device=device)


@pytest.mark.parametrize(("workers", "left", "hires"), [(1, 10**9, 0), (4, 10**9, 1), (4, 3, 0)])
def test_auto_hires_only_when_it_pays(workers: int, left: int, hires: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accord.engines.auto.Processes", _Counted)
    _Counted.made = 0
    with Process(module(), data()) as here, Auto(module(), data(), workers=workers, rounds=left) as auto:
        assert outcome(auto, count=5) == outcome(here, count=5)
    assert _Counted.made == hires


def test_scores_are_the_same_over_the_wire(two: Processes) -> None:
    server = Server.start(accord.fedavg(), module())
    job = Evaluate(accord.fedavg(), server.w, server.b, of="own")
    with Process(module(), data()) as here:
        for client, score in here.map(job, range(7)):
            ((_, found),) = two.map(job, [client])
            assert isinstance(found, Score)
            assert found.right.equal(score.right)
            assert found.loss == score.loss
