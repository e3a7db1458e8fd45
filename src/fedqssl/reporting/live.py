"""The report of a run that is still going, as a page that renews itself: read only, for this machine alone."""

from __future__ import annotations

import html
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

from fedqssl.reporting.page import build_report

SECONDS = 10
"""A page is built at most this often, whoever asks, and browsers ask this often."""
NAMES = ("localhost", "127.0.0.1", "[::1]")


class LivePage:
    """The newest page of a folder, built when somebody asks; an error becomes a page that says so."""

    def __init__(self, folder: Path, trust: bool = False, seconds: float = SECONDS) -> None:
        self.folder, self.trust, self.seconds = folder, trust, seconds
        self._page, self._built, self._lock = b"", -float("inf"), Lock()

    def get(self) -> bytes:
        """The page, with the request to load it again."""
        with self._lock:
            if time.monotonic() - self._built >= self.seconds:
                try:
                    text = build_report(self.folder, self.folder, self.trust, self.seconds)
                except (OSError, ValueError) as error:
                    words = html.escape(str(error))
                    text = (
                        f"<!doctype html><html lang=en><title>fedqssl</title><main><h1>Not readable yet</h1><p>{words}"
                    )
                self._page, self._built = text.encode(), time.monotonic()
            return self._page


def server(page: LivePage, port: int) -> ThreadingHTTPServer:
    """A server on the loopback address that knows this one page.

    Raises:
        OSError: the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name is the standard library's
            host = (self.headers.get("Host") or "").rpartition(":")[0] or self.headers.get("Host")
            if host not in NAMES or self.path != "/":
                self.send_error(404 if host in NAMES else 421)
                return
            found = page.get()
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(found)))
            self.send_header("Refresh", f"{page.seconds:g}")
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(found)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal shows the address alone."""

    made = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    made.daemon_threads = True
    return made


__all__ = ["LivePage", "server"]
