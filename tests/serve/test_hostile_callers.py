"""Callers that send too much, too slowly or nothing: others are served meanwhile, and memory stays bounded."""

import asyncio
import io
import socket
import threading
import time

import httpx
import pytest
from fastapi import HTTPException
from PIL import Image

from fedqssl.data.pixels import CorruptImageError, decode
from fedqssl.listen import ConnectionLimits, Doors
from fedqssl.serve.app import Worker
from fedqssl.serve.limits import LOOPBACK, BusyError, Gate, Held, Limits
from uploads import png

HALF = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "


@pytest.fixture
def port(narrow_port):
    return narrow_port


def connected(port: int, data: bytes) -> socket.socket:
    found = socket.create_connection(("127.0.0.1", port), timeout=60)
    found.sendall(data)
    return found


def ended(sock: socket.socket) -> bytes:
    """What the service says before it ends the connection."""
    said = b""
    try:
        while part := sock.recv(4096):
            said += part
    except ConnectionError:
        pass
    return said


def test_half_sent_headers_starve_nobody(port):
    """Only so many of one address stay, and some of them make room for a caller that says what it wants."""
    held = [connected(port, HALF) for _ in range(40)]
    found = httpx.get(f"http://127.0.0.1:{port}/health", timeout=60)
    assert found.status_code == 200
    for sock in held:
        assert ended(sock) == b""
        sock.close()


def test_headers_are_bounded_in_time_and_length(port):
    began = time.monotonic()
    assert ended(connected(port, HALF)) == b""
    assert 0.5 < time.monotonic() - began < 50
    with connected(port, HALF) as sock, pytest.raises(OSError):
        for _ in range(4000):
            sock.sendall(b"x" * 16384)
    assert ended(connected(port, HALF + b"x" * 8192)).startswith(b"HTTP/1.1 431")


def test_a_body_is_bounded_in_time(port):
    said = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n"
    said += b"Content-Type: multipart/form-data; boundary=a\r\n\r\n--a"
    began = time.monotonic()
    ended(connected(port, said))
    assert time.monotonic() - began < 50
    assert httpx.get(f"http://127.0.0.1:{port}/health", timeout=60).status_code == 200


def test_whoever_is_being_served_makes_no_room():
    dropped = []
    doors = Doors(ConnectionLimits(total=3, each=2))
    assert doors.enter(("a", 1), lambda: dropped.append(1)) and doors.enter(("a", 2), lambda: dropped.append(2))
    doors.prove(("a", 1))
    assert doors.enter(("a", 3), lambda: dropped.append(3)) and dropped == [2]
    doors.prove(("a", 3))
    assert not doors.enter(("a", 4), lambda: None)  # both of this address are being served
    assert doors.enter(("b", 1), lambda: dropped.append("b")) and doors.enter(("c", 1), lambda: None)
    assert dropped == [2, "b"]  # three in all
    doors.leave(("a", 1))
    assert doors.enter(("a", 5), lambda: None) and dropped == [2, "b"]


def test_a_crowd_makes_room_for_itself():
    """Full: of an address with many connections one goes, never the only one of another address, whoever is older."""
    dropped = []
    doors = Doors(ConnectionLimits(total=6, each=5))
    assert doors.enter(("honest", 1), lambda: dropped.append("honest"))
    for port in range(60):
        assert doors.enter((f"crowd-{port % 2}", port), lambda port=port: dropped.append(port))
    assert len(dropped) == 55 and "honest" not in dropped


def test_nobody_is_pushed_out_for_being_there_first():
    """One address that connects faster than a neighbour behind the same router finishes TLS: the neighbour has a chance."""
    stayed = 0
    for _ in range(200):
        gone = []
        doors = Doors(ConnectionLimits(total=100, each=10))
        doors.enter(("a", 0), lambda gone=gone: gone.append(0))
        for port in range(1, 20):
            doors.enter(("a", port), lambda: None)
        stayed += not gone
    assert 30 < stayed < 130  # (1 - 1/10)^10 is 0.35; the oldest would always have gone


def test_pixels_are_limited_for_all_pictures_of_a_request(model):
    """Of 32 pictures of 25 million pixels each, one request kept everybody waiting for 18 seconds."""
    worker = Worker(model, Limits(pixels=3000))
    worker.check([("a", png(50, 50))])
    with pytest.raises(HTTPException) as refused:
        worker.check([("a", png(50, 50)), ("b", png(50, 50))])
    assert refused.value.status_code == 413 and "b has 50x50 pixels" in refused.value.detail
    slow = io.BytesIO()
    Image.new("RGB", (50, 50)).save(slow, "JPEG2000")
    with pytest.raises(HTTPException):
        worker.check([("a", slow.getvalue())])


def test_pictures_are_decoded_outside_of_the_lock(model, monkeypatch):
    """One request with a picture that takes long does not hold up another."""
    import fedqssl.serve.app as app

    real, begun, go_on = app.from_encoded, threading.Event(), threading.Event()

    def slowly(data, name, *rest):
        if name == "slow":
            begun.set()
            assert go_on.wait(120)
        return real(data, name, *rest)

    monkeypatch.setattr(app, "from_encoded", slowly)
    worker, answers = Worker(model, Limits()), []
    first = threading.Thread(target=lambda: answers.append(worker.answer([("slow", png())], 1)), daemon=True)
    first.start()
    assert begun.wait(60)
    other = threading.Thread(target=lambda: answers.append(worker.answer([("quick", png())], 1)), daemon=True)
    other.start()
    other.join(60)
    assert [a.predictions[0].file for a in answers] == ["quick"]
    go_on.set()
    first.join(60)
    assert len(answers) == 2


def test_only_listed_formats_are_decoded(tmp_path):
    """A file may look like a TIFF to one reader and like an IM to the next."""
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "IM")
    polyglot = b"II*\x00" + out.getvalue()
    for data in (out.getvalue(), polyglot):
        with pytest.raises(CorruptImageError):
            decode(data, "x")
        (tmp_path / "x.tif").write_bytes(data)
        with pytest.raises(CorruptImageError):
            decode(tmp_path / "x.tif", "x")


def test_bytes_that_are_held_at_once_are_bounded():
    held = Held(Limits(held_bytes=1000, request_bytes=300))
    held.add("a", 400)
    held.add("b", 400)
    with pytest.raises(BusyError):
        held.add("b", 101)
    held.release("b", 501)
    held.add("c", 500)
    with pytest.raises(BusyError):
        held.add("d", 101)
    held.release("d", 101)
    held.release("c", 500)
    held.release("a", 400)
    assert held.total == 0 and held.callers == {}


def test_uploads_at_once_are_answered_or_told_to_wait():
    """What was read is counted until the answer, and given back after it."""
    release = asyncio.Event()

    async def app(scope, receive, send):
        while (await receive())["more_body"]:
            pass
        await release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask(gate, host):
        sent, parts = [], [{"type": "http.request", "body": b"x" * 100, "more_body": i < 3} for i in range(4)]

        async def receive():
            await asyncio.sleep(0)
            return parts.pop(0)

        async def send(event):
            sent.append(event)

        await gate({"type": "http", "client": (host, 1), "headers": [(b"host", b"localhost")]}, receive, send)
        return sent[0]["status"]

    async def all_of_them():
        gate = Gate(app, Limits(held_bytes=1000, request_bytes=500), LOOPBACK)
        asked = [asyncio.ensure_future(ask(gate, host)) for host in "abcd"]
        while sum(task.done() for task in asked) < 2:
            await asyncio.sleep(0.01)
        release.set()
        return await asyncio.gather(*asked), gate.held.total

    found, left = asyncio.run(all_of_them())
    assert sorted(found) == [200, 200, 503, 503] and left == 0
