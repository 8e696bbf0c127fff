"""The engine of real sites: a job travels as a message, and only arrays and plain values come back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from accord.algorithm import Algorithm
from accord.client import local_round
from accord.cohort import Reply
from accord.data.federation import Federation
from accord.engines import Lookup, stateless
from accord.engines.process import Process
from accord.flat import Layout
from accord.flower.roster import Roster
from accord.flower.wire import PROTOCOL, config, exact, pack, parted, plain, states, unpack, value
from accord.jobs import Evaluate, Job, Kept, Score

ACCEPTED = "accepted"  # what a client's entry in the server's store is filed under: the tag of its last accepted state
_GRACE = 1.0  # seconds after the time limit in which the network's own word on a message may come
_KINDS = {"train": "loss", "own": "own", "personal": "personal"}
_ERRORS = {
    3: "did not answer in time",
    4: "did not answer in time",
    5: "is gone: its node does not answer",
    8: "broke off: its process was killed",
}


class Sites:
    """One site is one client; the test set is looked at here. What a client keeps stays with it: the server keeps the tag of it.

    A site that does not answer in `timeout` seconds, is not there, or answers with anything but what was asked for has failed in
    this round, with a reason; the others' answers count.
    """

    name = "flower"

    def __init__(self, grid: Grid, roster: Roster, here: Process, model: str, *, timeout: float, least: int, poll: float = 0.3) -> None:
        self.grid, self.roster, self.here, self.model = grid, roster, here, model
        self.timeout, self.least, self.poll = timeout, least, poll
        self.bytes = {"down": 0, "up": 0}
        self._like: dict[Algorithm, dict[str, Tensor]] = {}

    def map(self, job: Job, clients: Sequence[int], kept: Lookup = stateless) -> Iterator[tuple[int, Any]]:
        if isinstance(job, Evaluate):
            if job.of == "test":
                yield from self.here.map(job, clients, kept)
                return
            empty = Score(torch.zeros(1, dtype=torch.long), torch.zeros(1, dtype=torch.long), 0.0)
            for client, found in self._ask(job, clients, kept, self._score):
                if isinstance(found, str):
                    self.roster.say(f"  {self.roster.name(client)} {found}")
                yield client, empty if isinstance(found, str) else found
            return
        while True:
            self.roster.wait(self.grid, self.least, self.poll)
            found = dict(self._ask(job, clients, kept, self._reply))
            if not all(isinstance(each, str) for each in found.values()):
                break
            self.roster.say("  nobody gave an answer that can be used; asking again")
            for client, why in found.items():
                self.roster.say(f"  {self.roster.name(client)} {why}")
            time.sleep(self.poll)
        for client, each in found.items():
            yield client, Reply(torch.empty(0), client=client, failure=each) if isinstance(each, str) else each

    def _ask(
        self, job: Job, clients: Sequence[int], kept: Lookup, read: Callable[[RecordDict, Job, int], Any]
    ) -> Iterator[tuple[int, Any]]:
        """Each client's answer, or a text that says why there is none."""
        self.roster.look(self.grid, every=0.0)
        sent: dict[str, int] = {}
        for client in clients:
            node = self.roster.online.get(client)
            if node is None:
                yield client, "is not connected"
                continue
            kind = "evaluate" if isinstance(job, Evaluate) else "train"
            message = Message(self.content(job, client, kept(client)), node, kind, ttl=self.timeout, group_id=str(job.round + 1))
            name = next(iter(self.grid.push_messages([message])), None)
            if not name:
                yield client, "could not be sent the message"
                continue
            sent[name] = client
        until = time.monotonic() + self.timeout + _GRACE
        while sent and time.monotonic() < until:
            time.sleep(self.poll)
            for name, client in list(sent.items()):
                found = self._pull(name, job, client, read)
                if found is not None:
                    del sent[name]
                    yield client, found
            self.roster.look(self.grid)
        for client in sent.values():
            yield client, f"did not answer within {self.timeout:g} s"

    def _pull(self, name: str, job: Job, client: int, read: Callable[[RecordDict, Job, int], Any]) -> Any:
        """One client's answer if it is there; each is fetched by itself, so that one that cannot be read costs no other."""
        try:
            replies = list(self.grid.pull_messages([name]))
            if not replies:
                return None
            if replies[0].has_error():
                error = replies[0].error
                told = _ERRORS.get(error.code, f"failed: {plain(str(error.reason), 200)}")
                return f"did not answer within {self.timeout:g} s" if error.code in (3, 4) else told
            content = replies[0].content
            if "refused" in content:
                return plain(value(config(content, "refused"), "why", str), 300)
            self.bytes["up"] += sum(len(a.data) for record in content.array_records.values() for a in record.values())
            return read(content, job, client)
        except ValueError as error:
            return plain(str(error), 300)
        except (TypeError, KeyError, AttributeError, IndexError, OverflowError, MemoryError, RuntimeError) as error:
            return f"sent what cannot be read ({type(error).__name__})"

    def content(self, job: Job, client: int, kept: Kept) -> RecordDict:
        """A job as a message for one client: the recipe's text, plain values and named arrays."""
        layout, statistics = self.layouts
        tag = int(kept[ACCEPTED]["tag"]) if ACCEPTED in kept else 0
        sizes = [seat.samples for seat in self.roster.sites.values()]
        ask = {
            "protocol": PROTOCOL,
            "kind": _KINDS[job.of] if isinstance(job, Evaluate) else "train",
            "recipe": repr(job.algorithm),
            "model": self.model,
            "round": job.round,
            "seed": str(job.seed),
            "client": client,
            "clients": self.roster.clients,
            "classes": self.here.worker.federation.classes,
            "mean": sum(sizes) / max(len(sizes), 1),
            "run": self.roster.run,
            "tag": tag,
            **self.roster.deal,
        }
        found = {
            "w": pack(layout.named(job.w)),
            "b": pack(statistics.named(job.b)),
            "down": pack(states(job.down, job.algorithm)),
        }
        self.bytes["down"] += sum(len(a.data) for record in found.values() for a in record.values())
        return RecordDict({"ask": ConfigRecord(ask), **found})

    @property
    def layouts(self) -> tuple[Layout, Layout]:
        """The names and shapes of the model's weights and of its statistics."""
        model = self.here.worker.model
        return model.layout, model.statistics

    def _reply(self, content: RecordDict, job: Job, client: int) -> Reply:
        """A trained client's answer, if it is exactly what this recipe sends."""
        layout, statistics = self.layouts
        answer = config(content, "answer")
        w, b, up = (unpack(content.get(name)) for name in ("w", "b", "up"))
        exact(w, layout.named(job.w), "the weights")
        exact(b, {} if job.algorithm.buffers.policy == "freeze" else statistics.named(job.b), "the statistics")
        exact(up, self.like(job.algorithm), "the state")
        tag, samples, steps = value(answer, "tag", int), value(answer, "samples", int), value(answer, "steps", int)
        if not (0 < tag < 2**63 and 0 < samples < 2**40 and 0 <= steps < 2**40):
            raise ValueError("said of its round what cannot be")
        return Reply(
            layout.pack(w),
            samples,
            client,
            statistics.pack(b) if b else torch.empty(0, dtype=job.w.dtype),
            kept={ACCEPTED: {"tag": torch.tensor(tag)}},
            up=parted(up, job.algorithm),
            steps=steps,
            loss=value(answer, "loss", float),
            seconds=value(answer, "seconds", float),
        )

    def like(self, algorithm: Algorithm) -> dict[str, Tensor]:
        """What a client of this algorithm sends beside weights and statistics, found out by a round on two made-up samples."""
        if algorithm not in self._like:
            federation, model = self.here.worker.federation, self.here.worker.model
            x, y = made_up(federation)
            self._like[algorithm] = states(local_round(algorithm, model.module, [(x, y)]).up, algorithm)
        return self._like[algorithm]

    def _score(self, content: RecordDict, job: Job, client: int) -> Score:
        """A site's evaluation: aggregates only, so that all its samples count as of one class."""
        score = config(content, "score")
        right, samples, loss = value(score, "right", int), value(score, "samples", int), value(score, "loss", float)
        if not 0 <= right <= samples < 2**40:
            raise ValueError("said of its test what cannot be")
        return Score(torch.tensor([right]), torch.tensor([samples]), loss)

    def close(self) -> None:
        self.here.close()

    def __enter__(self) -> Sites:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def made_up(federation: Federation) -> tuple[Tensor, Tensor]:
    """Two samples of the right shape: the first of the test set, or zeros where the server has none."""
    if len(federation.test) > 1:
        return federation.test.gather(torch.arange(2))
    return torch.zeros(2, *federation.train.shape), torch.arange(2) % federation.classes
