"""The ClientApp: unpack a message, let the client do its work, pack the reply. The client owns its images and its state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedqssl.engines.flower.wire import Capabilities, Reply, Request, pack, unpack
from fedqssl.federated.client import ClientMetrics
from fedqssl.lowbit import NonFiniteError


class ClientProtocol(Protocol):
    """A client as the adapter sees it."""

    def capabilities(self) -> Capabilities:
        """What the server may know."""

    def train(self, request: Request, payload: bytes) -> tuple[bytes, ClientMetrics]:
        """Train a round: from the received model to the model (or update) to send back."""

    def evaluate(self, request: Request, payload: bytes) -> float | None:
        """The accuracy of the client's final model on its own held-out images, if it has labels."""


def client_app(client_of: Callable[[Context], ClientProtocol]) -> ClientApp:
    """A ClientApp around a client, which ``client_of`` creates (or looks up) for every message."""
    app = ClientApp()

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
