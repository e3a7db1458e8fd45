"""Limits on requests: bytes, pictures, pixels, requests per second, bytes of all together; checked before any work is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from fedqssl.listen import answer
from fedqssl.units import bytes_text

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_CALLERS = 10_000
POLICY = b"default-src 'self' 'unsafe-inline'; img-src 'self' blob: data:; frame-ancestors 'none'"
CLOSE = (b"connection", b"close")
HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", POLICY),
)


@dataclass(frozen=True)
class Limits:
    """The limits of one service.

    Args:
        request_bytes: largest request.
        images: pictures in a request.
        pixels: of all pictures of a request, before they are decoded (a decompression bomb is small until then).
        held_bytes: of all requests that are being read or answered; one caller may hold half of them.
        rate: requests per second of one caller, on average.
        burst: requests of one caller at once.
    """

    request_bytes: int = 20 << 20
    images: int = 32
    pixels: int = 25_000_000
    held_bytes: int = 128 << 20
    rate: float = 20.0
    burst: int = 100

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"{name} must be positive, not {value}")


class TooLargeError(Exception):
    """A request exceeded ``request_bytes`` while it was read."""


class BusyError(Exception):
    """Requests that are being read hold ``held_bytes`` together."""


class Held:
    """Bytes of the requests that are being read or answered, by caller."""

    def __init__(self, limits: Limits) -> None:
        self.most, self.least, self.total = limits.held_bytes, limits.request_bytes, 0
        self.callers: dict[str, int] = {}

    def add(self, caller: str, count: int) -> None:
        """Count more bytes of a caller, who may always have one request of the largest size if nobody else has any.

        Raises:
            BusyError: there are too many; they count nevertheless, until :meth:`release`.
        """
        self.total += count
        own = self.callers[caller] = self.callers.get(caller, 0) + count
        if self.total > max(self.most, self.least) or own > max(self.most // 2, self.least):
            raise BusyError

    def release(self, caller: str, count: int) -> None:
        """Bytes of a request that is over."""
        self.total -= count
        self.callers[caller] = self.callers.get(caller, 0) - count
        if self.callers[caller] <= 0:
            del self.callers[caller]


class Bucket:
    """Tokens of one caller: ``burst`` at most, ``rate`` more every second, one for each request."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits, self.tokens, self.at = limits, float(limits.burst), now

    def take(self, now: float) -> float:
        """0 if there was a token, else the seconds until there is one."""
        self.tokens = min(self.limits.burst, self.tokens + (now - self.at) * self.limits.rate)
        self.at = now
        if self.tokens >= 1:
            self.tokens -= 1
            return 0.0
        return (1 - self.tokens) / self.limits.rate


class Gate:
    """ASGI middleware: rejects requests that are too large, too frequent, or addressed to an unknown host name.

    The last check keeps a web page from reaching a service on this machine under a name that it controls (DNS rebinding).
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, hosts: tuple[str, ...] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.app, self.limits, self.hosts, self.clock = app, limits, hosts, clock
        self.callers: dict[str, Bucket] = {}
        self.held = Held(limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or reject it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        refused = self._refusal(scope, {k.lower(): v for k, v in scope["headers"]})
        if refused is not None:
            await self._refuse(send, *refused)
            return
        started, taken, caller = False, [0], _caller(scope)

        async def counted_send(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        try:
            await self.app(scope, self._counted(receive, caller, taken), counted_send)
        except TooLargeError:
            if not started:
                await self._refuse(send, 413, self._too_large())
        except BusyError:
            if not started:
                await self._refuse(send, 503, "too many uploads at once; try again in 1 s", 1.0)
        finally:
            self.held.release(caller, taken[0])

    async def _refuse(self, send: Send, status: int, error: str, wait: float = 0.0) -> None:
        later = ((b"retry-after", str(int(wait) + 1).encode()),) if wait else ()
        await answer(send, status, {"error": error}, (*HEADERS, *later, CLOSE))  # whatever else is coming is not read

    def _too_large(self) -> str:
        return f"the request is larger than {bytes_text(self.limits.request_bytes)}; send fewer or smaller images"

    def _refusal(self, scope: Scope, headers: Mapping[bytes, bytes]) -> tuple[int, str, float] | None:
        """Status, error and seconds to wait, if the request is rejected."""
        if self.hosts is not None and _host(headers.get(b"host", b"")) not in self.hosts:
            return 400, f"this service answers to {', '.join(self.hosts)} only", 0.0
        wait = self._bucket(scope).take(self.clock())
        if wait:
            return 429, f"too many requests; try again in {wait:.1f} s", wait
        length = headers.get(b"content-length", b"0")
        if not length.isdigit():
            return 400, "Content-Length is not a number", 0.0
        if int(length[:20]) > self.limits.request_bytes:
            return 413, self._too_large(), 0.0
        return None

    def _bucket(self, scope: Scope) -> Bucket:
        caller = _caller(scope)
        if caller not in self.callers:
            if len(self.callers) >= _MOST_CALLERS:
                self.callers.clear()
            self.callers[caller] = Bucket(self.limits, self.clock())
        return self.callers[caller]

    def _counted(self, receive: Receive, caller: str, taken: list[int]) -> Receive:
        """Count the bytes of a request in ``taken``, and among those that the service holds."""

        async def counted() -> Message:
            message = await receive()
            count = len(message.get("body", b""))
            taken[0] += count
            self.held.add(caller, count)
            if taken[0] > self.limits.request_bytes:
                raise TooLargeError
            return message

        return counted


def _caller(scope: Scope) -> str:
    return str((scope.get("client") or ("unknown",))[0])


def _host(value: bytes) -> str:
    """``[::1]:8000`` -> ``::1``; ``localhost:8000`` -> ``localhost``."""
    text = value.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0]


__all__ = ["LOOPBACK", "Gate", "Limits", "TooLargeError"]
