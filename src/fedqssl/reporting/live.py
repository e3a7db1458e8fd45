"""The report of a run that is still going, as a page that renews itself: read only, for this machine alone."""

from __future__ import annotations

import html
import socket
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from fedqssl.listen import is_loopback
from fedqssl.reporting.page import build_report

SECONDS = 10
"""A page is built at most this often, whoever asks, and browsers ask this often."""
NAMES = ("localhost", "127.0.0.1", "[::1]")


class LivePage:
    """The newest page of a folder, built when somebody asks; an error becomes a page that says so."""

    kind = "text/html; charset=utf-8"

    def __init__(self, folder: Path, trust: bool = False, seconds: float = SECONDS) -> None:
        self.folder, self.trust, self.seconds = folder, trust, seconds
        self._page, self._built, self._lock = b"", -float("inf"), Lock()

    def get(self) -> bytes:
        """The page, with the request to load it again."""
        with self._lock:
            if time.monotonic() - self._built >= self.seconds:
                try:
                    text = self.build()
                except (OSError, ValueError) as error:
                    words = html.escape(str(error))
                    text = (
                        f"<!doctype html><html lang=en><title>fedqssl</title><main><h1>Not readable yet</h1><p>{words}"
                    )
                self._page, self._built = text.encode(), time.monotonic()
            return self._page

    def build(self) -> str:
        """A new page."""
        return build_report(self.folder, self.folder, self.trust, self.seconds)


def server(
    page: LivePage, port: int, more: Mapping[str, LivePage] | None = None, sock: socket.socket | None = None
) -> ThreadingHTTPServer:
    """A server on the loopback address that knows this one page.

    Args:
        page: what is shown at ``/``.
        port: where to listen, on this machine only.
        more: other pages by their paths.
        sock: a socket that listens already, in place of ``port``; if it is not on a loopback address, every name of this
            machine is accepted.

    Raises:
        OSError: the port is taken.
    """
    pages = {"/": page, **(more or {})}
    local = sock is None or is_loopback(sock.getsockname()[0])

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds that a caller may be silent

        def do_GET(self) -> None:  # the name is the standard library's
            host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host")
            page = pages.get(self.path)
            if (local and host not in NAMES) or page is None:
                self.send_error(421 if local and host not in NAMES else 404)
                return
            found = page.get()
            self.send_response(200)
            self.send_header("Content-Type", page.kind)
            self.send_header("Content-Length", str(len(found)))
            self.send_header("Refresh", f"{page.seconds:g}")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal shows the address alone."""

    made = ThreadingHTTPServer(("127.0.0.1", port), Handler, bind_and_activate=sock is None)
    made.daemon_threads = True
    if sock is not None:
        made.socket.close()
        made.socket, made.server_address = sock, sock.getsockname()[:2]
        made.server_activate()
    return made


__all__ = ["LivePage", "server"]
