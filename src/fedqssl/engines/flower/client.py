"""The ClientApp: unpack a message, let the client do its work, pack the reply. The client owns its images and its state."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedqssl.engines.flower.wire import Capabilities, Reply, Request, pack, unpack
from fedqssl.federated.client import ClientMetrics
from fedqssl.lowbit import NonFiniteError

RAISED = 2
"""Flower's number for an error of the client's own code."""
Mod = Callable[[Message, Context, Callable[[Message, Context], Message]], Message]


class ClientProtocol(Protocol):
    """A client as the adapter sees it."""

    def capabilities(self) -> Capabilities:
        """What the server may know."""

    def train(self, request: Request, payload: bytes) -> tuple[bytes, ClientMetrics]:
        """Train a round: from the received model to the model (or update) to send back."""

    def evaluate(self, request: Request, payload: bytes) -> float | None:
        """The accuracy of the client's final model on its own held-out images, if it has labels."""


def discreet(message: Message, context: Context, call_next: Callable[[Message, Context], Message]) -> Message:
    """A Flower mod: the server learns only the type of an error, since its text may name files; the rest goes to our log."""
    try:
        return call_next(message, context)
    except Exception as error:
        traceback.print_exc()
        return Message(Error(RAISED, f"{type(error).__name__}, see the client's log"), reply_to=message)


def client_app(client_of: Callable[[Context], ClientProtocol], mods: Sequence[Mod] = ()) -> ClientApp:
    """A ClientApp around a client, which ``client_of`` creates (or looks up) for every message.

    Args:
        client_of: the client of a message's context.
        mods: Flower's, around every message.
    """
    app = ClientApp(mods=list(mods))

    @app.query("capabilities")
    def capabilities(message: Message, context: Context) -> Message:
        return Message(pack(client_of(context).capabilities()), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        client, (request, payload) = client_of(context), unpack(message.content, Request)
        echo = request.run, request.nonce, int(request.order["round_number"]), client.capabilities().samples
        try:
            trained, found = client.train(request, payload)
        except NonFiniteError as error:  # names a tensor of the model, nothing of the data
            return Message(pack(Reply(*echo, failed=str(error))), reply_to=message)
        reply = Reply(*echo, found.losses, found.skipped_steps, found.seconds)
        return Message(pack(reply, trained), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        client, (request, payload) = client_of(context), unpack(message.content, Request)
        echo = request.run, request.nonce, int(request.order["round_number"]), client.capabilities().samples
        return Message(pack(Reply(*echo, accuracy=client.evaluate(request, payload))), reply_to=message)

    return app
