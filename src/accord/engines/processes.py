"""The engine of many processes on one machine: persistent workers, one thread each, weights and answers in shared memory."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from torch import nn

from accord.client import Paused
from accord.data.federation import Federation
from accord.engines import Lookup, one_thread, stateless
from accord.engines.arena import Arena
from accord.engines.crew import DEATHS, Hand, Lost, dismiss, hire, portable, ready, receive, send
from accord.engines.plan import Task, plan
from accord.jobs import Job, Train, Worker

_SLOTS = 2  # tasks that a worker may hold: one running, one waiting
_WORTH = 0.003  # seconds of idle workers in a round that make cutting a client in two worth it


class _Desk:
    """A worker as this side sees it: its process, shared memory for each way and slot, and the tasks it holds."""

    def __init__(self, hand: Hand) -> None:
        self.hand = hand
        self.inbox = [Arena() for _ in range(_SLOTS)]
        self.outbox = [Arena() for _ in range(_SLOTS)]
        self.tasks: dict[int, Task] = {}
        self.knows_job = False

    def free(self) -> int:
        """A slot that holds no task."""
        return next(slot for slot in range(_SLOTS) if slot not in self.tasks)


class Processes:
    """Spawned workers that stay. Clients go longest first to whoever is free; a worker that dies is replaced and its clients run again.

    The digest of a run does not depend on the number of workers, on who ran what, or on who died.
    """

    name = "processes"

    def __init__(self, module: nn.Module, federation: Federation, *, workers: int, device: str = "cpu") -> None:
        self._restore = one_thread()
        self._start = (copy.deepcopy(module), federation, device)
        self._job = Arena()
        self._paused: dict[int, Paused] = {}
        self._deaths: dict[int, int] = {}
        self._pace: float | None = None  # seconds for one unit of a job's cost, seen so far
        self._workers = workers
        self.desks: list[_Desk] = []
        self._man()

    def _man(self) -> None:
        """Hire until every desk has its worker."""
        while len(self.desks) < self._workers:
            self.desks.append(_Desk(hire(serve, *self._start)))

    def map(self, job: Job, clients: Sequence[int], kept: Lookup = stateless) -> Iterator[tuple[int, Any]]:
        self._man()
        costs = {client: job.cost(self._start[1], client) for client in clients}
        cut = isinstance(job, Train) and self._start[2] == "cpu" and self._pace
        queues = plan(costs, len(self.desks), worth=_WORTH / self._pace if cut and self._pace else None)
        packed = self._job.pack(job)
        for desk in self.desks:
            desk.knows_job = False
        left = len(clients)
        try:
            while left:
                for at in range(len(self.desks)):
                    self._feed(at, queues, packed, kept)
                working = {desk.hand: desk for desk in self.desks if desk.tasks}
                answers = []
                for hand in ready(working):
                    at = self.desks.index(working[hand])
                    answer = self._receive(at, queues)
                    if answer is not None:
                        self._learn(answer, costs)
                        answers.append(answer)
                    self._feed(at, queues, packed, kept)  # before the server looks at the answer, so that nobody waits for that
                left -= len(answers)
                yield from answers
        except KeyboardInterrupt:  # between any two lines: what the workers hold and what the pipes hold is unknown
            self.close()
            raise
        finally:
            self._drain()

    def _feed(self, at: int, queues: list[deque[Task]], packed: bytes, kept: Lookup) -> None:
        """Give a worker what it can hold: not the last clients before it needs them, as others may be free sooner."""
        desk = self.desks[at]
        room = _SLOTS if sum(map(len, queues)) > len(self.desks) or self._paused.keys() & {t.client for t in queues[at]} else 1
        while len(desk.tasks) < room and (task := self._next(queues, at)) is not None:
            if not desk.knows_job:
                send(desk.hand, ("job", 0, self._job.block, packed))
                desk.knows_job = True
            slot = desk.free()
            desk.tasks[slot] = task
            paused = self._paused[task.client] if task.resumed else None
            arena = desk.inbox[slot]
            asked = arena.pack((task.client, kept(task.client), paused, task.stop))
            if not send(desk.hand, ("task", slot, arena.take(), asked)):
                return

    def _next(self, queues: list[deque[Task]], at: int) -> Task | None:
        """The next task of a worker: its own, or a whole client from the worker that has most left."""
        own = queues[at]
        for task in own:
            if not task.resumed or task.client in self._paused:
                own.remove(task)
                return task
        for queue in sorted(queues, key=len, reverse=True):
            for task in reversed(queue):
                if not task.resumed and task.stop is None:
                    queue.remove(task)
                    return task
        return None

    def _receive(self, at: int, queues: list[deque[Task]]) -> tuple[int, Any] | None:
        """One message of a worker: an answer, or nothing when it handed on a client or died."""
        desk = self.desks[at]
        message = receive(desk.hand)
        if message is None:
            self._replace(at, queues)
            return None
        slot, block, packed, failure = message
        task = desk.tasks.pop(slot)
        if failure is not None:
            raise failure
        desk.outbox[slot].give(block)
        answer = desk.outbox[slot].unpack(packed)
        if task.stop is not None:
            self._paused[task.client] = answer
            return None
        return task.client, answer

    def _replace(self, at: int, queues: list[deque[Task]]) -> None:
        """Hire anew for a worker that died; the clients it held start again from the beginning of their round."""
        desk = self.desks[at]
        for task in desk.tasks.values():
            self._deaths[task.client] = self._deaths.get(task.client, 0) + 1
            if self._deaths[task.client] >= DEATHS:
                raise Lost(
                    f"{DEATHS} workers died while training client {task.client} (the last with {desk.hand.fate}): "
                    "out of memory? Use fewer workers or a smaller batch"
                )
            for queue in queues:
                for piece in [t for t in queue if t.client == task.client]:
                    queue.remove(piece)
            queues[at].appendleft(Task(task.client))
        dismiss([desk.hand])
        self.desks[at] = _Desk(hire(serve, *self._start))

    def _learn(self, answer: tuple[int, Any], costs: dict[int, int]) -> None:
        client, reply = answer
        seconds = getattr(reply, "seconds", 0.0)
        if seconds and costs[client]:
            seen = seconds / costs[client]
            self._pace = seen if self._pace is None else 0.8 * self._pace + 0.2 * seen

    def _drain(self) -> None:
        """Wait for what still runs when a round is abandoned, so that the next one finds idle workers."""
        self._paused.clear()
        for at, desk in enumerate(self.desks):
            while desk.tasks:
                message = receive(desk.hand)
                if message is None:
                    self.desks[at] = _Desk(hire(serve, *self._start))
                    break
                slot, block, _, _ = message
                desk.tasks.pop(slot)
                desk.outbox[slot].give(block)

    def close(self) -> None:
        dismiss(desk.hand for desk in self.desks)
        self.desks = []
        self._restore()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def serve(pipe: Connection, module: nn.Module, federation: Federation, device: str) -> None:
    """A worker's life: take jobs and tasks from the pipe and answer."""
    worker = Worker(copy.deepcopy(module), federation, device)  # what arrives shares memory with the other workers
    inbox, outbox = [Arena() for _ in range(_SLOTS)], [Arena() for _ in range(_SLOTS)]
    shared = Arena()
    job: Job | None = None
    while True:
        name, slot, block, packed = pipe.recv()
        if name == "job":
            shared.give(block)
            job = shared.unpack(packed, copy=False)
            continue
        assert job is not None
        inbox[slot].give(block)
        pipe.send(_answer(worker, job, slot, inbox[slot].unpack(packed, copy=False), outbox[slot]))


def _answer(worker: Worker, job: Job, slot: int, asked: Any, outbox: Arena) -> tuple[int, Any, bytes, Exception | None]:
    client, kept, paused, stop = asked
    try:
        if isinstance(job, Train):
            packed = outbox.pack(job.run_until(worker, client, kept, paused, stop))
        else:
            packed = outbox.pack(job.run(worker, client, kept))
    except Exception as error:
        return slot, None, b"", portable(error)
    return slot, outbox.take(), packed, None
