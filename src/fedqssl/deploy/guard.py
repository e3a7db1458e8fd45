"""Access control in front of the SuperLink: who may make which requests, and how large they may be.

Flower serves three interfaces on one port. Clients need one of them (``/v1/fleet``, where every request is signed with the
client's key). The second (``/v1/runtime``) is for the server's own run, on the same machine and with its token. The third
(``/v1/control``) would let anyone who can reach the port run code on this machine: it is closed to everybody.
"""

from __future__ import annotations

import ipaddress
import json
import time
from base64 import b64decode
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import PushObjectRequest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,import-not-found]

from fedqssl.deploy.events import Events
from fedqssl.deploy.versions import HEADER, disagreement, own_versions, read_versions
from fedqssl.listen import Doors, answer

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

Push = Any
"""A ``PushMessagesRequest`` or a ``PushObjectRequest``: protobuf classes, whose types a checker does not know."""
CLOSE = ((b"connection", b"close"),)

CHUNK = 5 << 20
"""Flower splits arrays into pieces of this many bytes, one request each."""
REQUEST = CHUNK + (1 << 20)
STRANGER = 1 << 16
"""Bytes of a request with a key that we do not know; one that asks to join has a few hundred."""
KEY_HEADER = b"flwr-public-key"
PUSHES: dict[str, Push] = {"/v1/fleet/push-messages": PushMessagesRequest, "/v1/fleet/push-object": PushObjectRequest}
"""How a client sends a message: its head, which opens a session, then one object after another."""
ARRAY = ["dtype", "shape", "stype", "arraychunk_ids"]
MAX_LIST = 1 << 16
"""Bytes of the text that lists an array's pieces; that of 4 GiB has about five thousand."""
JOIN = "/v1/fleet/activate-node"
TWIN_SECONDS, JOINS = 120.0, 5
"""Two machines with one key push each other out: they join this often, or come from two addresses, within this time."""
UPGRADE = 426
"""HTTP's status for a client whose version does not fit."""
KEPT = 64
"""Number of messages per client whose sizes are remembered."""


class RefusedError(ValueError):
    """A request is rejected; the message says why."""

    def __init__(self, why: str, status: int = 413) -> None:
        super().__init__(why)
        self.status = status


@dataclass
class Traffic:
    """One client's traffic since the server started: bytes of accepted requests and of their responses, and the last time.

    ``twin`` says that its key seems to be used by two machines; ``joins`` counts how often it has connected anew.
    """

    received: int = 0
    sent: int = 0
    last_seen: float = 0.0
    twin: str = ""
    joins: int = 0


@dataclass
class Places:
    """Where a client's requests come from: a copied folder shows as two addresses in turn, or as joining again and again."""

    address: str = ""
    before: str = ""
    moved: float = -TWIN_SECONDS
    joined: list[float] = field(default_factory=list)

    def look(self, address: str, joins: bool, now: float) -> str:
        """Why two machines seem to use the key; empty if nothing is odd."""
        why = ""
        if address != self.address:
            if address == self.before and now - self.moved < TWIN_SECONDS:
                why = f"its key is used from {address} and {self.address} in turn"
            self.before, self.address, self.moved = self.address, address, now
        if joins:
            self.joined = [*(then for then in self.joined if now - then < TWIN_SECONDS), now][-JOINS:]
            if len(self.joined) == JOINS:
                why = why or f"it joined {JOINS} times in {TWIN_SECONDS:.0f} s"
        return f"{why}; was its folder copied? Every machine needs a client name and a key of its own" if why else ""


@dataclass
class MessageSize:
    """Size of one message so far: bytes sent, and pieces listed by its arrays."""

    session: str = ""
    length: int = 0
    pieces: int = 0


@dataclass
class Outbox:
    """The messages of one client by their ids; ``other`` belongs to no known message (the server was restarted).

    A message that is announced again has a new session, and the size that it had. Not covered: objects that the SuperLink
    still has of an earlier message are not sent again, and so are not counted again.
    """

    messages: dict[str, MessageSize] = field(default_factory=dict)
    other: MessageSize = field(default_factory=MessageSize)

    def size(self, session: str) -> MessageSize:
        """Size of the message sent in this session. Only its client knows the session, so nobody else can add to it."""
        return next((size for size in self.messages.values() if size.session == session), self.other)

    def announced(self, request: PushMessagesRequest, answer: bytes) -> None:
        """Record a message whose objects the SuperLink wants; a message that it rejects changes nothing."""
        response = PushMessagesResponse.FromString(answer)
        if response.objects_to_push:
            key = request.messages_list[0].metadata.message_id
            size = self.messages.setdefault(key, MessageSize())
            size.session = response.session_id
            for old in list(self.messages)[:-KEPT]:
                del self.messages[old]


@dataclass
class Guard:
    """The SuperLink with limits; an ASGI application.

    Args:
        app: the SuperLink.
        max_bytes: the largest message.
        events: the log of rejected requests.
        doors: the server's connections; those of requests with a known key do not make room for others.
        names: client names by public key (PEM).
        outdated: clients that were refused because of their versions, and which side to upgrade.
    """

    app: ASGIApp
    max_bytes: int
    events: Events
    doors: Doors = field(default_factory=Doors)
    names: dict[bytes, str] = field(default_factory=dict)
    traffic: dict[str, Traffic] = field(default_factory=dict)
    outboxes: dict[str, Outbox] = field(default_factory=dict)
    places: dict[str, Places] = field(default_factory=dict)
    outdated: dict[str, str] = field(default_factory=dict)

    def know(self, name: str, public_key: bytes) -> None:
        """Count what is sent with this key as this client's."""
        self.names[public_key] = name
        self.traffic.setdefault(name, Traffic())
        self.outboxes.setdefault(name, Outbox())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward the request or reject it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            raise ConnectionRefusedError(f"{scope['type']} is not served")
        elif scope["path"].startswith("/v1/fleet/"):
            await self._fleet(scope, receive, send)
        elif scope["path"].startswith("/v1/runtime/") and same_machine(scope):
            self._prove(scope)
            await self.app(scope, receive, send)
        else:
            self.events.refused(path=scope["path"][:200], peer=_peer(scope), why="this path is closed")
            await answer(send, 403, {}, CLOSE)

    async def _fleet(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = self.names.get(_key(scope), "")
        seen, outbox = self.traffic.get(name) or Traffic(), self.outboxes.get(name) or Outbox()
        if name:
            self._prove(scope)
        if name and scope["path"] == JOIN and (why := self._versions(name, scope)):
            await answer(send, UPGRADE, {"error": why}, CLOSE)
            return
        try:
            body = await _body(scope, receive, REQUEST if name else STRANGER)
            push = _push(scope["path"], body)
            size = outbox.size(push.session_id) if isinstance(push, PushObjectRequest) else MessageSize()
            listed = self._check(push, len(body), size)
        except RefusedError as error:
            self.events.refused(client=name, peer=_peer(scope), why=str(error))
            await answer(send, error.status, {}, CLOSE)
            return
        # Counted before the SuperLink has checked the signature, so that requests at the same time cannot exceed the limit
        # together, and taken back if it refuses. It stays counted if there is no answer: the object may have been stored.
        size.length, size.pieces = size.length + len(body), size.pieces + listed
        status, sent = await self._pass_on(scope, body, receive, send, push, outbox)
        if status >= 400:
            size.length, size.pieces = size.length - len(body), size.pieces - listed
        elif status:
            seen.received, seen.sent, seen.last_seen = seen.received + len(body), seen.sent + sent, time.time()
            seen.joins += scope["path"] == JOIN
            self._look(name, seen, scope)

    def _versions(self, name: str, scope: Scope) -> str | None:
        """Why the versions of a client that joins do not fit ours; a client of before this header is asked later."""
        told = next((value for key, value in scope["headers"] if key == HEADER.encode()), b"")
        why = disagreement(read_versions(told.decode("latin-1")), own_versions())
        if why and self.outdated.get(name) != why:
            self.events.note("other version", client=name, why=why)
        if why:
            self.outdated[name] = why
        else:
            self.outdated.pop(name, None)
        return why

    def _look(self, name: str, seen: Traffic, scope: Scope) -> None:
        """Notice a client whose key two machines use, and name it."""
        place = self.places.setdefault(name, Places())
        why = place.look(_peer(scope), scope["path"] == JOIN, time.monotonic())
        if why and not seen.twin:
            self.events.note("two machines", client=name, why=why)
        seen.twin = why or seen.twin

    def _prove(self, scope: Scope) -> None:
        """The key was found before the body is read; whether the signature is right, the SuperLink checks after it."""
        if scope.get("client"):
            self.doors.prove((scope["client"][0], scope["client"][1]))

    async def _pass_on(
        self, scope: Scope, body: bytes, receive: Receive, send: Send, push: Push | None, outbox: Outbox
    ) -> tuple[int, int]:
        """Let the SuperLink answer; returns the HTTP status (0 if there was none) and the bytes sent."""
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])
        status, sent = 0, 0
        held: list[Message] = []

        async def replay() -> Message:
            return next(parts, None) or await receive()

        async def counted(event: Message) -> None:
            nonlocal status, sent
            if event["type"] == "http.response.start":
                status = int(event["status"])
            sent += len(event.get("body", b""))
            if isinstance(push, PushMessagesRequest):
                held.append(event)  # no object may come before we know its session
            else:
                await send(event)

        await self.app(scope, replay, counted)
        if isinstance(push, PushMessagesRequest) and 0 < status < 400:
            outbox.announced(push, b"".join(event.get("body", b"") for event in held))
        for event in held:
            await send(event)
        return status, sent

    def _check(self, push: Push | None, length: int, size: MessageSize) -> int:
        """How many pieces an object lists; RefusedError if that, or its length, is too much for its message."""
        if isinstance(push, PushMessagesRequest):
            heads = [message.metadata for message in push.messages_list]
            if any(h.src_node_id != push.node.node_id or not h.reply_to_message_id for h in heads):
                # but, say, an order to another client
                raise RefusedError("its message is not a reply under its own name", 403)
        if not isinstance(push, PushObjectRequest):
            return 0
        if size.length + length > self.max_bytes:
            raise RefusedError(f"its message is longer than {self.max_bytes} bytes")
        listed = pieces(push.object_content)
        if listed and CHUNK * (size.pieces + listed - 1) >= self.max_bytes:  # the last piece may be short
            raise RefusedError(f"its message would unfold to more than {self.max_bytes} bytes")
        return listed


def pieces(content: bytes) -> int:
    """How many pieces an object lists, to be assembled by the reader; one piece may be listed many times.

    An array must be written as Flower itself writes it: if two notations were allowed, one might be counted and the other read.
    """
    head, _, text = content.partition(b"\0")
    kind = head.split(b" ")[0]
    if kind == b"ArrayChunk" and len(text) > CHUNK:
        raise RefusedError(f"a piece of its message is longer than {CHUNK} bytes")
    if kind != b"Array":
        return 0
    try:
        told = json.loads(text) if len(text) <= MAX_LIST else {}
        listed = told["arraychunk_ids"]
        if list(told) == ARRAY and all(type(i) is int for i in listed) and json.dumps(told).encode() == text:
            return len(listed)
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise RefusedError("an array of its message has an unknown form")


def _push(path: str, body: bytes) -> Push | None:
    """The part of a message that a request carries, if any; the SuperLink itself rejects what cannot be read."""
    try:
        return PUSHES[path].FromString(body) if path in PUSHES else None
    except DecodeError:
        return None


def _key(scope: Scope) -> bytes:
    """The public key that a request claims: decoded as Flower does it, the first if there are several."""
    told = next((value for key, value in scope["headers"] if key == KEY_HEADER), b"")
    try:
        return b64decode(told, validate=True)
    except ValueError:
        return b""


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


async def _body(scope: Scope, receive: Receive, most: int) -> bytes:
    """The request's body; RefusedError if it is longer than any legitimate request."""
    told = dict(scope["headers"]).get(b"content-length", b"0")
    if not told.isdigit() or len(told) > 20 or int(told) > most:
        raise RefusedError("its request is too large")
    body = bytearray()
    while True:
        event = await receive()
        body += event.get("body", b"")
        if len(body) > most:
            raise RefusedError("its request is too large")
        if event["type"] != "http.request" or not event.get("more_body"):
            return bytes(body)
