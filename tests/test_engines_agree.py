"""The same experiment gives the same bits on every engine, with any number of workers, in any order of arrival."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import accord
from accord.engines import processes
from accord.engines.plan import Task, plan
from accord.engines.process import Process
from accord.engines.processes import Processes
from accord.engines.threads import Threads
from accord.flat import digest
from accord.jobs import Evaluate, Train
from accord.recipe import entries
from accord.server import Server, rounds
from accord.store import Store
from small import Backwards, Net, federation, net

SIZES = (7, 12, 3, 18, 9, 5, 11)
TEXTS = [
    "fedavg",
    "fedprox(mu=1) + sgd(lr=0.05, batch=4, epochs=2, momentum=0.9, nesterov=True, decay=0.01, lr_decay=0.9)",
    "scaffold + sgd(lr=0.05, batch=4, epochs=1)",
    "scaffold + constrain + uniform(4) + sgd(lr=0.05, batch=4, epochs=1)",
    "fedsam + sgd(lr=0.05, batch=5, drop_last=True)",
    "fedsol + uniform(3) + sgd(lr=0.05, batch=4, epochs=1)",
    "scaffold + perturb(by=control, rho=0.5) + constrain(order=joint) + buffers(local)",
    "fedavg + buffers(freeze) + sgd(steps=uniform(1, 6), batch=4)",
    "scaffold + sgd(steps=uniform(1, 9), batch=3, lr=0.05) + buffers(local)",
]


def module(dropout: float = 0.0) -> Net:
    return net(dtype=torch.float32, norm=True, dropout=dropout)


def data() -> accord.Federation:
    return federation(SIZES, dtype=torch.float32)


def run(text: str, engine: Any = None, *, dropout: float = 0.0, seed: int = 3, count: int = 3, model: nn.Module | None = None) -> str:
    """A run as a text: the digest of the global model, of every client's state, and what each round reported."""
    algorithm, model = accord.read(text), model or module()
    server, store, seen = Server.start(algorithm, model), Store(algorithm.keys), []
    for cohort in rounds(algorithm, model, data(), rounds=count, seed=seed, engine=engine, server=server, store=store, dropout=dropout):
        seen.append((cohort.accepted, cohort.absent, cohort.rejected, cohort.loss, cohort.bytes_up, cohort.bytes_down))
    kept = {f"{k}/{i}/{n}": t for k in range(len(SIZES)) for i, s in enumerate(store.get(k).values()) for n, t in s.items()}
    states = {f"{i}/{n}": t for i, s in enumerate(server.state.values()) for n, t in s.items()}
    return f"{digest(server.model(model).state_dict())} {digest(kept)} {digest(states)} {seen}"


# Engines are opened once and serve many runs, as they do in a comparison.


@pytest.fixture(scope="module", params=["backwards", "threads-1", "threads-2", "threads-3", "processes-1", "processes-2"])
def engine(request: pytest.FixtureRequest) -> Iterator[Any]:
    name, _, workers = request.param.partition("-")
    makers: Mapping[str, Any] = {"backwards": Backwards, "threads": Threads, "processes": Processes}
    with makers[name](module(), data(), **({"workers": int(workers)} if workers else {})) as opened:
        yield opened


_WANTED: dict[tuple[str, float, int], str] = {}


def wanted(text: str, dropout: float = 0.0, seed: int = 3) -> str:
    """The same run with one worker in this process, one client after another."""
    key = (text, dropout, seed)
    if key not in _WANTED:
        _WANTED[key] = run(text, dropout=dropout, seed=seed)
    return _WANTED[key]


@pytest.mark.parametrize("text", TEXTS)
def test_every_engine_gives_the_same_bits(text: str, engine: Any) -> None:
    assert run(text, engine) == wanted(text)


@pytest.mark.parametrize("text", TEXTS[:4])
def test_clients_that_fail_to_answer_are_the_same_everywhere(text: str, engine: Any) -> None:
    assert run(text, engine, dropout=0.4) == wanted(text, 0.4)


ALGORITHMS = [e.name for e in entries("algorithm") if e.make.__module__ == "accord.algorithms"]


@pytest.mark.parametrize("engine", ["threads-3", "processes-2"], indirect=True)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_gives_the_same_bits(name: str, engine: Any) -> None:
    text = f"{name} + uniform(4) + sgd(lr=0.02, batch=5, epochs=1)"
    assert run(text, engine, count=2) == run(text, count=2)


@settings(max_examples=8)
@given(text=st.sampled_from(TEXTS), dropout=st.sampled_from([0.0, 0.2, 0.5]), seed=st.integers(0, 9))
def test_any_seed(text: str, dropout: float, seed: int) -> None:
    with Threads(module(), data(), workers=3) as threads:
        assert run(text, threads, dropout=dropout, seed=seed) == wanted(text, dropout, seed)


def test_the_digests_can_tell_runs_apart() -> None:
    found = {wanted(text).split()[0] for text in TEXTS}
    assert len(found) == len(TEXTS)
    assert wanted(TEXTS[0]) != wanted(TEXTS[0], seed=4)
    assert wanted(TEXTS[0]) != wanted(TEXTS[0], 0.4)


def test_some_clients_fail_to_answer_and_the_run_goes_on() -> None:
    seen = list(rounds(accord.fedavg(), module(), data(), rounds=12, dropout=0.4))
    absent = [k for cohort in seen for k in cohort.absent]
    assert all(sorted(c.absent + c.accepted) == list(range(7)) for c in seen)
    assert 0.2 < len(absent) / (12 * 7) < 0.6
    assert set(absent) == set(range(7))
    server = Server.start(accord.fedavg(), module())
    before = server.w
    (nobody,) = rounds(accord.fedavg(), module(), data(), rounds=1, dropout=1.0, server=server)
    assert (nobody.accepted, nobody.absent) == ([], list(range(7)))
    assert server.w.equal(before)
    assert server.round == 1


def test_unequal_steps_are_drawn_from_the_seed() -> None:
    algorithm = accord.read("fedavg + sgd(steps=uniform(2, 9), batch=4)")
    nothing = torch.empty(0)

    def counts(seed: int, at: int) -> list[int]:
        return [len(list(Train(algorithm, nothing, nothing, at, seed).batches(data(), k))) for k in range(7)]

    assert counts(0, 0) == counts(0, 0)
    assert len({*map(tuple, (counts(0, 0), counts(0, 1), counts(1, 0)))}) == 3
    drawn = [n for at in range(30) for n in counts(0, at)]
    assert set(drawn) == set(range(2, 10))


@pytest.mark.parametrize("of", ["test", "train", "own", "personal"])
def test_scores_agree(of: Any, engine: Any) -> None:
    algorithm = accord.read("fedavg + finetune(2) + sgd(lr=0.05, batch=4, epochs=1)")
    server = Server.start(algorithm, module())
    job = Evaluate(algorithm, server.w, server.b, 2, 0, of=of)
    clients = [0] if of == "test" else list(range(7))
    found = dict(engine.map(job, clients))
    with Process(module(), data()) as plain:
        for client, score in plain.map(job, clients):
            assert found[client].right.equal(score.right)
            assert found[client].total.equal(score.total)
            assert found[client].loss == score.loss
            assert score.samples > 0


# --- models that draw random numbers ---------------------------------------------------------------------------------------------------


def test_a_model_with_dropout_gives_the_same_bits_in_processes() -> None:
    model, other = module(0.5), module(0.5)
    with Processes(model, data(), workers=2) as two, Backwards(model, data()) as backwards:
        for text in TEXTS[:3]:
            first = run(text, model=model)
            assert run(text, two, model=other) == first
            assert run(text, backwards, model=model) == first
            assert first.split()[0] != wanted(text).split()[0]


def test_threads_refuse_a_model_with_dropout() -> None:
    with (
        Threads(module(0.5), data(), workers=2) as threads,
        pytest.raises(
            ValueError, match=r"draws random numbers of its own \(dropout\?\), which threads would share: use the engine process"
        ),
    ):
        run("fedavg", threads, model=module(0.5))


def test_the_callers_threads_are_given_back() -> None:
    torch.set_num_threads(2)
    try:
        for open_one in (lambda: Process(module(), data()), lambda: Threads(module(), data(), workers=2)):
            with open_one() as opened:
                run("fedavg", opened, count=1)
                assert torch.get_num_threads() == 1
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


# --- errors and deaths -----------------------------------------------------------------------------------------------------------------


class Fussy(Net):
    """A model that refuses what it does not like."""

    def forward(self, x: torch.Tensor) -> accord.Output:
        if x.shape[0] == 2:
            raise ValueError("this model refuses pairs")
        return Net.forward(self, x)


@pytest.mark.parametrize("make", [Process, lambda m, d: Threads(m, d, workers=2), lambda m, d: Processes(m, d, workers=1)])
def test_an_error_in_a_client_is_the_callers(make: Any) -> None:
    fussy = Fussy().float()
    with make(fussy, federation((5, 7, 5), dtype=torch.float32)) as opened:
        algorithm = accord.fedavg() + accord.sgd(batch=5, epochs=1)
        with pytest.raises(ValueError, match="this model refuses pairs"):
            list(rounds(algorithm, fussy, federation((5, 7, 5), dtype=torch.float32), rounds=1, engine=opened))
        good = federation((5, 5, 5), dtype=torch.float32)
        assert good.population == 3
        answers = dict(opened.map(Train(algorithm, *_start(fussy)), [0, 2]))
        assert sorted(answers) == [0, 2]


def _start(model: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    server = Server.start(accord.fedavg(), model)
    return server.w, server.b


def test_clients_cut_in_two_give_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it evens out the workers, one worker begins a client and another ends it."""
    cuts: list[Task] = []

    def watched(costs: Mapping[int, int], workers: int, worth: float | None = None) -> list[deque[Task]]:
        queues = plan(costs, workers, worth=0 if worth is not None else None)
        cuts.extend(task for queue in queues for task in queue if task.resumed)
        return queues

    monkeypatch.setattr(processes, "plan", watched)
    texts = [*TEXTS[:8], "mixup + sgd(batch=4, epochs=1)"]
    with Processes(module(), data(), workers=2) as two:
        for text in texts:
            assert run(text, two) == wanted(text)
    assert cuts


def test_a_worker_that_is_killed_is_replaced_and_changes_nothing() -> None:
    text = "scaffold + sgd(lr=0.05, batch=1, epochs=3)"
    with Processes(module(), data(), workers=2) as two:
        algorithm, model = accord.read(text), module()
        server, store = Server.start(algorithm, model), Store(algorithm.keys)
        victims = [desk.hand.process.pid for desk in two.desks]
        for cohort in rounds(algorithm, model, data(), rounds=3, seed=3, engine=_Killing(two, victims), server=server, store=store):
            assert cohort.rejected == {}
        assert not set(victims) & {desk.hand.process.pid for desk in two.desks}
    assert digest(server.model(model).state_dict()) == wanted(text).split()[0]


class _Killing:
    """An engine whose workers are killed, one in each round, after its first answer."""

    name = "killing"

    def __init__(self, engine: Processes, victims: list[int]) -> None:
        self.engine, self.victims = engine, list(victims)

    def map(self, job: Any, clients: Any, kept: Any) -> Iterator[Any]:
        for at, answer in enumerate(self.engine.map(job, clients, kept)):
            yield answer
            if at == 0 and self.victims:
                os.kill(self.victims.pop(), signal.SIGKILL)

    def close(self) -> None:
        self.engine.close()


@pytest.mark.parametrize("engine", [Process, Threads, Processes])
def test_one_thread_on_this_side_while_an_engine_is_open(engine: type[Process | Threads | Processes]) -> None:
    """The server's norms are made in this process, and with two threads their last bits would be others."""
    torch.set_num_threads(2)
    with engine(net(), federation(), **({} if engine is Process else {"workers": 1})):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
