"""Connections of strangers to the server's port, before they have shown a key: few, short and soon over."""

import contextlib
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import b64encode
from pathlib import Path

import httpx
import pytest

pytest.importorskip("flwr")

from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet
from fedqssl.deploy.guard import KEY_HEADER, Guard
from fedqssl.deploy.scaffold import make_fleet
from fedqssl.deploy.serving import server_config
from fedqssl.listen import ConnectionLimits, Doors, bind

SUPPORT = Path(__file__).parents[1] / "support"
KEY = b"-----BEGIN PUBLIC KEY-----\nxyz\n-----END PUBLIC KEY-----\n"


async def behind(scope, receive, send):
    """The SuperLink's stand-in."""
    if scope["type"] == "http":
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"answer"})


class Port:
    """A guarded server over TLS, in a thread of this process."""

    def __init__(self, home: Path, limits: ConnectionLimits) -> None:
        import uvicorn

        make_fleet(home / "fleet", None, 9443, ["car-1"])
        self.fleet, self.doors = Fleet.open(home / "fleet"), Doors(limits)
        self.sock = bind("127.0.0.1", 0, self.doors)
        self.port = self.sock.getsockname()[1]
        guard = Guard(behind, 1 << 30, Events(home / "log.jsonl"), self.doors)
        guard.know("car-1", KEY)
        self.server = uvicorn.Server(server_config(guard, self.fleet, self.doors))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.sock]}, daemon=True)
        self.context = ssl.create_default_context(cafile=str(self.fleet.authority))

    def __enter__(self):
        self.thread.start()
        began = time.monotonic()
        while not self.server.started:
            assert time.monotonic() - began < 600, "the server does not start"
            time.sleep(0.05)
        return self

    def __exit__(self, *error) -> None:
        self.server.should_exit = True
        self.thread.join(20)

    def plain(self, source: str = "127.0.0.1") -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60, source_address=(source, 0))

    def secure(self, source: str = "127.0.0.1") -> ssl.SSLSocket:
        return self.context.wrap_socket(self.plain(source), server_hostname="localhost")

    def honest(self) -> int:
        """The status of a client's request, which it repeats as clients do."""
        end = time.monotonic() + 60
        while True:
            try:
                with httpx.Client(verify=self.context, timeout=60) as client:
                    key = {KEY_HEADER.decode(): b64encode(KEY).decode()}
                    url = f"https://127.0.0.1:{self.port}/v1/fleet/pull-messages"
                    return client.post(url, content=b"x" * 200_000, headers=key).status_code
            except httpx.TransportError:
                assert time.monotonic() < end


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    limits = ConnectionLimits(total=40, each=8, head_bytes=4096, head_seconds=1.0, body_seconds=1.0)
    with Port(tmp_path_factory.mktemp("port"), limits) as found:
        yield found


def test_connections_without_tls_starve_nobody(port):
    """520 of them gave everybody 503."""
    idle = [port.plain() for _ in range(30)]
    assert port.honest() == 200
    assert len(port.doors._drop) <= 8
    for sock in idle:
        sock.close()


def test_a_header_is_bounded(port):
    """60 MiB in one header were 100 MB and seconds of work."""
    sock, sent = port.secure(), 0
    with contextlib.suppress(OSError):
        sock.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: localhost\r\nX-Long: ")
        for _ in range(1000):
            sock.sendall(b"x" * 65536)
            sent += 65536
    assert sent < 60 << 20
    sock.close()
    assert port.honest() == 200


def test_half_sent_requests_end(port):
    heads = [b"POST /v1/fleet/", b"POST /v1/fleet/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc"]
    for head in heads:
        sock = port.secure()
        sock.sendall(head)
        with contextlib.suppress(OSError):
            assert b"200" not in sock.recv(4096)
        sock.close()
    assert port.honest() == 200


def test_a_listening_socket_without_limits_accepts_everybody():
    listening = bind("127.0.0.1", 0)
    listening.listen()
    with socket.create_connection(listening.getsockname()), listening.accept()[0] as taken:
        assert taken.getpeername()
    listening.close()


@pytest.mark.slow
def test_500_hostile_connections_for_a_minute(tmp_path, capsys):
    """The figures of issue 17: at most 200 MB more, and honest requests go on.

    The connections come from nine addresses, one of them the honest client's own.
    """
    with Port(tmp_path, ConnectionLimits(total=500, each=100)) as port:
        assert port.honest() == 200
        before, waits = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
        words = [str(port.port), str(port.fleet.authority), "60", "500"]
        hostile = subprocess.Popen([sys.executable, str(SUPPORT / "flood.py"), *words])
        end = time.monotonic() + 60
        try:
            while time.monotonic() < end:
                began = time.monotonic()
                assert port.honest() == 200
                waits.append(time.monotonic() - began)
                time.sleep(0.5)
        finally:
            hostile.terminate()
            hostile.wait(30)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    with capsys.disabled():
        print(
            f"\n{len(waits)} honest requests, longest {max(waits):.1f} s; the server and its honest client +{grown:.0f} MiB"
        )
    assert grown < 200 and len(waits) >= 3
