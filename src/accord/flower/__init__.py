"""Accord on Flower: the two components that its nodes load, `accord.flower:server_app` and `accord.flower:client_app`."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """The server: the experiment of the app's settings, over the sites that are connected."""
    from accord.flower.service import serve as play

    play(grid, context)


@client_app.query()
def hello(message: Message, context: Context) -> Message:
    """A site says who it is."""
    from accord.flower import site

    return Message(site.answered(message.content, site.here(context), site.hello), reply_to=message)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """A site trains."""
    from accord.flower import site

    return Message(site.answered(message.content, site.here(context), site.perform), reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """A site tests."""
    from accord.flower import site

    return Message(site.answered(message.content, site.here(context), site.perform), reply_to=message)
