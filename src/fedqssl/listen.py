"""Shared by our two HTTP servers: a listening socket, limits on connections, complete responses. Imports nothing heavy."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import random
import socket
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Send


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


TLS_RECORD = 16 << 10

Peer = tuple[str, int]
"""Address and port of whoever connects; no two open connections have the same."""


@dataclass(frozen=True)
class ConnectionLimits:
    """What a connection may take before anything is known about it.

    Args:
        total: connections at once.
        each: connections of one address at once.
        head_bytes: length of a request's line and headers.
        head_seconds: time for these.
        body_seconds: time for the rest of a request of a caller that has not proven anything.
        proven_seconds: the same for one that has.
    """

    total: int = 512
    each: int = 64
    head_bytes: int = 32 << 10
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    proven_seconds: float = 300.0


@dataclass
class Doors:
    """The open connections of a server. Where there are too many, one that has proven nothing makes room.

    It is one of the address that has most of them, so that a crowd makes room for itself; and which of these is left to chance:
    if it were the oldest, whoever connects faster than others finish TLS would keep them all out.
    """

    limits: ConnectionLimits = field(default_factory=ConnectionLimits)
    _drop: dict[Peer, Callable[[], None]] = field(default_factory=dict)
    _proven: set[Peer] = field(default_factory=set)
    _count: dict[str, int] = field(default_factory=dict)

    def enter(self, peer: Peer, drop: Callable[[], None]) -> bool:
        """Whether a new connection may stay; ``drop`` ends it later, if it must make room."""
        if peer in self._drop:
            return True
        crowded = self._count.get(peer[0], 0) >= self.limits.each
        if (crowded or len(self._drop) >= self.limits.total) and not self._make_room(peer[0] if crowded else None):
            return False
        self._drop[peer] = drop
        self._count[peer[0]] = self._count.get(peer[0], 0) + 1
        return True

    def _make_room(self, host: str | None) -> bool:
        waiting = [p for p in self._drop if p not in self._proven and host in (None, p[0])]
        if not waiting:
            return False
        crowd = Counter(p[0] for p in waiting).most_common(1)[0][0]
        leaving = random.choice([p for p in waiting if p[0] == crowd])
        drop = self._drop[leaving]
        self.leave(leaving)
        drop()
        return True

    def leave(self, peer: Peer) -> None:
        """A connection has ended."""
        if self._drop.pop(peer, None) is not None:
            self._proven.discard(peer)
            self._count[peer[0]] -= 1
            if not self._count[peer[0]]:
                del self._count[peer[0]]

    def prove(self, peer: Peer, proven: bool = True) -> None:
        """A connection belongs to a caller that we serve, and does not make room for others; or no longer."""
        if proven and peer in self._drop:
            self._proven.add(peer)
        else:
            self._proven.discard(peer)

    def proven(self, peer: Peer) -> bool:
        """Whether :meth:`prove` was called for this connection."""
        return peer in self._proven


class LimitedConnection:
    """Limits on one connection: on the length of headers, and on the time for a request.

    Mixed with one of uvicorn's HTTP protocols, whose ``cycle`` is the current request if its headers are complete.
    """

    doors: Doors
    complete_is_proof: bool
    peer: Peer | None = None
    timer: asyncio.TimerHandle | None = None
    head = 0
    client: Peer | None
    cycle: Any
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Let the connection in, or end it."""
        super().connection_made(transport)  # type: ignore[misc]
        self.peer = self.client or ("unknown", id(self))
        if self.doors.enter(self.peer, transport.abort):
            self._end_after(self.doors.limits.head_seconds)
        else:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._end_after(None)
        if self.peer is not None:
            self.doors.leave(self.peer)
        super().connection_lost(exc)  # type: ignore[misc]

    def _end_after(self, seconds: float | None) -> None:
        """End the connection if the rest does not come in time."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

    def _expected(self) -> tuple[str, int]:
        """What is to come, and for which request: its head, its body, or nothing before our response."""
        if self.cycle is None or self.cycle.response_complete:
            return "head", 0
        return ("body" if self.cycle.more_body else "nothing"), id(self.cycle)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived, and count it as long as it is not a complete head."""
        before = self._expected()
        super().data_received(data)  # type: ignore[misc]
        now = self._expected()
        if self.transport.is_closing():
            return
        if now == before and now[0] != "body":
            self._more_head(len(data), now[0] == "head")
        elif now == before:
            self.head = 0
        else:
            self.head = 0
            self._advanced(now[0])

    def _more_head(self, count: int, waiting: bool) -> None:
        """More of a head that is not complete yet."""
        self.head += count
        if self.head > self.doors.limits.head_bytes:
            self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n")
            self.transport.close()
        elif self.timer is None and waiting:
            self._end_after(self.doors.limits.head_seconds)

    def _advanced(self, expected: str) -> None:
        """A head, or a whole request, is complete."""
        assert self.peer is not None
        limits = self.doors.limits
        slow = limits.proven_seconds if self.doors.proven(self.peer) else limits.body_seconds
        self._end_after(slow if expected == "body" else None)
        if expected == "nothing" and self.complete_is_proof:
            self.doors.prove(self.peer)

    def on_response_complete(self) -> None:
        """The caller has its answer."""
        if self.complete_is_proof and self.peer is not None:
            self.doors.prove(self.peer, False)
        super().on_response_complete()  # type: ignore[misc]


def limited_protocol(doors: Doors, complete_is_proof: bool) -> type[asyncio.Protocol]:
    """Uvicorn's HTTP protocol, with limits on connections.

    Args:
        doors: the connections, and their limits.
        complete_is_proof: a caller is served from a complete request to its response; else the application says who is.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    about = {"doors": doors, "complete_is_proof": complete_is_proof}
    return type("LimitedProtocol", (LimitedConnection, AutoHTTPProtocol), about)


class CountedSocket(socket.socket):
    """A connection that says when it has ended."""

    left: Callable[[], None] | None = None

    def close(self) -> None:
        """Close, once."""
        if self.left is not None:
            self.left()
            self.left = None
        super().close()


class ListeningSocket(socket.socket):
    """A listening socket whose connections are limited before TLS begins; of use with asyncio's own loop only."""

    doors: Doors | None = None

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection.

        Raises:
            ConnectionAbortedError: it may not stay.
        """
        number, address = self._accept()  # type: ignore[attr-defined]
        found = CountedSocket(self.family, self.type, self.proto, fileno=number)
        doors, peer = self.doors, (address[0], address[1])
        if doors is None:
            return found, address
        if not doors.enter(peer, lambda: _hang_up(found)):
            found.close()
            raise ConnectionAbortedError(f"too many connections from {peer[0]}")
        found.left = lambda: doors.leave(peer)
        return found, address


def _hang_up(sock: socket.socket) -> None:
    """End a connection that an event loop is reading from: it notices the end, and closes it."""
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def bind(host: str, port: int, doors: Doors | None = None) -> socket.socket:
    """A listening socket; with ``doors``, connections are limited as soon as they are accepted.

    Raises:
        OSError: the address is in use or not on this machine; the message says what to do.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = ListeningSocket(family, kind, protocol)
        found.doors = doors
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"cannot listen on {host} port {port} ({reason}); choose another --port or --host") from error
    return found


def small_tls_buffers() -> None:
    """Let asyncio set aside as much as a TLS record for each connection, and not 256 KiB, before it has said anything."""
    if hasattr(sslproto.SSLProtocol, "max_size"):  # since Python 3.11
        sslproto.SSLProtocol.max_size = TLS_RECORD


async def answer(
    send: Send, status: int, values: Mapping[str, str], headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a complete JSON response."""
    body = json.dumps(values).encode()
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *headers]})
    await send({"type": "http.response.body", "body": body})


__all__ = ["ConnectionLimits", "Doors", "answer", "bind", "is_loopback", "limited_protocol", "small_tls_buffers"]
