"""Shared by our two HTTP servers: a listening socket, limits on connections, complete responses. Imports nothing heavy."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import socket
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
    """The open connections of a server. Where there are too many, the oldest that has proven nothing makes room."""

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
        waiting = (p for p in self._drop if p not in self._proven and host in (None, p[0]))
        oldest = next(waiting, None)
        if oldest is None:
            return False
        drop = self._drop[oldest]
        self.leave(oldest)
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


def limited_protocol(doors: Doors, complete_is_proof: bool) -> type[asyncio.Protocol]:
    """Uvicorn's HTTP protocol, with limits on connections, on the length of headers, and on the time for a request.

    Args:
        doors: the connections, and their limits.
        complete_is_proof: a caller is served from a complete request to its response; else the application says who is.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    limits, base = doors.limits, AutoHTTPProtocol

    class Limited(base):  # type: ignore[misc, valid-type]
        """One connection; its ``cycle`` is the current request, if its headers are complete."""

        peer: Peer | None = None
        timer: asyncio.TimerHandle | None = None
        head = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.peer = self.client or ("unknown", id(self))
            if doors.enter(self.peer, transport.abort):
                self.end_after(limits.head_seconds)
            else:
                transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self.end_after(None)
            if self.peer is not None:
                doors.leave(self.peer)
            super().connection_lost(exc)

        def end_after(self, seconds: float | None) -> None:
            """End the connection if the rest does not come in time."""
            if self.timer is not None:
                self.timer.cancel()
            self.timer = None if seconds is None else self.loop.call_later(seconds, self.transport.abort)

        def expected(self) -> tuple[str, int]:
            """What is to come, and for which request: its head, its body, or nothing before our response."""
            cycle = self.cycle
            if cycle is None or cycle.response_complete:
                return "head", 0
            return ("body" if cycle.more_body else "nothing"), id(cycle)

        def data_received(self, data: bytes) -> None:
            before = self.expected()
            super().data_received(data)
            now = self.expected()
            if self.transport.is_closing():
                return
            if now == before and now[0] != "body":  # a head that is not complete yet
                self.head += len(data)
                if self.head > limits.head_bytes:
                    self.transport.write(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n\r\n")
                    self.transport.close()
                elif self.timer is None and now[0] == "head":
                    self.end_after(limits.head_seconds)
                return
            self.head = 0
            if now == before:
                return
            assert self.peer is not None
            slow = limits.proven_seconds if doors.proven(self.peer) else limits.body_seconds
            self.end_after(slow if now[0] == "body" else None)
            if now[0] == "nothing" and complete_is_proof:
                doors.prove(self.peer)

        def on_response_complete(self) -> None:
            if complete_is_proof and self.peer is not None:
                doors.prove(self.peer, False)
            super().on_response_complete()

    return Limited


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


async def answer(
    send: Send, status: int, values: Mapping[str, str], headers: Sequence[tuple[bytes, bytes]] = ()
) -> None:
    """Send a complete JSON response."""
    body = json.dumps(values).encode()
    kind = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*kind, *headers]})
    await send({"type": "http.response.body", "body": body})


__all__ = ["ConnectionLimits", "Doors", "answer", "bind", "is_loopback", "limited_protocol"]
