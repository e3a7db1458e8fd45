"""The client's loop and the server's supervisor when things go wrong; the test plays Flower's requests and the SuperLink."""

import json
import logging
import os
import signal
import time
from email.utils import formatdate
from types import SimpleNamespace

import httpx
import pytest
from flwr.app import Message, Metadata, RecordDict
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PullMessagesResponse, PushMessagesResponse
from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse, PullObjectResponse, PushObjectResponse
from flwr.supercore.inflatable.inflatable_object import get_object_tree

from fedqssl.deploy import connection, control, node
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError
from fedqssl.deploy.keys import read_key
from fedqssl.deploy.scaffold import make_fleet
from fedqssl.deploy.superlink import SuperLink
from fedqssl.files import read_json, write_json
from waiting_runs import only_wait, supervisor_of

NOTHING = PullMessagesResponse()


@pytest.fixture
def fleet(tmp_path):
    make_fleet(tmp_path / "fleet", None, 9999, ["car-1"])
    return Fleet.open(tmp_path / "fleet")


@pytest.fixture
def restored(monkeypatch):
    """What ``run_node`` changes in its process."""
    before, logger = signal.getsignal(signal.SIGTERM), logging.getLogger("flwr")
    handlers, level = list(logger.handlers), logger.level
    monkeypatch.setenv("FLWR_HOME", os.environ["FLWR_HOME"])
    for name in ("POLL", "IDLE", "RETRY", "LONGEST"):
        monkeypatch.setattr(node, name, 0.001)
    monkeypatch.setattr(connection, "PAUSES", (0.001,))
    yield
    signal.signal(signal.SIGTERM, before)
    logger.handlers[:], logger.level = handlers, level


def status(code, **headers):
    request = httpx.Request("POST", "https://server")
    response = httpx.Response(code, request=request, headers=headers)
    return httpx.HTTPStatusError(f"{code}", request=request, response=response)


class Server:
    """Answers each kind of request with what is listed for it, the last of them again and again; an error is raised."""

    def __init__(self, **answers):
        self.answers = {"ActivateNode": [ActivateNodeResponse(node_id=7)], **answers}
        self.asked = []

    def __getattr__(self, name):
        def call(request):
            self.asked.append((name, request))
            listed = self.answers.get(name, [SimpleNamespace(success=True)])
            answer = listed.pop(0) if len(listed) > 1 else listed[0]
            if isinstance(answer, BaseException):
                raise answer
            return answer

        return call

    def close(self):
        pass

    def count(self, name):
        return sum(asked == name for asked, _ in self.asked)


def served(fleet, monkeypatch, server):
    """What the client said, and its log."""
    said = []
    monkeypatch.setattr(connection.FleetHttpClient, "from_server_address", lambda *words: server)
    (fleet.client("car-1") / "state").mkdir()
    events = Events(fleet.client("car-1") / "log.jsonl")
    try:
        node.run_node(fleet, "car-1", lambda message, context: None, events, said.append)
    finally:
        log = [json.loads(line) for line in events.path.read_text().splitlines()]
        server.said, server.log = "\n".join(said), {line["event"]: line for line in log}
    return server


def test_a_connection_that_breaks_is_said_noted_and_made_again(fleet, monkeypatch, restored):
    pulls = [NOTHING, status(500), NOTHING, KeyboardInterrupt()]
    server = served(fleet, monkeypatch, Server(PullMessages=pulls))
    assert "broke (HTTP status 500); retrying" in server.said and "500" in server.log["disconnected"]["what"]
    assert server.count("ActivateNode") == 2 and "stopped" in server.log


def test_a_key_that_is_removed_ends_the_client_with_an_error(fleet, monkeypatch, restored):
    server = Server(PullMessages=[NOTHING, status(401)], ActivateNode=[ActivateNodeResponse(node_id=7), status(412)])
    with pytest.raises(FleetError, match=r"refuses car-1 .* its key is unknown there") as error:
        served(fleet, monkeypatch, server)
    assert "\n" not in str(error.value) and server.count("ActivateNode") == 1 + node.REFUSALS
    assert "401" in server.log["disconnected"]["what"] and server.log["refused"]["status"] == 412


@pytest.mark.parametrize(("ahead", "where"), [(90, "ahead of"), (-400, "behind")])
def test_a_wrong_clock_is_not_called_a_wrong_key(fleet, monkeypatch, restored, ahead, where):
    """Signatures are of the time, and every response says the server's."""
    there = formatdate(time.time() - ahead, usegmt=True)
    with pytest.raises(FleetError, match=rf"clock differs by \d+ s \(it is {where} the server's\); let NTP") as error:
        served(fleet, monkeypatch, Server(ActivateNode=[status(401, date=there)]))
    assert "key is unknown" not in str(error.value)
    assert node.clock_difference(status(401, date=there).response) == pytest.approx(ahead, abs=5)
    right = formatdate(time.time() + 2, usegmt=True)
    assert [node.clock_difference(status(401, date=d).response) for d in (right, "", "yesterday")] == [0.0] * 3


def test_a_server_that_is_away_is_no_refusal(fleet, monkeypatch, restored):
    activations = [*[status(503)] * 5, httpx.ConnectError("refused"), ActivateNodeResponse(node_id=7)]
    server = served(fleet, monkeypatch, Server(ActivateNode=activations, PullMessages=[KeyboardInterrupt()]))
    assert server.said.count("cannot be reached now (HTTP status 503); retrying until it can") == 1
    assert "car-1 is connected" in server.said and "server back" in server.log


def test_a_server_that_was_away_for_a_while_is_said_to_be_back(fleet, monkeypatch, restored):
    pulls = [NOTHING, httpx.ConnectError("refused"), httpx.ConnectError("refused"), NOTHING, KeyboardInterrupt()]
    server = served(fleet, monkeypatch, Server(PullMessages=pulls))
    lines = server.said.splitlines()
    assert [line for line in lines if "again" in line] == ["car-1 is connected to 127.0.0.1:9999 again"]
    assert lines.index("car-1 is connected to 127.0.0.1:9999 again") > 1 and "server back" in server.log


def test_a_client_of_another_version_ends_with_the_servers_line(fleet, monkeypatch, restored):
    line = "the client has fedqssl 1.0.0, but the server has 2.0.0; upgrade the client to fedqssl 2.0.0"
    error = status(connection.UPGRADE)
    error.response._content = json.dumps({"error": line}).encode()
    with pytest.raises(FleetError, match=f"^127.0.0.1:9999 refuses car-1: {line}$"):
        served(fleet, monkeypatch, Server(ActivateNode=[error]))


def test_outside_its_hours_a_client_is_disconnected(fleet, monkeypatch, restored):
    """It finishes what it has begun, leaves, and comes back."""
    waits = iter([5.0, 3.0, 0.0, 0.0, 2.0, 2.0, 1.0, 0.0, 0.0])
    monkeypatch.setattr(node.Allowance, "seconds_until_open", lambda self: next(waits))
    server = served(fleet, monkeypatch, Server(PullMessages=[NOTHING, KeyboardInterrupt()]))
    assert server.said.count("it is disconnected until then") == 2 and "retrying" not in server.said
    assert server.count("ActivateNode") == 2 and server.count("DeactivateNode") >= 2


def test_a_client_follows_the_fleets_new_address(fleet, monkeypatch, restored):
    """While the old one cannot be reached: before it is connected, and after."""
    addresses, real = [], node.Connection

    def noted(found, *words):
        addresses.append(found.address)
        return real(found, *words)

    monkeypatch.setattr(node, "Connection", noted)

    class Moving(Server):
        def __getattr__(self, name):
            call = super().__getattr__(name)

            def moves(request):
                if name in ("ActivateNode", "PullMessages") and len(addresses) < 3:
                    new = f"10.0.0.{len(addresses)}:1"
                    if name == "PullMessages" or len(addresses) == 1:
                        (fleet.path / "fleet.toml").write_text(f'address = "{new}"')
                return call(request)

            return moves

    away = httpx.ConnectError("refused")
    server = Moving(ActivateNode=[away, ActivateNodeResponse(node_id=7)], PullMessages=[away, KeyboardInterrupt()])
    served(fleet, monkeypatch, server)
    assert addresses == ["127.0.0.1:9999", "10.0.0.1:1", "10.0.0.2:1"]
    assert "car-1 is connected to 10.0.0.2:1" in server.said


def test_a_rate_is_kept_in_both_directions(fleet, monkeypatch):
    spent = []
    limits = SimpleNamespace(rate=SimpleNamespace(spend=spent.append))
    server = Server(
        PullObject=[PullObjectResponse(object_found=True, object_available=True, object_content=b"12345")],
        PushObject=[PushObjectResponse(stored=True)],
    )
    monkeypatch.setattr(connection.FleetHttpClient, "from_server_address", lambda *words: server)
    key = read_key(fleet.client("car-1") / "key")
    to = connection.Connection(fleet, "car-1", key, Events(fleet.path / "log"), print, limits)
    assert to.pull(1, "a") == b"12345"
    to.push(1, "s", "b", b"123")
    assert spent == [5, 3]


def test_a_heart_beats_until_it_is_stopped_and_sooner_after_a_miss():
    from fedqssl.deploy.heart import AGAIN, BEAT, INTERVAL, Heart

    waited, arrives = [], iter([True, False, True])

    def wait(seconds):
        waited.append(seconds)
        return len(waited) == 3

    heart = Heart(lambda: next(arrives), wait)
    heart.start()
    heart._thread.join(20)
    assert waited == [BEAT, AGAIN, BEAT] and not heart.beating
    assert BEAT + AGAIN < INTERVAL  # one that was missed comes in time


@pytest.fixture
def linked(fleet, monkeypatch):
    """A message, and a link that answers it through a played server."""
    about = Metadata(1, "", 0, 7, "", "", time.time(), 3600.0, "train")
    message = Message(content=RecordDict(), metadata=about)
    message.metadata.__dict__["_message_id"] = message.object_id

    def make(**answers):
        known = {
            "PushMessages": [PushMessagesResponse(session_id="s")],
            "PushObject": [PushObjectResponse(stored=True)],
            "ConfirmMessageReceived": [ConfirmMessageReceivedResponse()],
        }
        server, events = Server(**{**known, **answers}), Events(fleet.path / "log")
        monkeypatch.setattr(connection.FleetHttpClient, "from_server_address", lambda *words: server)
        key = read_key(fleet.client("car-1") / "key")
        link_to = node.Connection(fleet, "car-1", key, events, lambda line: None)
        link = node._Link(link_to, lambda found, context: Message(RecordDict(), reply_to=found), events)
        monkeypatch.setattr(link, "_get", link._get if "PullObject" in answers else lambda head, tree: head)
        link.answer(message, get_object_tree(message))
        sent = [request.messages_list[0] for name, request in server.asked if name == "PushMessages"]
        return [reply.error.reason for reply in sent], events.path.read_text() if events.path.exists() else ""

    return make


def test_a_message_that_cannot_be_got_is_answered_with_an_error(linked):
    sent, log = linked(PullObject=[PullObjectResponse(object_found=False)])
    assert sent == ["the model could not be received or sent (PartError), see the client's log"]
    assert "not delivered" in log


def test_a_reply_that_cannot_be_sent_is_replaced_by_an_error(linked):
    assert linked() == ([""], "")
    sent, log = linked(PushMessages=[status(500), PushMessagesResponse()])
    assert sent[1] == "the model could not be received or sent (HTTPStatusError), see the client's log"
    sent, log = linked(PushMessages=[status(500)])
    assert len(sent) == 2 and "failure not reported" in log
    assert "run over" in linked(PushMessages=[status(403)])[1]


@pytest.fixture
def kept(fleet, monkeypatch):
    """A supervisor whose runs are processes that wait."""
    found = supervisor_of(fleet)
    only_wait(monkeypatch)
    yield found
    found._end_run("stopped")


def state(fleet):
    return read_json(fleet.server / "status.json")["state"]


def test_an_order_waits_until_the_last_run_has_gone(fleet, kept):
    write_json(fleet.server / "wanted.json", {"id": "1", "do": "start", "run": "a"})
    kept._obey()
    assert os.getsid(kept.child.pid) == kept.child.pid  # Ctrl-C in the server's terminal does not reach it
    write_json(fleet.server / "status.json", {"id": "1", "run": "a", "state": "finished"})
    write_json(fleet.server / "wanted.json", {"id": "2", "do": "start", "run": "b"})
    kept._obey()
    assert kept.answered == "1"
    kept.child.stdin.close()
    assert kept.child.wait(60) == 0  # and it ends with the server
    kept._watch()
    kept._obey()
    assert read_json(fleet.server / "status.json")["id"] == "2" and kept.child is not None
    kept._end_run("stopped")
    assert state(fleet) == "stopped"


def test_an_order_given_while_the_server_starts_is_taken_and_an_old_one_is_not(fleet):
    for order, taken in [({"time": time.time()}, "7"), ({"time": 0.0}, "8"), ({}, "8")]:
        write_json(fleet.server / "status.json", {"id": "7", "run": "a", "state": "failed"})
        write_json(fleet.server / "wanted.json", {"id": "8", "do": "start", "run": "a", **order})
        found = supervisor_of(fleet)
        assert found.answered == taken


def test_an_order_that_nobody_waits_for_is_withdrawn(fleet, monkeypatch):
    monkeypatch.setattr(control, "TAKEN", 0.0)
    monkeypatch.setattr(Fleet, "serving", lambda self: True)
    with pytest.raises(FleetError, match="did not accept the command"):
        control.start(fleet, "smoke", [])
    assert not (fleet.server / "wanted.json").exists()


def test_a_run_that_finishes_while_it_is_stopped_is_finished(fleet, kept):
    write_json(fleet.server / "wanted.json", {"id": "1", "do": "start", "run": "a"})
    kept._obey()
    real = kept.child.send_signal

    def finish(number):
        write_json(fleet.server / "status.json", {"id": "1", "run": "a", "state": "finished"})
        real(number)

    kept.child.send_signal = finish
    kept._end_run("stopped")
    assert state(fleet) == "finished"


def test_a_run_that_systemd_ended_is_interrupted(fleet, kept):
    write_json(fleet.server / "wanted.json", {"id": "1", "do": "start", "run": "a"})
    kept._obey()
    kept.child.terminate()
    kept.child.wait(60)
    kept._watch()
    assert state(fleet) == "interrupted" and kept.pending is None  # this process is told to stop, too


def test_a_key_that_is_half_written_stays(fleet):
    link = SuperLink(fleet, "127.0.0.1", 9999, 1 << 20, Events(fleet.server / "log.jsonl"))
    file = fleet.client("car-1") / "key.pub"
    whole = file.read_bytes()
    link.admit()
    for text in (whole[:40], b""):
        file.write_bytes(text)
        link.admit()
        link.put_out_strangers()
        assert "car-1" in link.keys
    file.write_bytes(whole)
    link.admit()
    assert link.connected() == {"car-1": False}
    file.unlink()
    link.admit()
    assert not link.keys
    file.write_bytes(whole)
    link.admit()
    assert not link.keys  # removed is removed


def test_an_object_tree_of_too_many_parts_is_answered_with_an_error(linked, monkeypatch):
    monkeypatch.setattr(node, "MAX_OBJECTS", 0)
    sent, _ = linked(PullObject=[PullObjectResponse()])
    assert "ValueError" in sent[0]
