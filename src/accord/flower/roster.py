"""Who is connected: which node of the network is which site, and which client of the experiment a site is, for good."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from accord.checkpoint import write_atomically
from accord.flower.wire import PROTOCOL, config, plain, value

_GREETING = 300.0  # seconds that a node has to say who it is


@dataclass
class Seat:
    """What is known of one site."""

    client: int
    samples: int
    tests: int
    classes: int
    shape: list[int]
    nodes: list[int] = field(default_factory=list)  # the newest last; a site without a key has a new one each time it starts


class Roster:
    """The sites by name, in a file that outlives the server, and the nodes that are connected now."""

    def __init__(self, file: Path, clients: int, deal: dict[str, Any], say: Callable[[str], None]) -> None:
        self.file, self.clients, self.deal, self.say = file, clients, deal, say
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
        self.run: str = known.get("run") or secrets.token_hex(8)
        self.sites = {name: Seat(**seat) for name, seat in known.get("sites", {}).items()}
        self.online: dict[int, int] = {}  # client -> node
        self._asked: dict[str, tuple[int, float, str]] = {}  # message -> node, until when, the name that its key stands for
        self._refused: dict[int, str] = {}
        self._looked = 0.0

    def save(self) -> None:
        """Write what is known."""
        write_atomically(
            self.file, json.dumps({"run": self.run, "sites": {name: asdict(seat) for name, seat in self.sites.items()}}, indent=1)
        )

    def name(self, client: int) -> str:
        """The name of the site that a client is."""
        return next((name for name, seat in self.sites.items() if seat.client == client), f"client {client}")

    @property
    def missing(self) -> list[str]:
        """The sites known and not connected, and how many were never seen."""
        away = [name for name, seat in sorted(self.sites.items()) if seat.client not in self.online]
        never = self.clients - len(self.sites)
        return away + ([f"{never} never seen"] if never else [])

    def wait(self, grid: Grid, least: int, poll: float) -> None:
        """Until so many sites are connected."""
        told = ""
        while True:
            self.look(grid)
            if len(self.online) >= least:
                return
            missing = f"waiting for sites: {len(self.online)} of {least} connected (missing: {', '.join(self.missing)})"
            if missing != told:
                self.say(missing)
            told = missing
            time.sleep(poll)

    def look(self, grid: Grid, every: float = 0.5) -> None:
        """See who is connected, and greet whoever is new; at most every so many seconds."""
        if time.monotonic() - self._looked < every:
            return
        self._looked = time.monotonic()
        here = {int(info.node_id): str(info.name) for info in grid.get_nodes()}
        known = {node: seat for seat in self.sites.values() for node in seat.nodes}
        before = set(self.online)
        self.online = {}
        for seat in self.sites.values():
            live = [node for node in seat.nodes if node in here]
            if live:
                self.online[seat.client] = live[-1]
        for client in sorted(before - set(self.online)):
            self.say(f"{self.name(client)} is gone")
        for client in sorted(set(self.online) - before):
            self.say(f"{self.name(client)} is connected: client {client}, {self._seat(client).samples} samples")
        waiting = {node for node, _, _ in self._asked.values()}
        for node, key in here.items():
            if node not in known and node not in waiting and node not in self._refused:
                self._greet(grid, node, key)
        self._listen(grid)

    def _seat(self, client: int) -> Seat:
        return next(seat for seat in self.sites.values() if seat.client == client)

    def _greet(self, grid: Grid, node: int, key: str) -> None:
        ask = ConfigRecord({"protocol": PROTOCOL, "clients": self.clients, "run": self.run, **self.deal})
        message = Message(RecordDict({"ask": ask}), node, "query", ttl=_GREETING)
        for sent in grid.push_messages([message]):
            if sent:
                self._asked[sent] = (node, time.monotonic() + _GREETING, key)

    def _listen(self, grid: Grid) -> None:
        for sent, (node, until, key) in list(self._asked.items()):
            try:
                replies = list(grid.pull_messages([sent]))
            except (ValueError, TypeError, KeyError) as error:
                self._refuse(node, f"answered with bytes that are no message ({type(error).__name__})")
                replies = []
            if replies or time.monotonic() > until:
                self._asked.pop(sent, None)
            for reply in replies:
                if reply.has_content():
                    self._admit(node, key, reply.content)

    def _refuse(self, node: int, why: str) -> None:
        if node not in self._refused:
            self.say(f"node {node} is left out: it {why}")
        self._refused[node] = why

    def _admit(self, node: int, key: str, content: RecordDict) -> None:
        """Give a node the seat that is its site's, or refuse it."""
        try:
            if "refused" in content:
                raise ValueError(plain(value(config(content, "refused"), "why", str), 300))
            about = config(content, "site")
            name = plain(key or value(about, "name", str), 60)
            found = {key: value(about, key, int) for key in ("index", "samples", "tests", "classes")}
            shape = about.get("shape")
            if not isinstance(shape, list) or not all(type(n) is int and 0 < n < 2**31 for n in shape) or len(shape) > 8:
                raise ValueError("did not say of what shape its samples are")
            if min(found["samples"], found["tests"]) < 0 or max(found.values()) >= 2**40 or not 0 < found["classes"] < 2**31:
                raise ValueError("said of its data what cannot be")
            self._seat_for(name, node, found, [int(n) for n in shape])
        except ValueError as error:
            self._refuse(node, str(error))

    def _seat_for(self, name: str, node: int, found: dict[str, int], shape: list[int]) -> None:
        seat, index = self.sites.get(name), found["index"]
        taken = {other.client: at for at, other in self.sites.items() if at != name}
        if seat is None:
            free = [k for k in range(self.clients) if k not in taken]
            if index in taken or (index < 0 and not free):
                raise ValueError(f"calls itself {name!r} and wants the place of {taken.get(index, 'one more client than there are')!r}")
            if index >= self.clients:
                raise ValueError(f"calls itself {name!r} and wants to be client {index}; they are numbered 0 to {self.clients - 1}")
            seat = Seat(index if index >= 0 else free[0], 0, 0, 0, [])
        elif index >= 0 and index != seat.client:
            raise ValueError(f"calls itself {name!r} and wants to be client {index}; that site is client {seat.client}")
        others = next((other for at, other in self.sites.items() if at != name), None)
        if others is not None and others.shape != shape:
            raise ValueError(f"calls itself {name!r} and has samples of shape {tuple(shape)}; the others' are {tuple(others.shape)}")
        nodes = [*(n for n in seat.nodes[-20:] if n != node), node]
        self.sites[name] = Seat(seat.client, found["samples"], found["tests"], found["classes"], shape, nodes)
        self.save()
        self._looked = 0.0
