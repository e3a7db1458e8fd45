"""In front of the SuperLink: who may ask for what, and how much they may send.

Flower serves three interfaces on one port. Clients need one of them (``/v1/fleet``, where every request is signed with the
client's key). The second (``/v1/runtime``) is for the server's own run, on the same machine and with its token. The third
(``/v1/control``) would let anyone who reaches the port start code on this machine: it is closed to everybody.
"""

from __future__ import annotations

import ipaddress
import re
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from fedqssl.deploy.events import Events

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CHUNK = 5 << 20
"""Flower cuts arrays into pieces of this many bytes, one request each."""
REQUEST = CHUNK + (1 << 20)
KEY_HEADER = b"flwr-public-key"
_CHUNKS = re.compile(rb'"arraychunk_ids": \[([\d, ]*)\]')


@dataclass
class Traffic:
    """Of one client, since the server started: bytes of accepted requests and of their answers, and when the last was."""

    received: int = 0
    sent: int = 0
    last_seen: float = 0.0
    message: int = 0
    """Bytes of the message that is being sent now."""


@dataclass
class Guard:
    """The SuperLink with limits; an ASGI application.

    Args:
        app: the SuperLink.
        max_bytes: the largest message.
        events: where refusals are noted.
        names: client names by public key (base64 of PEM, as in the requests' header).
    """

    app: App
    max_bytes: int
    events: Events
    names: dict[bytes, str] = field(default_factory=dict)
    traffic: dict[str, Traffic] = field(default_factory=dict)

    def know(self, name: str, public_key: bytes) -> None:
        """Count what is sent with this key as this client's."""
        self.names[b64encode(public_key)] = name
        self.traffic.setdefault(name, Traffic())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, or refuse."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            raise ConnectionRefusedError(f"{scope['type']} is not served")
        elif scope["path"].startswith("/v1/fleet/"):
            await self._fleet(scope, receive, send)
        elif scope["path"].startswith("/v1/runtime/") and same_machine(scope):
            await self.app(scope, receive, send)
        else:
            self.events.note("refused", path=scope["path"][:200], peer=_peer(scope), why="this path is closed")
            await _answer(send, 403)

    async def _fleet(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self.names.get(dict(scope["headers"]).get(KEY_HEADER, b""), "")
        seen = self.traffic.get(name, Traffic())
        body = await _body(scope, receive)
        why = "its request is too large" if body is None else self._too_much(scope["path"], body, seen)
        if body is None or why:
            self.events.note("refused", client=name, peer=_peer(scope), why=why)
            await _answer(send, 413)
            return
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])
        sizes: list[int] = []

        async def replay() -> MutableMapping[str, Any]:
            return next(parts, None) or await receive()

        async def counted(event: MutableMapping[str, Any]) -> None:
            if event["type"] == "http.response.start":
                sizes.append(int(event["status"]))
            sizes.append(len(event.get("body", b"")))
            await send(event)

        await self.app(scope, replay, counted)
        if sizes and sizes[0] < 400:
            seen.received, seen.sent, seen.last_seen = (
                seen.received + len(body),
                seen.sent + sum(sizes[1:]),
                time.time(),
            )

    def _too_much(self, path: str, body: bytes, seen: Traffic) -> str:
        """Why a piece of a message is not taken; nothing if it is."""
        if path.endswith("/push-messages"):
            seen.message = 0
        elif path.endswith("/push-object"):
            seen.message += len(body)
            if seen.message > self.max_bytes:
                return f"its message is longer than {self.max_bytes} bytes"
            listed = _CHUNKS.search(body, 0, 1 << 20)
            if listed and CHUNK * listed[1].count(b",") > self.max_bytes:
                return f"its message would unfold to more than {self.max_bytes} bytes"
        return ""


def same_machine(scope: Scope) -> bool:
    """Whether a request comes from this machine: over loopback, or from the address it was sent to."""
    client, server = scope.get("client"), scope.get("server")
    if not client:
        return False
    try:
        return ipaddress.ip_address(client[0]).is_loopback or bool(server and client[0] == server[0])
    except ValueError:
        return False


def _peer(scope: Scope) -> str:
    return str((scope.get("client") or ["unknown"])[0])


async def _body(scope: Scope, receive: Receive) -> bytes | None:
    """The request's body; None if it is longer than any that a client has to send."""
    told = dict(scope["headers"]).get(b"content-length", b"0")
    if not told.isdigit() or int(told) > REQUEST:
        return None
    body = bytearray()
    while True:
        event = await receive()
        body += event.get("body", b"")
        if len(body) > REQUEST:
            return None
        if event["type"] != "http.request" or not event.get("more_body"):
            return bytes(body)


async def _answer(send: Send, status: int) -> None:
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"{}"})
