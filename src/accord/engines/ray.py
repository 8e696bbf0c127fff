"""The engine of a cluster: Ray actors that stay, each with clients of its own, which send back one sum a round."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from accord.data.federation import Federation
from accord.engines import Lookup, one_thread, stateless
from accord.engines.actor import Actor, Key, pack, unpack
from accord.engines.cluster import begin
from accord.engines.crew import DEATHS, Lost
from accord.engines.plan import plan
from accord.jobs import Job, Train
from accord.partial import Partial
from accord.pieces import Pieces
from accord.store import Store

_DEATHS = ("RayActorError", "ObjectLostError", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError")
_START = 120.0  # seconds for the actors to find a place and start


class Ray:
    """Each client belongs to one actor, which keeps its state; the weights are put into Ray once a round, and each actor sends one sum.

    What clients keep is copied to the server's store as well, once a round. An actor that dies, alone or with its machine, is replaced:
    its clients' states are sent from there and they run again, with the same result to the bit, for the sums are exact.
    """

    name = "ray"

    def __init__(self, module: nn.Module, federation: Federation, *, workers: int, device: str = "cpu", address: str = "") -> None:
        self._ray, self._leave = begin(address, workers)
        self._restore = one_thread()
        self._store: Store | None = None
        self._era = 0  # how many stores there were
        try:
            cpus = int(self._ray.cluster_resources().get("CPU", 0))
            count = workers or cpus
            if not 0 < count <= cpus:
                raise ValueError(f"this Ray cluster has {cpus} CPUs, and {count} workers were asked: write --workers {cpus}")
            sizes = federation.clients.sizes
            shares = plan({k: int(sizes[k]) for k in range(len(federation.clients))}, count)
            self._owner = {task.client: at for at, share in enumerate(shares) for task in share}
            self._device = device
            self._start = self._ray.put(pack((Pieces(), copy.deepcopy(module), federation, device)))
            self._deaths = [0] * count
            self.actors = [self._hire(cpus=1) for _ in range(count)]
            self._wait(cpus)
        except BaseException:
            self.close()
            raise

    def _hire(self, cpus: int) -> Any:
        """A new actor, somewhere in the cluster. One that replaces another takes no CPU in Ray's books: the cluster may have shrunk."""
        gpus = self._ray.cluster_resources().get("GPU", 0) / len(self._deaths) if self._device.startswith("cuda") else 0
        options = {"num_cpus": cpus, "num_gpus": min(gpus, 1), "scheduling_strategy": "SPREAD"}
        return self._ray.remote(Actor).options(**options).remote(self._start)

    def _wait(self, cpus: int) -> None:
        there = [actor.pid.remote() for actor in self.actors]
        _, late = self._ray.wait(there, num_returns=len(there), timeout=_START)
        if late:
            raise ValueError(
                f"after {_START:.0f} s {len(late)} of {len(there)} workers have no free CPU of the cluster's {cpus}: try fewer"
            )
        try:
            self._ray.get(there)
        except self._ray.exceptions.RayError as error:
            reason = " ".join(str(getattr(error, "cause", None) or error).split())[-300:]
            raise ValueError(f"a Ray worker could not start; every machine needs the same accord and the same files: {reason}") from None

    def sums(self, job: Train, clients: Sequence[int], store: Store) -> Iterator[Partial]:
        """What these clients' replies add up to, one part from each actor, as they come."""
        keys = self._keys(clients, store)
        after = {k: (self._era, store.versions.get(k, 0) + 1) for k in clients}
        yield from self._round(job, keys, store.get, after)

    def map(self, job: Job, clients: Sequence[int], kept: Lookup = stateless) -> Iterator[tuple[int, Any]]:
        store = getattr(kept, "__self__", None)
        keys = self._keys(clients, store if isinstance(store, Store) else None)
        for answers in self._round(job, keys, kept):
            yield from answers.items()

    def _keys(self, clients: Sequence[int], store: Store | None) -> dict[int, Key | None]:
        """Which version of each client's state is in force, as far as actors may hold it; those of another store are others."""
        if store is None:
            return dict.fromkeys(clients)
        if store is not self._store:
            self._store, self._era = store, self._era + 1
        return {k: (self._era, store.versions[k]) if k in store.versions else None for k in clients}

    def _round(self, job: Job, keys: Mapping[int, Key | None], kept: Lookup, after: Mapping[int, Key] | None = None) -> Iterator[Any]:
        """Ask every actor about its clients and hand over the answers as they come; an actor that dies is replaced and asked again."""
        mine: dict[int, dict[int, Key | None]] = {}
        for client, key in keys.items():
            mine.setdefault(self._owner.get(client, client % len(self.actors)), {})[client] = key
        ref = self._ray.put(pack(job))

        def ask(at: int, lacking: Sequence[int] = ()) -> Any:
            unheld = [*lacking, *(k for k, key in mine[at].items() if key is None)]
            sent = {k: state for k in unheld if (state := kept(k))}
            here = {k: after[k] for k in mine[at]} if after is not None else None
            return self.actors[at].answer.remote(ref, mine[at], pack(sent) if sent else None, here)

        asked = {ask(at): at for at in mine}
        while asked:
            (done, *_), _ = self._ray.wait(list(asked), num_returns=1)
            at = asked.pop(done)
            answer = self._take(done, at, list(mine[at]))
            if isinstance(answer, Exception):
                raise answer
            if answer is None or isinstance(answer, list):
                asked[ask(at, answer or ())] = at
            else:
                self._deaths[at] = 0
                yield unpack(answer)

    def _take(self, done: Any, at: int, clients: Sequence[int]) -> Any:
        """An actor's answer, or None when the actor or its machine is gone; then it is replaced."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(done)
        except tuple(getattr(errors, name) for name in _DEATHS) as error:
            self._deaths[at] += 1
            if self._deaths[at] >= DEATHS:
                which, reason = ", ".join(map(str, clients[:5])), " ".join(str(error).split())[:200]
                raise Lost(
                    f"{DEATHS} Ray workers died while training clients {which} (out of memory? use fewer workers): {reason}"
                ) from None
            self._ray.kill(self.actors[at])
            self.actors[at] = self._hire(cpus=0)
            print(f"accord: a Ray worker died; its {len(clients)} clients of this round run again elsewhere", file=sys.stderr)
            return None

    def close(self) -> None:
        """End the actors, and Ray if this engine began it."""
        for actor in getattr(self, "actors", []):
            self._ray.kill(actor)
        self.actors = []
        self._leave()
        self._leave = lambda: None
        self._restore()

    def __enter__(self) -> Ray:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
