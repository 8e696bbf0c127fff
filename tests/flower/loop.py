"""A grid without a network: messages to sites of this process, which answer by the app that real nodes load."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from accord.deploy.export import settings
from accord.experiment import Experiment
from accord.flower import client_app, server_app

Spoil = Callable[[Message], Message | None]


@dataclass
class Loop(Grid):
    """Nodes by number, each with its settings file; `spoil` may change or lose what a node answers."""

    nodes: dict[int, Path]
    spoil: dict[int, Spoil] = field(default_factory=dict)
    replies: dict[str, Message] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 1

    def set_run(self, run: Any) -> None:
        """Nothing to set."""

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *given: Any, **named: Any) -> Message:
        raise AssertionError("deprecated")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[Any]:
        return [SimpleNamespace(node_id=node, name=self.names.get(node, "")) for node in self.nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found = []
        for message in messages:
            name = f"m{len(self.sent)}"
            message.metadata.__dict__["_message_id"] = name
            self.sent.append(message)
            found.append(name)
            reply = self.answer(message)
            if reply is not None:
                self.replies[name] = reply
        return found

    def answer(self, message: Message) -> Message | None:
        """What the node would send."""
        node = message.metadata.dst_node_id
        if node not in self.nodes:
            return Message(Error(5, "gone"), reply_to=message)
        context = Context(7, node, {"site": str(self.nodes[node])}, RecordDict(), {})
        before = torch.get_rng_state()
        try:
            reply = client_app(copy.deepcopy(message), context)
        except Exception as error:
            reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
        torch.set_rng_state(before)
        return self.spoil[node](reply) if node in self.spoil else reply

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise AssertionError("messages are pushed and pulled")


def site(folder: Path, index: int, more: str = "", split: str = "dirichlet(0.5)", data: str = "digits") -> Path:
    """The settings file of a site that holds one part of the data, or all of its own data without a split."""
    folder.mkdir(parents=True, exist_ok=True)
    text = f'name = "site-{index + 1}"\nstate = "{folder}"\ndata = "{data}"\nsplit = "{split}"\nindex = {index}\n{more}\n'
    (folder / "site.toml").write_text(text)
    return folder / "site.toml"


def play(grid: Grid, experiment: Experiment, state: Path, *, least: int = 0, timeout: float = 0.5, test_here: bool = True) -> None:
    """Run the server's app over a grid."""
    config = settings(experiment, state, least=least, timeout=timeout, test_here=test_here)
    server_app(grid, Context(7, 1, {}, RecordDict(), config))  # type: ignore[arg-type]


def said(state: Path, name: str = "server.log") -> str:
    """What was said on a log."""
    return (state / name).read_text()
