"""``fedqssl deploy client``: receive messages from the server and let the ClientApp answer them, all in this one process.

Flower's SuperNode would start a process for every message and run code sent by the server. This loop uses its requests
(TLS, signatures, heartbeats, retries) and runs the ClientApp that is installed here, and nothing else.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.app.message import remove_content_from_message
from flwr.clientapp import ClientApp
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, MAX_RETRY_DELAY, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError, stop_like_ctrl_c
from fedqssl.deploy.keys import PrivateKey, read_key
from fedqssl.engines.flower import hush
from fedqssl.files import read_json_or_none, write_json

POLL, IDLE = 0.5, 3.0
"""Seconds between two polls for messages: shortly after the last one, and when idle."""
RETRY, LONGEST = 3.0, 60.0
"""Seconds before a connection is retried: after the first failure, and at most."""
REFUSED = (401, 403, 412)
"""Flower's response to an unknown key: 412 to a request to join, 401 to everything else."""
REFUSALS = 3
"""A key that was just added to the server's folder takes a second or two to be recognised."""
AWAY = (502, 503, 504)
SKEW = 4.0
"""Seconds by which clocks may differ; Flower refuses a signature from 5 s in the future, or from 5 minutes ago."""
MAX_OBJECTS = 1000
"""Pieces of a message: ours have six and one more for every 5 MiB."""


def run_node(fleet: Fleet, name: str, app: ClientApp, events: Events, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; waits for a server that is away; it is an error if the server rejects the key."""
    os.environ["FLWR_HOME"] = str(fleet.client(name) / "flwr")
    hush(fleet.client(name) / "flower.log")
    signal.signal(signal.SIGTERM, stop_like_ctrl_c)
    key, wait = read_key(fleet.client(name) / "key"), RETRY
    with suppress(KeyboardInterrupt):
        while True:
            with Connection(fleet, name, key, events, say) as connection:
                _admit(connection)
                say(f"{name} is connected to {fleet.address}; stop with Ctrl-C")
                events.note("connected", server=fleet.address)
                began = time.monotonic()
                error = _serve(_Link(connection, app, events))
            wait = RETRY if time.monotonic() - began > LONGEST else wait
            events.note("disconnected", what=repr(error))
            say(f"the connection to {fleet.address} broke ({_why(error)}); retrying")
            time.sleep(wait)
            wait = min(2 * wait, LONGEST)
    events.note("stopped")
    say(f"{name} has stopped")


def _serve(link: _Link) -> Exception:
    """Answer messages until the connection fails; returns the error."""
    pause = POLL
    while True:
        try:
            got = link.connection.receive()
        except Exception as error:
            return error
        if got is None:
            time.sleep(pause)
            pause = min(1.25 * pause, IDLE)
        else:
            link.answer(*got)
            pause = POLL


def _admit(to: Connection) -> None:
    """Return once the server accepts this key; an unreachable server is retried, a refusal is not."""
    refused = 0
    while True:
        try:
            to.open()
            return
        except httpx.HTTPStatusError as error:
            refused += error.response.status_code in REFUSED
            if refused >= REFUSALS:
                to.events.note("refused", server=to.fleet.address, status=error.response.status_code)
                _check_clock(to, error.response)
                raise FleetError(
                    f"the server at {to.fleet.address} refuses {to.name} ({error.response.status_code}): its key is unknown "
                    f"there, or in use; copy {to.home / 'key.pub'} into clients/{to.name}/ of the server's folder, and use "
                    f"the name once"
                ) from error
            if error.response.status_code not in REFUSED:
                to.away(error)
        except httpx.TransportError as error:
            if "certificate" in str(error).lower():
                raise FleetError(
                    f"{to.fleet.address} does not show this fleet's certificate ({error}); copy ca.crt from the server again, "
                    f"and check that init was given the server's address"
                ) from error
            to.away(error)
        time.sleep(RETRY)


def clock_difference(response: httpx.Response) -> float:
    """Seconds by which this machine's clock is ahead of the server's, which every response states; 0 within a tolerance."""
    try:
        there = parsedate_to_datetime(response.headers.get("date", "")).timestamp()
    except (ValueError, TypeError):
        return 0.0
    ahead = time.time() - there
    return ahead if abs(ahead) > SKEW else 0.0


def _check_clock(to: Connection, response: httpx.Response) -> None:
    """A signature is of the time: with another time than the server's, every key is refused."""
    ahead = clock_difference(response)
    if ahead:
        where = "ahead of" if ahead > 0 else "behind"
        raise FleetError(
            f"the server at {to.fleet.address} refuses {to.name}: this machine's clock differs by {abs(ahead):.0f} s (it is "
            f"{where} the server's); let NTP set both clocks, for example with timedatectl set-ntp true"
        )


def _why(error: Exception) -> str:
    """The error in a few words."""
    if isinstance(error, httpx.HTTPStatusError):
        ahead = clock_difference(error.response)
        clock = f"; the clock differs by {abs(ahead):.0f} s from the server's" if ahead else ""
        return f"HTTP status {error.response.status_code}{clock}"
    return " ".join(f"{type(error).__name__} {error}".split())


class Connection:
    """Flower's requests with this client's key; use as a context manager.

    Flower's own connection ends the process when a request is refused, and hides other errors; here both are raised, and only
    an unreachable server is retried.
    """

    def __init__(self, fleet: Fleet, name: str, key: PrivateKey, events: Events, say: Callable[[str], None]) -> None:
        self.fleet, self.name, self.home, self.events, self.say = fleet, name, fleet.client(name), events, say
        public, authority = key.public_key(), fleet.authority.read_bytes()
        self.public, self.node, self.told = public_key_to_bytes(public), Node(), False
        version, sign = RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(key, public)
        self.client = FleetHttpClient.from_server_address(fleet.address, False, authority, [version, sign])
        self.heart = HeartbeatSender(self._beat)
        self.retry = RetryInvoker(
            lambda: exponential(max_delay=MAX_RETRY_DELAY),
            (httpx.TransportError, httpx.HTTPStatusError),
            max_tries=None,
            max_time=None,
            on_backoff=lambda state: self.away(state.exception),
            on_success=lambda state: self._back(),
            should_giveup=_hopeless,
        )

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        if self.heart.is_running:
            self.heart.stop()
            with suppress(httpx.HTTPError):
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self.client.close()

    def open(self) -> None:
        """Join the fleet.

        The id that the server assigns is saved: with it, a client that was killed can reclaim its connection at once,
        whereas Flower would make it wait until its heartbeat is missed.
        """
        kept = self.home / "state" / "node.json"
        before = read_json_or_none(kept)
        if isinstance(before, int):
            with suppress(httpx.HTTPStatusError):
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=before))
        wanted = ActivateNodeRequest(public_key=self.public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        self.node = Node(node_id=self.client.ActivateNode(wanted).node_id)
        write_json(kept, self.node.node_id)
        self._back()
        self.heart.start()

    def away(self, error: Exception | None) -> None:
        """Say once that the server cannot be reached."""
        if not self.told:
            self.told = True
            self.events.note("server away", what=repr(error))
            why = f" now ({_why(error)})" if isinstance(error, httpx.HTTPStatusError) else ""
            self.say(f"{self.fleet.address} cannot be reached{why}; retrying until it can")

    def _back(self) -> None:
        if self.told:
            self.told = False
            self.events.note("server back")

    def _beat(self) -> bool:
        """Whether the server received our heartbeat; if not, Flower's sender retries, and the next request shows the reason."""
        beat = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        try:
            return bool(self.client.SendNodeHeartbeat(beat).success)
        except (httpx.HTTPError, ValueError, RuntimeError):
            return False

    def _ask(self, call: Callable[[Any], Any], request: Any) -> Any:
        """One request about a run; 403 is how Flower says that the run is over."""
        try:
            return self.retry.invoke(call, request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 403:
                raise RunNotRunningException from error
            raise

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """The next message without its content, and the names of its parts; None if there is none."""
        found = self.retry.invoke(self.client.PullMessages, PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return None
        return message_from_proto(found.messages_list[0]), found.message_object_trees[0]

    def send(self, reply: Message, tree: ObjectTree, seconds: float) -> tuple[set[str], str]:
        """Send a reply without its content; returns which parts the server wants, and the session."""
        head = message_to_proto(remove_content_from_message(reply) if reply.has_content() else reply)
        request = PushMessagesRequest(
            node=self.node, messages_list=[head], message_object_trees=[tree], clientapp_runtime_list=[seconds]
        )
        found = self._ask(self.client.PushMessages, request)
        return set(found.objects_to_push), found.session_id

    def pull(self, run_id: int, part: str) -> bytes:
        """Fetch a part of a message."""
        ask = functools.partial(self._ask, self.client.PullObject)
        return make_pull_object_fn_protobuf(ask, self.node, run_id)(part)

    def push(self, run_id: int, session: str, part: str, contents: bytes) -> None:
        """Send a part of a reply."""
        ask = functools.partial(self._ask, self.client.PushObject)
        make_push_object_fn_protobuf(ask, self.node, run_id, session)(part, contents)

    def confirm(self, run_id: int, message_id: str) -> None:
        """Confirm that all parts of a message have arrived."""
        ask = functools.partial(self._ask, self.client.ConfirmMessageReceived)
        make_confirm_message_received_fn_protobuf(ask, self.node, run_id)(message_id)


def _hopeless(error: Exception) -> bool:
    """Whether the same request would fail again."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code not in AWAY
    return any(word in str(error).lower() for word in ("certificate", "ssl", "tls"))


class _Link:
    """Handles messages one after another: receive it completely, answer, send the complete reply."""

    def __init__(self, connection: Connection, app: ClientApp, events: Events) -> None:
        self.connection, self.app, self.events = connection, app, events

    def answer(self, head: Message, tree: ObjectTree) -> None:
        """Errors of the app are logged here in full; the server gets only their type, since the text may name files."""
        try:
            message = self._get(head, tree)
            began = time.monotonic()
            try:
                node_id = self.connection.node.node_id
                reply = self.app(message, Context(head.metadata.run_id, node_id, {}, RecordDict(), {}))
            except Exception as error:
                self.events.note("failed", what=repr(error))
                reply = _error(message, f"{type(error).__name__}, see the client's log")
            self._put(reply, time.monotonic() - began)
        except RunNotRunningException:
            self.events.note("run over", message=head.metadata.message_id)
        except Exception as error:
            self.events.note("not delivered", what=repr(error))
            self._give_up(head, error)

    def _give_up(self, head: Message, error: Exception) -> None:
        """Tell the server that no reply will come; without a deadline it would wait for days."""
        try:
            why = f"the model could not be received or sent ({type(error).__name__}), see the client's log"
            self._put(_error(head, why), 0.0)
        except Exception as again:
            self.events.note("failure not reported", what=repr(again))

    def _get(self, head: Message, tree: ObjectTree) -> Message:
        run_id, message_id = head.metadata.run_id, head.metadata.message_id
        ids = [branch.object_id for branch in iterate_object_tree(tree)]
        if len(ids) > MAX_OBJECTS:
            raise ValueError(f"a message of {len(ids)} pieces")
        contents = pull_objects(ids, functools.partial(self.connection.pull, run_id))
        self.connection.confirm(run_id, message_id)
        message = inflate_object_from_contents(message_id, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = message_id
        return message

    def _put(self, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            wanted, session = self.connection.send(reply, tree, seconds)
            run_id = reply.metadata.run_id
            push_objects(objects, functools.partial(self.connection.push, run_id, session), object_ids_to_push=wanted)


def _error(message: Message, why: str) -> Message:
    return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, why), reply_to=message)
