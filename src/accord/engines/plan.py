"""Who does what in a round: longest client first, and one client cut in two where that evens out the workers."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """A client's job, or one piece of it: up to `stop` steps, or (`resumed`) from where the other piece stopped."""

    client: int
    stop: int | None = None
    resumed: bool = False


def plan(costs: Mapping[int, int], workers: int, worth: float | None = None) -> list[deque[Task]]:
    """Each worker's tasks in order, for clients of these costs.

    Longest first, equal ones in the order given, each to the worker with the least to do. Where that would leave workers idle for more
    than `worth` units of cost, the round is laid out end to end and cut evenly instead (McNaughton, 1959): a client on a cut does its
    first steps at the start of one worker's round and its last steps at the end of another's, so that the two pieces never overlap.

    >>> [[(t.client, t.stop) for t in queue] for queue in plan({0: 10, 1: 10, 2: 10}, 2)]
    [[(0, None), (2, None)], [(1, None)]]
    >>> [[(t.client, t.stop) for t in queue] for queue in plan({0: 10, 1: 10, 2: 10}, 2, worth=1)]
    [[(0, None), (1, None)], [(1, 5), (2, None)]]
    """
    longest = sorted(costs, key=lambda k: -costs[k])
    queues: list[deque[Task]] = [deque() for _ in range(workers)]
    load = [0] * workers
    for client in longest:
        least = load.index(min(load))
        queues[least].append(Task(client))
        load[least] += costs[client]
    share = max(-(-sum(load) // workers), max(costs.values(), default=0))
    if worth is None or max(load) - share <= worth:
        return queues
    return _cut(costs, longest, workers, share)


def _cut(costs: Mapping[int, int], longest: list[int], workers: int, share: int) -> list[deque[Task]]:
    queues: list[deque[Task]] = [deque() for _ in range(workers)]
    last: list[Task | None] = [None] * workers
    at, room = 0, share
    for client in longest:
        if costs[client] <= room:
            queues[at].append(Task(client))
            room -= costs[client]
        else:
            rest = costs[client] - room
            if room:
                last[at] = Task(client, resumed=True)
                queues[at + 1].append(Task(client, stop=rest))
            else:
                queues[at + 1].append(Task(client))
            at, room = at + 1, share - rest
    for queue, task in zip(queues, last, strict=True):
        if task is not None:
            queue.append(task)
    return queues
