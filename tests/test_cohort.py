"""The server's sums: any order of arrival, clients that answer nonsense, weights, statistics, and the public `server_step`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import accord
from accord.cohort import Cohort, Reply, finite
from accord.engines.process import Process
from accord.flat import Flat
from accord.jobs import Train
from accord.partial import Partial
from accord.server import Server, first_state, rounds
from accord.store import Store
from small import Backwards, batches, federation, identical, net, train

SIZE, PEOPLE = 40, 6
ALGORITHMS = [accord.fedavg(), accord.fedavg("uniform"), accord.scaffold(), accord.read("scaffold + constrain + perturb")]


def replies(algorithm: accord.Algorithm, count: int = PEOPLE, dtype: torch.dtype = torch.float32) -> list[Reply]:
    rng = torch.Generator().manual_seed(4)
    draw = lambda: torch.randn(SIZE, generator=rng) * 10 ** float(torch.randint(-3, 4, (), generator=rng))  # noqa: E731
    up = lambda: {p: {"change": draw().to(dtype)} for p in algorithm.parts if isinstance(p, accord.control)}  # noqa: E731
    return [Reply(draw().to(dtype), samples=3 * k + 1, client=10 * k, b=draw()[:5].to(dtype), up=up(), loss=k) for k in range(count)]


def cohort(algorithm: accord.Algorithm, given_replies: Sequence[Reply], dtype: torch.dtype = torch.float32) -> Cohort:
    w = torch.linspace(-1, 1, SIZE, dtype=dtype)
    ids = sorted(r.client for r in given_replies)
    return Cohort(algorithm, w, b=torch.ones(5, dtype=dtype), state=first_state(algorithm, w), clients=ids, population=60)


def stepped(algorithm: accord.Algorithm, given_replies: Sequence[Reply]) -> tuple[Cohort, Tensor, Tensor]:
    made = cohort(algorithm, given_replies)
    for reply in given_replies:
        made.take(reply)
    return made, *made.step()


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: "+".join(p.name for p in a.parts))
@given(order=st.permutations(range(PEOPLE)))
def test_the_order_of_arrival_does_not_change_a_bit(algorithm: accord.Algorithm, order: list[int]) -> None:
    here = replies(algorithm)
    wanted, w, b = stepped(algorithm, here)
    found, w_found, b_found = stepped(algorithm, [replies(algorithm)[k] for k in order])
    assert w_found.equal(w)
    assert b_found.equal(b)
    assert identical(found.state, wanted.state)
    assert (found.accepted, found.loss, found.bytes_up) == (wanted.accepted, wanted.loss, wanted.bytes_up)


def test_replies_are_added_as_they_come_once_the_first_is_in() -> None:
    here = replies(accord.fedavg(), 4)
    made = cohort(accord.fedavg(), here)
    assert made.take(here[2]) == []
    assert sorted(r.client for r in made.take(here[0])) == [0, 20]
    assert [r.client for r in made.take(here[3])] == [30]
    assert made.accepted == [0]  # what is recorded of them is in their order
    assert [r.client for r in made.take(here[1])] == [10]
    assert made.accepted == [0, 10, 20, 30]


def test_the_first_usable_reply_says_the_shape_whoever_comes_first() -> None:
    for order in ([0, 1, 2, 3], [2, 3, 1, 0], [3, 1, 0, 2]):
        here = replies(accord.scaffold(), 4)
        here[0].w = here[0].w * math.nan
        odd = {part: {name: tensor[:-1] for name, tensor in state.items()} for part, state in here[2].up.items()}
        here[2].up = odd
        made = cohort(accord.scaffold(), here)
        for k in order:
            made.take(here[k])
        assert made.accepted == [10, 30]
        assert "not finite" in made.rejected[0]
        assert "in shape" in made.rejected[20]


def test_nobody_answers_twice_or_unasked() -> None:
    here = replies(accord.fedavg(), 3)
    made = cohort(accord.fedavg(), here)
    made.take(here[1])
    with pytest.raises(AssertionError, match="client 10 was not asked, or answered twice"):
        made.take(here[1])
    with pytest.raises(AssertionError, match="client 5"):
        made.take(Reply(torch.zeros(SIZE), client=5))


# --- weights ---------------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8))
def test_weights_are_sample_counts_or_alike(counts: list[int]) -> None:
    rng = torch.Generator().manual_seed(0)
    ws = [torch.randn(SIZE, generator=rng, dtype=torch.float64) for _ in counts]
    start = torch.randn(SIZE, generator=rng, dtype=torch.float64)
    here = lambda: [Reply(w, samples=n) for w, n in zip(ws, counts, strict=True)]  # noqa: E731
    by_samples, _ = accord.server_step(accord.fedavg(), start, here())
    alike, _ = accord.server_step(accord.fedavg("uniform"), start, here())
    total = sum(counts)
    torch.testing.assert_close(by_samples, sum(n / total * w for n, w in zip(counts, ws, strict=True)), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(alike, sum(ws) / len(ws), rtol=1e-12, atol=1e-12)


def test_uniform_weights_stay_uniform_inside_any_onion() -> None:
    """The loss that a perturbation looks at must not bring its own mean along."""
    here = lambda: [Reply(torch.ones(3), samples=3), Reply(torch.zeros(3), samples=1)]  # noqa: E731
    for text in ("fedavg(uniform)", "fedavg(uniform) + perturb", "fedavg(uniform) + perturb(by=distil) + constrain"):
        assert accord.server_step(accord.read(text), torch.zeros(3), here())[0].tolist() == [0.5] * 3
    assert accord.server_step(accord.read("fedsam"), torch.zeros(3), here())[0].tolist() == [0.75] * 3


def test_the_mean_is_formed_in_double_precision() -> None:
    """Sixty thousand equal single-precision terms: a float32 running sum would drift."""
    value = torch.full((4,), 0.1)
    count = 3000
    w, _ = accord.server_step(accord.fedavg("uniform"), torch.zeros(4), [Reply(value, samples=1) for _ in range(count)])
    assert w.equal(value)


def test_one_client_is_taken_over() -> None:
    w = torch.randn(SIZE, dtype=torch.float64)
    torch.testing.assert_close(accord.server_step(accord.fedavg(), torch.randn(SIZE).double(), [Reply(w, samples=7)])[0], w)


def test_control_variates_count_everybody() -> None:
    part = accord.control()
    here = [Reply(torch.zeros(3), samples=n, up={part: {"change": torch.full((3,), v)}}) for n, v in ((9, 1.0), (1, 2.0))]
    _, state = accord.server_step(accord.scaffold(), torch.zeros(3), here, population=10)
    assert state[part]["c"].tolist() == pytest.approx([0.3] * 3)
    _, state = accord.server_step(accord.scaffold(), torch.zeros(3), here, state=state, population=10)
    assert state[part]["c"].tolist() == pytest.approx([0.6] * 3)
    _, state = accord.server_step(accord.scaffold(), torch.zeros(3), here)
    assert state[part]["c"].tolist() == pytest.approx([1.5] * 3)


# --- answers that cannot be used -------------------------------------------------------------------------------------------------------


def broken(reply: Reply, how: str) -> Reply:
    if how in ("nan", "inf", "-inf"):
        reply.w[7] = float(how)
    elif how == "both infinities":
        reply.w[7], reply.w[8] = math.inf, -math.inf
    elif how == "nan in statistics":
        reply.b[0] = math.nan
    elif how == "nan sent up":
        next(iter(reply.up.values()))["change"][3] = math.nan
    elif how == "short":
        reply.w = reply.w[:-1]
    elif how == "long":
        reply.w = torch.cat([reply.w, reply.w])
    elif how == "empty":
        reply.w = reply.w[:0]
    elif how == "short statistics":
        reply.b = reply.b[:-1]
    elif how == "no samples":
        reply.samples = 0
    return reply


NOT_FINITE = ["nan", "inf", "-inf", "both infinities", "nan in statistics", "nan sent up"]
WAYS = [*NOT_FINITE, "short", "long", "empty", "short statistics", "no samples"]


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("which", [0, 2, PEOPLE - 1])
def test_a_bad_answer_is_left_out_as_if_it_had_not_come(how: str, which: int) -> None:
    algorithm = accord.scaffold()
    here = replies(algorithm)
    broken(here[which], how)
    made, w, b = stepped(algorithm, here)
    others = [r for k, r in enumerate(replies(algorithm)) if k != which]
    wanted, w_wanted, b_wanted = stepped(algorithm, others)
    assert w.equal(w_wanted)
    assert b.equal(b_wanted)
    assert identical(made.state, wanted.state)
    assert list(made.rejected) == [10 * which]
    assert made.accepted == wanted.accepted
    assert made.bytes_up == wanted.bytes_up
    said = made.rejected[10 * which]
    words = {"no samples": "has no training samples", **dict.fromkeys(NOT_FINITE, "not finite")}
    assert words.get(how, "the model has 40 and 5") in said


@pytest.mark.parametrize("how", WAYS)
def test_all_bad_stops_with_the_reason(how: str) -> None:
    algorithm = accord.scaffold()
    made = cohort(algorithm, replies(algorithm))
    made.round = 4
    for reply in replies(algorithm):
        assert made.take(broken(reply, how)) == []
    with pytest.raises(ValueError, match=r"round 5: no client gave a usable answer .*client 0 .*client 10 .*client 20") as stopped:
        made.step()
    assert "client 30" not in str(stopped.value)


def test_nobody_answered() -> None:
    with pytest.raises(ValueError, match="nobody answered"):
        accord.server_step(accord.fedavg(), torch.zeros(2), [])


def test_large_numbers_are_no_infinities() -> None:
    huge = torch.full((8,), 3e38)
    assert finite(huge)
    assert not math.isfinite(float(huge.sum()))
    assert finite(torch.empty(0))
    assert not finite(torch.tensor([math.inf, -math.inf, 1.0]))


def test_a_run_goes_on_without_the_client_that_diverges() -> None:
    """One client's data make its weights overflow; the others' mean is as if it had never been asked."""
    data = federation((8, 8, 8), dtype=torch.float32)
    data.train.x[8:16] *= 1e30
    algorithm = accord.fedavg() + accord.sgd(lr=0.1, batch=4)
    server = Server.start(algorithm, net(dtype=torch.float32))
    start = server.w
    seen = list(rounds(algorithm, net(dtype=torch.float32), data, rounds=3, server=server))
    assert all(list(c.rejected) == [1] and c.accepted == [0, 2] for c in seen)
    assert torch.isfinite(server.w).all()
    assert not server.w.equal(start)
    assert math.isfinite(seen[-1].loss)


def test_a_run_in_which_all_diverge_stops_with_the_reason() -> None:
    data = federation((8, 8), dtype=torch.float32)
    data.train.x.mul_(1e38)
    with pytest.raises(ValueError, match=r"round 1: no client gave a usable answer .*not finite"):
        train(accord.fedavg() + accord.sgd(lr=1e9), net(dtype=torch.float32), data, 2)


def test_a_client_without_data_is_left_out() -> None:
    data = federation((8, 0, 5))
    server = Server.start(accord.fedavg(), net())
    (seen,) = rounds(accord.fedavg(), net(), data, rounds=1, server=server)
    assert seen.rejected == {1: "has no training samples"}


def test_the_order_in_which_an_engine_answers_does_not_matter() -> None:
    for text in ("fedavg", "scaffold + constrain", "fedsol"):
        algorithm, data = accord.read(text) + accord.uniform(5), federation()
        a = train(algorithm, net(), data, 3)
        with Backwards(net(), data) as engine:
            b = train(algorithm, net(), data, 3, engine=engine)
        assert a.w.equal(b.w)
        assert identical(a.state, b.state)


# --- statistics ------------------------------------------------------------------------------------------------------------------------


def test_statistics_are_averaged_by_samples() -> None:
    here = [Reply(torch.zeros(SIZE), samples=n, client=k, b=torch.full((5,), v)) for k, (n, v) in enumerate([(1, 4.0), (3, 8.0)])]
    _, _, b = stepped(accord.fedavg(), here)
    assert b.tolist() == [7.0] * 5


def test_statistics_stay_when_nobody_sends_any() -> None:
    here = [Reply(torch.zeros(SIZE), samples=n, client=k) for k, n in enumerate([1, 3])]
    _, _, b = stepped(accord.fedavg(), here)
    assert b.tolist() == [1.0] * 5


def test_server_step_gives_the_mean_of_the_statistics() -> None:
    module, algorithm = net(norm=True), accord.fedavg()
    here = [accord.local_round(algorithm, module, batches(2, seed=k)) for k in range(3)]
    _, state = accord.server_step(algorithm, Flat(net(norm=True)).w, here)
    torch.testing.assert_close(state[algorithm.buffers]["b"], sum(r.b for r in here) / 3)
    data = federation((10, 10, 10))
    assert train(algorithm, net(norm=True), data, 1).b.numel() == here[0].b.numel()


def test_server_step_adds_up_to_what_rounds_does() -> None:
    data, algorithm = federation(), accord.scaffold() + accord.sgd(lr=0.05, batch=4, epochs=1)
    server = train(algorithm, net(norm=True), data, 1)
    nothing, w0 = torch.empty(0), Flat(net(norm=True)).w.clone()
    deal = [[tuple(b) for b in Train(algorithm, nothing, nothing, 0, 0).batches(data, k)] for k in range(data.population)]
    w, state = accord.server_step(algorithm, w0, [accord.local_round(algorithm, net(norm=True), d, w0=w0) for d in deal])
    assert w.equal(server.w)
    torch.testing.assert_close(state[algorithm.buffers]["b"], server.b, rtol=1e-12, atol=1e-12)
    assert state[accord.control()]["c"].equal(server.state[accord.control()]["c"])


# --- parts that read every answer ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Median(accord.Part):
    """The coordinate-wise median of the clients' updates, as a part that is not registered."""

    reads_all: ClassVar[bool] = True

    def aggregate(self, cohort: Cohort, inner: accord.Step) -> Tensor:
        return torch.stack([r.delta for r in cohort.replies]).median(0).values


def test_a_part_may_read_all_deltas() -> None:
    algorithm = accord.Algorithm((accord.task(), Median()))
    here = [Reply(torch.full((SIZE,), v), client=k) for k, v in enumerate((0.0, 1.0, 50.0))]
    made, w, _ = stepped(algorithm, here)
    torch.testing.assert_close(w, torch.ones(SIZE))
    assert len(made.replies) == 3
    plain, _, _ = stepped(accord.fedavg(), [Reply(torch.zeros(SIZE), client=0)])
    assert plain.replies == []


# --- sums made elsewhere ---------------------------------------------------------------------------------------------------------------


class Grouped(Process):
    """An engine that adds up the replies of every other client before the server sees them."""

    def sums(self, job: Train, clients: Sequence[int], store: Store) -> Iterator[Partial]:
        for group in (clients[1::2], clients[::2]):
            partial = Partial()
            for client in group:
                reply = job.run(self.worker, client, store.get(client))
                if partial.add(reply, job.algorithm, job.w, job.b) is None:
                    partial.kept[client] = reply.kept
            yield partial


@dataclass(frozen=True)
class Uneven(accord.Part):
    """A part whose sums have one shape for even clients and another for odd ones."""

    name: ClassVar[str] = "uneven"

    def sums(self, reply: Reply) -> dict[str, tuple[float, Tensor]]:
        return {"odd": (1.0, torch.zeros(1 + reply.client % 2))}


@pytest.mark.parametrize("text", ["fedavg", "scaffold", "fednova + buffers(local)", "fedoptz"])
@pytest.mark.parametrize("uneven", [False, True])
def test_groups_of_replies_may_be_added_up_elsewhere(text: str, uneven: bool) -> None:
    algorithm = accord.read(f"{text} + sgd(lr=0.05, batch=4, epochs=1)")
    algorithm = algorithm + Uneven() if uneven else algorithm
    model, data = net(dtype=torch.float32, norm=True), federation(dtype=torch.float32)
    found = []
    for engine in (Process(model, data), Grouped(model, data)):
        store, server = Store(algorithm.keys), Server.start(algorithm, model)
        with engine:
            seen = list(rounds(algorithm, model, data, rounds=3, engine=engine, server=server, store=store, dropout=0.2))
        told = [(c.accepted, c.rejected, c.loss, c.samples, c.bytes_up) for c in seen]
        found.append((server.w, server.b, server.state, [store.get(k) for k in range(7)], told))
    assert identical(found[0], found[1])
    assert any(c.rejected for c in seen) == uneven


def test_only_who_was_asked_is_merged() -> None:
    here = replies(accord.fedavg(), 2)
    made, partial = cohort(accord.fedavg(), here), Partial()
    partial.add(here[0], made.algorithm, made.w, made.b)
    made.merge(partial)
    assert made.accepted == [0]
    with pytest.raises(AssertionError, match="not asked, or answered twice"):
        made.merge(partial)
