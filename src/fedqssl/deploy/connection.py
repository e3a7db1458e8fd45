"""A client's connection to its server: Flower's requests with the client's key, over TLS, retried while the server is away."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError
from fedqssl.deploy.heart import INTERVAL, Heart
from fedqssl.deploy.keys import PrivateKey, public_pem
from fedqssl.deploy.limits import Allowance
from fedqssl.deploy.versions import HEADER, own_versions, versions_text
from fedqssl.files import printable, read_json_or_none, write_json

AWAY = (502, 503, 504)
UPGRADE = 426
"""The server's response to a client whose version does not fit."""
PAUSES = (1.0, 2.0, 4.0, 8.0, 16.0, 20.0)
"""Seconds between attempts of a request to a server that is away; the last again and again."""
UNAVAILABLE = 180.0
"""Seconds for which a part of a message that is not there yet is asked for."""
SKEW = 4.0
"""Seconds by which clocks may differ; Flower refuses a signature from 5 s in the future, or from 5 minutes ago."""


class RunOverError(RuntimeError):
    """The run that a message belongs to has ended."""


class PartError(RuntimeError):
    """A part of a message could not be received or sent."""


class Whereabouts:
    """The fleet's address, which may change while a client is running: ``fleet.toml`` is then replaced.

    An address from the command line holds until then.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._noted = self._read()

    def _read(self) -> str | None:
        with suppress(FleetError, OSError):
            return Fleet.open(self.fleet.path).address
        return None

    def moved(self) -> bool:
        """Whether the file has another address than before; ``fleet`` has it from now on."""
        now = self._read()
        if now is None or now == self._noted:
            return False
        self._noted, self.fleet = now, replace(self.fleet, address=now)
        return True


class NamedVersions:
    """Names our versions in every request, so that the server can say which side to upgrade."""

    def __init__(self) -> None:
        self.text = versions_text(own_versions())

    def intercept(self, context: Any, call_next: Callable[[Any], httpx.Response]) -> httpx.Response:
        """Called by Flower's client around every request."""
        context.request.headers[HEADER] = self.text
        return call_next(context)


class Connection:
    """Flower's requests with this client's key; use as a context manager.

    Flower's own connection ends the process when a request is refused, and hides other errors; here both are raised, and only
    an unreachable server is retried. Parts of messages travel one after another, so that a rate can be kept.
    """

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        key: PrivateKey,
        events: Events,
        say: Callable[[str], None],
        allowance: Allowance | None = None,
        where: Whereabouts | None = None,
    ) -> None:
        self.fleet, self.name, self.home, self.events, self.say = fleet, name, fleet.client(name), events, say
        self.allowance, self.where = allowance or Allowance(), where or Whereabouts(fleet)
        self.public, self.node, self.told = public_pem(key.public_key()), Node(), False
        signed = NodeAuthHttpInterceptor(key, key.public_key())
        self.client = FleetHttpClient.from_server_address(
            fleet.address, False, fleet.authority.read_bytes(), [NamedVersions(), signed]
        )
        self.heart = Heart(self._beat)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *error: object) -> None:
        if self.heart.beating:
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
        wanted = ActivateNodeRequest(public_key=self.public, heartbeat_interval=INTERVAL)
        self.node = Node(node_id=self.client.ActivateNode(wanted).node_id)
        write_json(kept, self.node.node_id)
        self._back()
        self.heart.start()

    def away(self, error: Exception | None) -> None:
        """Say once that the server cannot be reached."""
        if not self.told:
            self.told = True
            self.events.note("server away", what=repr(error))
            now = f" now ({why(error)})" if isinstance(error, httpx.HTTPStatusError) else ""
            self.say(f"{self.fleet.address} cannot be reached{now}; retrying until it can")

    def _back(self) -> bool:
        """Whether the server was away until now."""
        was_away, self.told = self.told, False
        if was_away:
            self.events.note("server back")
        return was_away

    def _beat(self) -> bool:
        """Whether the server received our heartbeat; if not, the next request shows the reason."""
        beat = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=INTERVAL)
        try:
            return bool(self.client.SendNodeHeartbeat(beat).success)
        except (httpx.HTTPError, ValueError, RuntimeError):
            return False

    def _persist(self, call: Callable[[Any], Any], request: Any) -> Any:
        """One request, again and again while the server is away, unless the fleet's address has changed."""
        tries = 0
        while True:
            try:
                found = call(request)
            except (httpx.TransportError, httpx.HTTPStatusError) as error:
                if _hopeless(error) or self.where.moved():
                    raise
                self.away(error)
                time.sleep(PAUSES[min(tries, len(PAUSES) - 1)])
                tries += 1
            else:
                if self._back():
                    self.say(f"{self.name} is connected to {self.fleet.address} again")
                return found

    def _ask(self, call: Callable[[Any], Any], request: Any) -> Any:
        """One request about a run; 403 is how Flower says that the run is over."""
        try:
            return self._persist(call, request)
        except httpx.HTTPStatusError as error:
            if error.response.status_code == 403:
                raise RunOverError from error
            raise

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """The next message without its content, and the names of its parts; None if there is none."""
        found = self._persist(self.client.PullMessages, PullMessagesRequest(node=self.node))
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
        request = PullObjectRequest(node=self.node, run_id=run_id, object_id=part)
        end, tries = time.monotonic() + UNAVAILABLE, 0
        while True:
            found = self._ask(self.client.PullObject, request)
            if found.object_found and found.object_available:
                content: bytes = found.object_content
                self.allowance.rate.spend(len(content))
                return content
            if not found.object_found or time.monotonic() > end:
                raise PartError(f"the server does not have part {part} of its message")
            time.sleep(PAUSES[min(tries, 3)])
            tries += 1

    def push(self, run_id: int, session: str, part: str, content: bytes) -> None:
        """Send a part of a reply."""
        self.allowance.rate.spend(len(content))
        request = PushObjectRequest(
            node=self.node, run_id=run_id, object_id=part, object_content=content, session_id=session
        )
        if not self._ask(self.client.PushObject, request).stored:
            raise PartError(f"the server did not take part {part} of the reply")

    def confirm(self, run_id: int, message_id: str) -> None:
        """Confirm that all parts of a message have arrived."""
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=run_id, message_object_id=message_id)
        self._ask(self.client.ConfirmMessageReceived, request)


def _hopeless(error: Exception) -> bool:
    """Whether the same request would fail again."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code not in AWAY
    return any(word in str(error).lower() for word in ("certificate", "ssl", "tls"))


def clock_difference(response: httpx.Response) -> float:
    """Seconds by which this machine's clock is ahead of the server's, which every response states; 0 within a tolerance."""
    try:
        there = parsedate_to_datetime(response.headers.get("date", "")).timestamp()
    except (ValueError, TypeError):
        return 0.0
    ahead = time.time() - there
    return ahead if abs(ahead) > SKEW else 0.0


def why(error: Exception) -> str:
    """The error in a few words."""
    if isinstance(error, httpx.HTTPStatusError):
        ahead = clock_difference(error.response)
        clock = f"; the clock differs by {abs(ahead):.0f} s from the server's" if ahead else ""
        return f"HTTP status {error.response.status_code}{clock}"
    return " ".join(f"{type(error).__name__} {error}".split())


def told(response: httpx.Response) -> str:
    """What the server says in a refusal of its own."""
    try:
        return printable(str(json.loads(response.content)["error"]))[:300]
    except (ValueError, KeyError, TypeError):
        return f"HTTP status {response.status_code}"
