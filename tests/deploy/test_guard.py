"""What the server's port answers to whom: no network needed, the guard is a plain ASGI application."""

import asyncio
import json
from base64 import b64encode

import pytest
from flwr.app import Array
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata, PushObjectRequest
from flwr.proto.node_pb2 import Node

from fedqssl.deploy.events import REFUSALS, Events
from fedqssl.deploy.guard import CHUNK, KEPT, KEY_HEADER, REQUEST, Guard, Places

KEY = b"-----BEGIN PUBLIC KEY-----\nxyz\n-----END PUBLIC KEY-----\n"
HERE, THERE = ("127.0.0.1", 4000), ("192.168.1.9", 4000)


class Behind:
    """The SuperLink's stand-in: notes what reaches it; a message is taken in session 1, 2, ... unless ``takes`` is false."""

    def __init__(self, status=200):
        self.bodies, self.status, self.session, self.takes, self.busy = [], status, 0, True, None

    async def __call__(self, scope, receive, send):
        self.bodies.append((await receive())["body"])
        if self.busy is not None:
            await self.busy.wait()
        answer = b"answer"
        if scope["path"].endswith("/push-messages"):
            self.session += 1
            wanted = ["an object"] if self.takes else []
            answer = PushMessagesResponse(session_id=str(self.session), objects_to_push=wanted).SerializeToString()
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": answer})


def asked(*arguments, **settings):
    """The status of a request."""
    return asyncio.run(asking(*arguments, **settings))


async def asking(guard, path, body=b"", client=THERE, server=("192.168.1.5", 9443), headers=(), pieces=1):
    events, step = [], -(-max(len(body), 1) // pieces)
    parts = [body[i : i + step] for i in range(0, max(len(body), 1), step)]
    sent = [{"type": "http.request", "body": p, "more_body": i + 1 < len(parts)} for i, p in enumerate(parts)]
    scope = {"type": "http", "path": path, "client": client, "server": server, "headers": list(headers)}

    async def receive():
        return sent.pop(0)

    async def send(event):
        events.append(event)

    await guard(scope, receive, send)
    return events[0]["status"]


def head(key="m-1", source=7, reply_to="order"):
    """What announces a message, of node 7."""
    told = Metadata(message_id=key, src_node_id=source, dst_node_id=1, reply_to_message_id=reply_to)
    return PushMessagesRequest(node=Node(node_id=7), messages_list=[Message(metadata=told)]).SerializeToString()


def of(kind, body, session="1"):
    """An object of a message, as Flower sends it."""
    content = kind.encode() + b"  %d\0" % len(body) + body
    return PushObjectRequest(node=Node(node_id=7), session_id=session, object_content=content).SerializeToString()


def array(count, **settings):
    """One that lists its first piece so many times."""
    told = {"dtype": "uint8", "shape": [count], "stype": "x", "arraychunk_ids": [0] * count}
    return of("Array", json.dumps(told).encode(), **settings)


def announce(guard, *arguments, **settings):
    return asked(guard, "/v1/fleet/push-messages", head(*arguments, **settings), headers=OURS)


def push(guard, body, headers=None):
    return asked(guard, "/v1/fleet/push-object", body, headers=OURS if headers is None else headers)


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


PIECE = of("ArrayChunk", bytes(CHUNK - 1000))


def test_a_message_that_is_too_large_is_refused_piece_by_piece(guard):
    """A gigabyte comes as 200 objects of 5 MiB: the fifth is one too many here."""
    assert announce(guard) == 200
    assert [push(guard, PIECE) for _ in range(5)] == [200, 200, 200, 200, 413]
    assert f"its message is longer than {20 << 20} bytes" in guard.events.path.read_text()
    assert announce(guard, "m-2") == 200
    assert push(guard, of("ArrayChunk", bytes(CHUNK - 1000), "2")) == 200
    assert push(guard, PIECE) == 413


def test_a_message_that_would_unfold_is_refused(guard):
    """An array may name one piece many times over, and so may several arrays."""
    assert announce(guard) == 200
    assert push(guard, array(1000)) == 413
    assert f"its message would unfold to more than {20 << 20} bytes" in guard.events.path.read_text()
    assert [push(guard, array(1)) for _ in range(5)] == [200, 200, 200, 200, 413]
    assert announce(guard, "m-2") == 200
    assert push(guard, array(4, session="2")) == 200
    assert push(guard, array(1, session="2")) == 413


def test_a_small_limit_takes_a_small_message(guard):
    """Its one piece is not a full one."""
    guard.max_bytes = 1 << 20
    assert announce(guard) == 200 and push(guard, array(1)) == 200 and push(guard, array(1)) == 413


LONG = ", ".join(["0"] * 1000)


@pytest.mark.parametrize(
    "text",
    [
        f'{{"dtype": "uint8", "shape": [1], "stype": "x", "arraychunk_ids":[{LONG}]}}',
        f'{{"dtype": "uint8", "shape": [1], "stype": "x", "arraychunk_ids": [0], "arraychunk_ids": [{LONG}]}}',
        f'{{"dtype": "uint8", "shape": [1], "stype": "x", "array\\u0063hunk_ids": [{LONG}]}}',
        '{"dtype": "uint8", "shape": [1], "stype": "x", "arraychunk_ids": [0] }',
        '{"dtype": "uint8", "shape": [1], "stype": "x", "arraychunk_ids": [0.5]}',
        '{"dtype": "uint8", "shape": [1], "stype": "x", "arraychunk_ids": 3}',
        '{"dtype": "uint8", "shape": [1], "stype": "x"}',
        f'{{"dtype": "{"x" * 70000}", "shape": [1], "stype": "x", "arraychunk_ids": [0]}}',
        "[" * 50000,
        "[]",
        "",
    ],
)
def test_an_array_has_one_spelling(guard, text):
    """Of two, the guard might count one and Flower read the other."""
    assert announce(guard) == 200 and push(guard, of("Array", text.encode())) == 413
    assert "has an unknown form" in guard.events.path.read_text()


def test_a_piece_is_not_longer_than_pieces_are(guard):
    assert announce(guard) == 200 and push(guard, of("ArrayChunk", bytes(CHUNK + 1))) == 413


def test_flower_writes_arrays_as_the_guard_reads_them():
    """If a new Flower writes them otherwise, honest messages would be refused."""
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    from fedqssl.deploy.guard import KEY_HEADER, PUSHES, pieces

    written = Array(dtype="uint8", shape=(2 * CHUNK + 1,), stype="ü", data=bytes(2 * CHUNK) + b"1")
    chunk, last = written.children.values()
    assert [pieces(made.deflate()) for made in (written, chunk, last)] == [3, 0, 0]
    assert Array.inflate(written.deflate(), written.children).data == written.data
    assert KEY_HEADER.decode() == FLEET_HTTP_PUBLIC_KEY_HEADER and CHUNK == FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    assert all(PROTOBUF_REQUEST_TYPES["POST", path] is kind for path, kind in PUSHES.items())


def test_what_is_refused_does_not_count(guard):
    """Whoever knows a client's public key can send, without a signature, what looks like its message."""
    assert announce(guard) == 200
    guard.app.status = 401
    assert [push(guard, body) for body in (PIECE, array(3)) for _ in range(9)] == [401] * 18
    guard.app.status = 200
    assert [push(guard, PIECE) for _ in range(5)] == [200, 200, 200, 200, 413]


def test_nothing_but_a_new_message_starts_the_count_anew(guard):
    """Not one without a signature, nor one that the SuperLink does not want, nor the same one again in a new session."""
    assert announce(guard) == 200
    assert [push(guard, PIECE) for _ in range(4)] == [200] * 4
    for guard.app.status, guard.app.takes in ((401, True), (200, False)):
        assert {announce(guard, f"false-{number}") for number in range(KEPT + 1)} == {guard.app.status}
    assert push(guard, PIECE) == 413
    guard.app.takes = True
    assert announce(guard) == 200
    assert push(guard, of("ArrayChunk", bytes(CHUNK - 1000), str(guard.app.session))) == 413


def test_requests_at_the_same_time_do_not_exceed_the_limit_together(guard):
    assert announce(guard) == 200

    async def together():
        guard.app.busy = asyncio.Event()
        path = "/v1/fleet/push-object"
        asks = [asyncio.create_task(asking(guard, path, PIECE, headers=OURS)) for _ in range(6)]
        await asyncio.sleep(0.1)
        guard.app.busy.set()
        return [await one for one in asks]

    assert sorted(asyncio.run(together())) == [200, 200, 200, 200, 413, 413]


def test_an_object_without_an_answer_stays_counted(guard):
    """Whoever hangs up early may have had it stored."""
    assert announce(guard) == 200
    answering = guard.app

    async def silent(scope, receive, send):
        await receive()
        raise ConnectionError("hung up")

    guard.app = silent
    for _ in range(4):
        with pytest.raises(ConnectionError):
            push(guard, PIECE)
    guard.app = answering
    assert push(guard, PIECE) == 413


def test_a_key_has_one_client_however_it_is_spelled(guard):
    """Flower takes the first header, and decodes it; base64 that ends in unused bits has several spellings."""
    assert b64encode(KEY).endswith(b"=")
    spelled = b64encode(KEY)[:-2] + bytes([b64encode(KEY)[-2] + 1]) + b"="
    assert announce(guard) == 200
    headers = [(b"flwr-public-key", spelled), (b"flwr-public-key", b64encode(b"another"))]
    assert [push(guard, PIECE, headers) for _ in range(5)] == [200, 200, 200, 200, 413]
    assert guard.traffic["car-1"].received > 4 * (CHUNK - 1000)
    assert asked(guard, "/v1/fleet/pull-messages", b"", headers=[(b"flwr-public-key", b"no base64")]) == 200


def test_a_client_replies_and_in_its_own_name(guard):
    """Flower would hand on what a client sends as the server's order to another."""
    assert announce(guard, source=1, reply_to="") == 403
    assert announce(guard, source=8) == 403
    assert guard.app.bodies == [] and "not a reply under its own name" in guard.events.path.read_text()
    assert announce(guard) == 200


def test_a_thousand_messages_do_not_fill_the_memory(guard):
    for number in range(KEPT + 10):
        assert announce(guard, f"m-{number}") == 200
    assert len(guard.outboxes["car-1"].messages) == KEPT
    assert asked(guard, "/v1/fleet/push-messages", b"\0 not protobuf", headers=[]) == 200  # the SuperLink refuses it


def test_lines_about_refused_requests_are_bounded(tmp_path):
    """Strangers cause them: 5,000 requests were 5,000 lines."""
    now = [0.0]
    guard = Guard(Behind(), 1 << 20, Events(tmp_path / "log.jsonl", lambda: now[0]))
    for _ in range(300):
        assert asked(guard, "/v1/control/" + "x" * 1000) == 403
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert len(lines) == REFUSALS and max(map(len, lines)) < 400
    now[0] = 61.0
    asked(guard, "/v1/control/run")
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["unlisted"] == 300 - REFUSALS


def test_a_log_begins_anew_when_it_is_large(tmp_path, monkeypatch):
    monkeypatch.setattr("fedqssl.deploy.events.LARGEST", 200)
    events = Events(tmp_path / "log.jsonl")
    for number in range(20):
        events.note("x", number=number)
    both = [(tmp_path / name).stat().st_size for name in ("log.jsonl", "log.jsonl.1")]
    assert max(both) < 400 and '"number": 19' in (tmp_path / "log.jsonl").read_text()


def test_a_stranger_is_refused_before_its_body_is_read(tmp_path):
    """A hundred half-sent bodies of 6 MiB were 700 MB: the key comes first, and a request to join is short."""
    behind = Behind()
    guard = Guard(behind, 1 << 30, Events(tmp_path / "log"))
    guard.know("car-1", KEY)
    body, known = b"x" * (1 << 20), [(KEY_HEADER, b64encode(KEY))]
    length = [(b"content-length", str(len(body)).encode())]
    assert asked(guard, "/v1/fleet/pull-messages", body, headers=length) == 413
    assert asked(guard, "/v1/fleet/pull-messages", body, pieces=100) == 413 and behind.bodies == []
    assert asked(guard, "/v1/fleet/pull-messages", body[:1000]) == 200  # the SuperLink says what is wrong with the key
    assert asked(guard, "/v1/fleet/pull-messages", body, headers=[*length, *known]) == 200


def test_a_key_that_two_machines_use_is_noticed_and_named(tmp_path):
    """A copied folder: they push each other out, and the log said only that a client came and went."""
    guard = Guard(Behind(), 1 << 30, Events(tmp_path / "log.jsonl"))
    guard.know("car-1", KEY)
    known = [(KEY_HEADER, b64encode(KEY))]

    def ask(host, path="/v1/fleet/pull-messages"):
        return asked(guard, path, b"x", client=(host, 4000), headers=known)

    ask("10.0.0.1"), ask("10.0.0.2"), ask("10.0.0.2")  # it has moved to another network
    assert guard.traffic["car-1"].twin == ""
    ask("10.0.0.1")
    line = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])
    assert line["client"] == "car-1" and "10.0.0.1 and 10.0.0.2 in turn" in line["why"] and "copied" in line["why"]
    ask("10.0.0.2")
    assert (tmp_path / "log.jsonl").read_text().count("two machines") == 1


def test_two_machines_behind_one_address_are_noticed_too():
    place = Places()
    assert [bool(place.look("10.0.0.1", True, 10.0 * i)) for i in range(6)] == [False] * 4 + [True] * 2
    assert place.look("10.0.0.1", True, 1000.0) == ""


def test_a_client_of_another_version_is_told_which_side_to_upgrade(guard):
    """When it joins, before the SuperLink hears of it; a client of before this header is let through."""
    from fedqssl.deploy.guard import JOIN, UPGRADE
    from fedqssl.deploy.versions import HEADER

    def joins(text):
        return asked(guard, JOIN, b"x", headers=[*OURS, (HEADER.encode(), text.encode())])

    assert asked(guard, JOIN, b"x", headers=OURS) == 200 and not guard.outdated
    assert joins("fedqssl=99.0.0") == UPGRADE and guard.outdated["car-1"].endswith(
        "upgrade the server to fedqssl 99.0.0"
    )
    assert joins("fedqssl=0.0.1") == UPGRADE and "upgrade the client" in guard.outdated["car-1"]
    assert "other version" in guard.events.path.read_text()
    assert joins("") == 200 and not guard.outdated
    assert guard.traffic["car-1"].joins == 2
