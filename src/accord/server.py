"""The server: the global model, what it keeps, and the one server loop."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from accord.algorithm import Algorithm
from accord.cohort import Cohort, Reply
from accord.data.federation import Federation
from accord.engines import Engine, Lookup, Summing
from accord.engines.process import Process
from accord.flat import Flat
from accord.jobs import Evaluate, Train
from accord.part import State
from accord.partial import Shapes
from accord.seeds import number, numpy_stream
from accord.select import Draw
from accord.store import Store
from accord.track import Watch


@dataclass
class Server:
    """The global model after `round` rounds: weights, statistics, and each part's state.

    `traffic` is the number of bytes of weights and statistics that a client is sent and sends back; None: of all of them.
    """

    algorithm: Algorithm
    w: Tensor
    b: Tensor
    state: dict[Hashable, State] = field(default_factory=dict)
    round: int = 0
    traffic: int | None = None

    @classmethod
    def start(cls, algorithm: Algorithm, module: nn.Module) -> Server:
        """The server before the first round, with the module's present weights."""
        model = Flat(copy.deepcopy(module))
        b = model.read_statistics()
        return cls(algorithm, model.w.clone(), b, first_state(algorithm, model.w), traffic=traffic(algorithm, model))

    @property
    def down(self) -> dict[Hashable, State]:
        """What travels to a client besides the weights."""
        return {p: {name: self.state[p][name] for name in p.sends} for p in self.algorithm.all_parts if p.sends}

    def model(self, module: nn.Module) -> nn.Module:
        """A copy of the module with the global weights."""
        flat = Flat(copy.deepcopy(module))
        flat.load(self.w, self.b)
        return flat.module


def first_state(algorithm: Algorithm, w: Tensor) -> dict[Hashable, State]:
    """What the server keeps before the first round."""
    found: dict[Hashable, State] = {part: part.server_state(w) for part in algorithm.all_parts}
    return {part: state for part, state in found.items() if state}


def traffic(algorithm: Algorithm, model: Flat) -> int:
    """How many bytes of weights and statistics have to travel each way: of those that may move, and none where they stay."""
    if algorithm.stays:
        return 0
    statistics = 0 if algorithm.buffers.policy == "freeze" else model.b.nbytes
    return sum(model.w[s].nbytes for s in algorithm.moves(model.layout)) + statistics


def rounds(
    algorithm: Algorithm,
    module: nn.Module,
    federation: Federation,
    *,
    rounds: int,
    seed: int = 0,
    engine: Engine | None = None,
    server: Server | None = None,
    store: Store | None = None,
    dropout: float = 0.0,
    watch: Watch | None = None,
) -> Iterator[Cohort]:
    """Federated training, round by round: `for cohort in rounds(...)`. `cohort.server` is the server after that round.

    Without an engine the clients run here, one after another. Give `server` and `store` to go on from where they stand. With
    `dropout` each client asked fails to answer with that probability. A `watch` looks at the clients while they train, and changes
    nothing: the cohort then has every reply, and what was `seen` of it.

    >>> import accord
    >>> federation = accord.federate(accord.read("digits", "data"), accord.read("iid", "split"), 10)
    >>> for cohort in accord.rounds(accord.fedavg(), torch.nn.Linear(64, 10), federation, rounds=2):
    ...     print(cohort.round, len(cohort.clients))
    0 10
    1 10
    """
    server = server or Server.start(algorithm, module)
    store = store or Store(algorithm.keys)
    own = engine is None
    engine = engine or Process(module, federation)
    try:
        while server.round < rounds:
            yield play(server, federation, engine, store, seed=seed, dropout=dropout, watch=watch)
    finally:
        if own:
            engine.close()


def play(
    server: Server,
    federation: Federation,
    engine: Engine,
    store: Store,
    *,
    seed: int,
    dropout: float = 0.0,
    watch: Watch | None = None,
) -> Cohort:
    """One round: choose, train, add up, step."""
    chosen, asked_for_loss = choose(server, federation, engine, store.get, seed)
    absent = {k for k in chosen if dropout and number(seed, "dropout", server.round, k) / 2**63 < dropout}
    asked = [k for k in chosen if k not in absent]
    algorithm = server.algorithm if watch is None else server.algorithm + watch
    job = Train(algorithm, server.w, server.b, server.round, seed, server.down)
    cohort = _trained(server, federation, engine, store, job, asked, watch)
    cohort.absent = sorted(absent)
    states = sum(t.nbytes for state in job.down.values() for t in state.values())
    cohort.bytes_down = len(asked_for_loss | set(chosen)) * cohort.traffic + len(chosen) * states
    cohort.bytes_up += len(asked_for_loss) * server.w.element_size()
    if asked:
        server.w, server.b = cohort.step()
        server.state = cohort.state
    server.round += 1
    cohort.server = server
    return cohort


def _trained(
    server: Server, federation: Federation, engine: Engine, store: Store, job: Train, asked: Sequence[int], watch: Watch | None
) -> Cohort:
    """The cohort with the answers of all who were asked: as sums, if the engine makes them and no part reads every reply."""

    def empty() -> Cohort:
        return Cohort(
            job.algorithm,
            server.w,
            b=server.b,
            state=server.state,
            clients=asked,
            population=server.algorithm.trains_on(federation).population,
            round=server.round,
            traffic=server.traffic,
        )

    cohort = empty()
    if isinstance(engine, Summing) and not cohort.reads_all:
        kept: dict[int, Mapping[Hashable, State]] = {}
        try:
            for partial in engine.sums(job, asked, store):
                cohort.merge(partial)
                kept |= partial.kept
        except Shapes:  # which of them stands out is only seen in the order of the clients
            cohort = empty()
        else:
            for client in cohort.accepted:
                store.put(client, kept[client])
            return cohort
    for _, reply in engine.map(job, asked, store.get):
        if watch is not None:
            cohort.seen[reply.client] = watch.taken(reply)
        for accepted in cohort.take(reply):
            store.put(accepted.client, accepted.kept)
    return cohort


def choose(server: Server, federation: Federation, engine: Engine, kept: Lookup, seed: int) -> tuple[list[int], set[int]]:
    """The clients of the coming round, and those that were sent the model only to say what their loss is."""
    data, seen = server.algorithm.trains_on(federation), set[int]()
    if data.population == 1:
        return [0], seen

    def losses(clients: Sequence[int]) -> list[float]:
        seen.update(clients)
        job = Evaluate(server.algorithm, server.w, server.b, server.round, seed, of="train")
        found = dict(engine.map(job, clients, kept))
        return [found[k].loss / max(found[k].samples, 1) for k in clients]

    rng = numpy_stream(seed, "select", server.round)
    chosen = server.algorithm.select.choose(Draw(data.population, data.clients.sizes[: data.population], rng, losses))
    return chosen, seen


def server_step(
    algorithm: Algorithm,
    w: Tensor,
    replies: Sequence[Reply],
    *,
    state: Mapping[Hashable, State] | None = None,
    population: int | None = None,
) -> tuple[Tensor, dict[Hashable, State]]:
    """The new global weights and server state from these replies, `population` being the number of all clients (default: those here).

    The mean of the clients' statistics (BatchNorm), if there are any, is `state[algorithm.buffers]["b"]`.

    >>> import accord
    >>> replies = [accord.Reply(torch.tensor([1.0, 0.0]), samples=3), accord.Reply(torch.tensor([0.0, 1.0]), samples=1)]
    >>> accord.server_step(accord.fedavg(), torch.zeros(2), replies)[0]
    tensor([0.7500, 0.2500])
    """
    for k, reply in enumerate(replies):
        reply.client = k
    cohort = Cohort(
        algorithm,
        w,
        b=torch.zeros_like(replies[0].b) if replies else w.new_empty(0),
        state={**first_state(algorithm, w), **(state or {})},
        clients=range(len(replies)),
        population=population or len(replies),
    )
    for reply in replies:
        cohort.take(reply)
    stepped, b = cohort.step()
    return stepped, {**cohort.state, algorithm.buffers: {"b": b}} if len(b) else cohort.state
