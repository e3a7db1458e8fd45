"""The ClientApp: unpack, let the client's role do its work, pack. Images and what is kept are the role's business."""

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
        """A round: the model that came, the model (or update) that goes back."""

    def evaluate(self, request: Request, payload: bytes) -> float | None:
        """The accuracy of the client's final model on its own held-out images, if it has labels."""


def client_app(role_of: Callable[[Context], ClientProtocol]) -> ClientApp:
    """A ClientApp around a role, which is made (or found again) for every message."""
    app = ClientApp()

    @app.query("capabilities")
    def capabilities(message: Message, context: Context) -> Message:
        return Message(pack(role_of(context).capabilities()), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        role, (request, payload) = role_of(context), unpack(message.content, Request)
        echo = request.run, request.nonce, int(request.order["round_number"]), role.capabilities().samples
        try:
            trained, found = role.train(request, payload)
        except NonFiniteError as error:  # names a tensor of the model, nothing of the data
            return Message(pack(Reply(*echo, failed=str(error))), reply_to=message)
        reply = Reply(*echo, found.losses, found.skipped_steps, found.seconds)
        return Message(pack(reply, trained), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        role, (request, payload) = role_of(context), unpack(message.content, Request)
        echo = request.run, request.nonce, int(request.order["round_number"]), role.capabilities().samples
        return Message(pack(Reply(*echo, accuracy=role.evaluate(request, payload))), reply_to=message)

    return app
