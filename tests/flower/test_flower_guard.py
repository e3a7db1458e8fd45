"""What the server's port answers to whom: no network needed, the guard is a plain ASGI application."""

import asyncio
from base64 import b64encode

import pytest

from fedqssl.deploy.events import Events
from fedqssl.deploy.guard import CHUNK, REQUEST, Guard

KEY = b"-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n"
HERE, THERE = ("127.0.0.1", 4000), ("192.168.1.9", 4000)


class Behind:
    """The SuperLink's stand-in: notes what reaches it."""

    def __init__(self, status=200):
        self.bodies, self.status = [], status

    async def __call__(self, scope, receive, send):
        self.bodies.append((await receive())["body"])
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b"answer"})


def asked(guard, path, body=b"", client=THERE, server=("192.168.1.5", 9443), headers=(), pieces=1):
    """The status of a request."""
    events, step = [], -(-max(len(body), 1) // pieces)
    parts = [body[i : i + step] for i in range(0, max(len(body), 1), step)]
    sent = [{"type": "http.request", "body": p, "more_body": i + 1 < len(parts)} for i, p in enumerate(parts)]
    scope = {"type": "http", "path": path, "client": client, "server": server, "headers": list(headers)}

    async def receive():
        return sent.pop(0)

    async def send(event):
        events.append(event)

    asyncio.run(guard(scope, receive, send))
    return events[0]["status"]


@pytest.fixture
def guard(tmp_path):
    made = Guard(Behind(), 20 << 20, Events(tmp_path / "log.jsonl"))
    made.know("car-1", KEY)
    return made


OURS = [(b"flwr-public-key", b64encode(KEY))]


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/control/list-nodes", "/docs", "/openapi.json", "/", "/v1/fleet", "/v1/responses"],
)
def test_nobody_can_start_anything_over_the_network(guard, path):
    for client in (HERE, THERE):
        assert asked(guard, path, client=client) == 403
    assert guard.app.bodies == []
    assert "this path is closed" in guard.events.path.read_text()


def test_the_runs_own_interface_is_for_this_machine(guard):
    path = "/v1/runtime/push-messages"
    assert asked(guard, path, client=THERE) == 403
    assert asked(guard, path, client=HERE) == 200
    assert asked(guard, path, client=("192.168.1.5", 5000)) == 200  # from its own address to itself
    assert asked(guard, path, client=None) == 403


def test_other_protocols_are_refused(guard):
    with pytest.raises(ConnectionRefusedError):
        asyncio.run(guard({"type": "websocket", "path": "/v1/fleet/x"}, None, None))


def test_a_clients_bytes_are_counted(guard):
    assert asked(guard, "/v1/fleet/pull-messages", b"12345", headers=OURS, pieces=2) == 200
    assert guard.app.bodies == [b"12345"]
    seen = guard.traffic["car-1"]
    assert (seen.received, seen.sent) == (5, 6) and seen.last_seen > 0
    asked(guard, "/v1/fleet/pull-messages", b"12345")  # nobody's
    guard.app.status = 401
    asked(guard, "/v1/fleet/pull-messages", b"12345", headers=OURS)  # a false signature is nobody's, too
    assert (seen.received, seen.sent) == (5, 6)


def test_a_request_that_is_too_large_is_not_read(guard):
    headers = [*OURS, (b"content-length", b"1000000000000")]
    assert asked(guard, "/v1/fleet/push-object", b"", headers=headers) == 413
    assert (
        asked(guard, "/v1/fleet/push-object", bytes(REQUEST + 1), headers=OURS, pieces=9) == 413
    )  # it lied, or did not say
    assert asked(guard, "/v1/fleet/push-object", b"", headers=[(b"content-length", b"-1")]) == 413
    assert guard.app.bodies == []
    assert '"client": "car-1"' in guard.events.path.read_text() and "too large" in guard.events.path.read_text()


def test_a_message_that_is_too_large_is_refused_piece_by_piece(guard):
    """A gigabyte comes as 200 objects of 5 MiB: the fifth is one too many here."""
    piece = bytes(CHUNK)
    found = [asked(guard, "/v1/fleet/push-object", piece, headers=OURS) for _ in range(5)]
    assert found == [200, 200, 200, 200, 413]
    assert asked(guard, "/v1/fleet/push-messages", b"next", headers=OURS) == 200
    assert asked(guard, "/v1/fleet/push-object", piece, headers=OURS) == 200


def test_a_message_that_would_unfold_is_refused(guard):
    """An array may name one piece many times over."""
    listed = b", ".join([b"0"] * 1000)
    assert asked(guard, "/v1/fleet/push-object", b'{"arraychunk_ids": [' + listed + b"]}", headers=OURS) == 413
    assert asked(guard, "/v1/fleet/push-object", b'{"arraychunk_ids": [0, 1, 2]}', headers=OURS) == 200


def test_flower_writes_arrays_as_the_guard_reads_them():
    """If a new Flower writes them otherwise, the limit above would be void."""
    pytest.importorskip("flwr")
    from flwr.app import Array

    from fedqssl.deploy.guard import _CHUNKS, KEY_HEADER

    array = Array(dtype="uint8", shape=(CHUNK + 1,), stype="x", data=bytes(CHUNK) + b"1")
    assert _CHUNKS.search(array.deflate())[1].replace(b" ", b"") == b"0,1"
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

    assert KEY_HEADER.decode() == FLEET_HTTP_PUBLIC_KEY_HEADER and CHUNK == FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
