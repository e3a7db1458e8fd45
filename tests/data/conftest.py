"""A web server on this machine that breaks connections when told to."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedqssl.data import fetch


class Server:
    """Serves ``body``; ``cuts`` are the numbers of bytes after which the first connections break."""

    def __init__(self) -> None:
        self.body, self.cuts, self.ranges, self.requests, self.status = bytes(range(256)) * 1000, [], True, [], None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *args: object) -> None:
                pass

            def do_GET(self) -> None:
                outer.answer(self)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/data.tar.gz"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        wanted = request.headers.get("Range")
        self.requests.append(wanted)
        if self.status:
            return request.send_error(self.status)
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.ranges else 0
        if start >= len(self.body):
            request.send_response(416)
            request.send_header("Content-Range", f"bytes */{len(self.body)}")
            return request.end_headers()
        request.send_response(206 if start else 200)
        if start:
            request.send_header("Content-Range", f"bytes {start}-{len(self.body) - 1}/{len(self.body)}")
        request.send_header("Content-Length", str(len(self.body) - start))
        request.end_headers()
        rest = self.body[start:]
        request.wfile.write(rest[: self.cuts.pop(0)] if self.cuts else rest)
        return None


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(fetch, "TIMEOUT_SECONDS", 5.0)
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()
