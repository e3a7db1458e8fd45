"""``fedqssl deploy client``: take messages from the server, let the ClientApp answer them, in this one process.

Flower's SuperNode would start a process for every message and run code that the server sends. This loop uses its connection
(TLS, signed requests, heartbeats, retries) and runs the ClientApp that is installed here, and nothing else.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import httpx
from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, ErrorCode
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents, pull_objects, push_objects
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError, read_json, stop_like_ctrl_c, write_json
from fedqssl.deploy.keys import PrivateKey, read_key
from fedqssl.engines.flower import hush

POLL, IDLE = 0.5, 3.0
"""Seconds between two looks for a message: soon after the last one, and when nothing happens."""
RETRY = 3.0
REFUSALS = 3
"""A key that has just been put into the server's folder takes a second or two to be known."""
MAX_OBJECTS = 1000
"""Pieces of a message: ours have six and one more for every 5 MiB."""


def run_node(fleet: Fleet, name: str, app: ClientApp, events: Events, say: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; a server that is away is waited for."""
    os.environ["FLWR_HOME"] = str(fleet.client(name) / "flwr")
    hush(fleet.client(name) / "flower.log")
    signal.signal(signal.SIGTERM, stop_like_ctrl_c)
    key = read_key(fleet.client(name) / "key")
    with suppress(KeyboardInterrupt):
        _admitted(fleet, name, key, say)
        say(f"{name} is connected to {fleet.address}; stop with Ctrl-C")
        events.note("connected", server=fleet.address)
        with http_request_response(
            fleet.address, False, fleet.authority.read_bytes(), (key, key.public_key())
        ) as connection:
            node_id, receive, send, _, _, pull, push, confirm = connection
            link = _Link(node_id, app, events, send, pull, push, confirm)
            pause = POLL
            while True:
                got = receive()
                if got is None:
                    time.sleep(pause)
                    pause = min(1.25 * pause, IDLE)
                else:
                    link.answer(*got)
                    pause = POLL
    events.note("stopped")
    say(f"{name} has stopped")


def _admitted(fleet: Fleet, name: str, key: PrivateKey, say: Callable[[str], None]) -> None:
    """Return when the server takes this key; a server that cannot be reached is tried again, one that refuses is not."""
    refused, told = 0, False
    while True:
        try:
            _knock(fleet, name, key)
            return
        except httpx.HTTPStatusError as error:
            refused += 1
            if refused >= REFUSALS:
                where = fleet.client(name) / "key.pub"
                raise FleetError(
                    f"the server at {fleet.address} refuses {name} ({error.response.status_code}): its key is not known "
                    f"there; put {where} into clients/{name}/ of the server's fleet folder"
                ) from error
        except httpx.TransportError as error:
            if "certificate" in str(error).lower():
                raise FleetError(
                    f"{fleet.address} does not show this fleet's certificate ({error}); copy ca.crt from the server anew, and "
                    f"see that init knew the server's address"
                ) from error
            if not told:
                say(f"{fleet.address} cannot be reached; trying again until it can")
                told = True
        time.sleep(RETRY)


def _knock(fleet: Fleet, name: str, key: PrivateKey) -> None:
    """Come and go once.

    The number that the server gives us is kept: with it, a client that was killed can take its own connection back at once,
    where Flower would have it wait until its heartbeat is missed.
    """
    public, kept = key.public_key(), fleet.client(name) / "state" / "node.json"
    authority, sign = fleet.authority.read_bytes(), NodeAuthHttpInterceptor(key, public)
    with FleetHttpClient.from_server_address(fleet.address, False, authority, [sign]) as client:
        before = read_json(kept)
        if isinstance(before, int):
            with suppress(httpx.HTTPStatusError):
                client.DeactivateNode(DeactivateNodeRequest(node_id=before))
        pem = public_key_to_bytes(public)
        found = client.ActivateNode(ActivateNodeRequest(public_key=pem, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL))
        write_json(kept, found.node_id)
        client.DeactivateNode(DeactivateNodeRequest(node_id=found.node_id))


class _Link:
    """One message after the other: get all of it, answer, send all of the answer."""

    def __init__(
        self,
        node_id: int,
        app: ClientApp,
        events: Events,
        send: Callable[[Message, ObjectTree, float], tuple[set[str], str]],
        pull: Callable[[int, str], bytes],
        push: Callable[[int, str, str, bytes], None],
        confirm: Callable[[int, str], None],
    ) -> None:
        self.node_id, self.app, self.events = node_id, app, events
        self.send, self.pull, self.push, self.confirm = send, pull, push, confirm

    def answer(self, head: Message, tree: ObjectTree) -> None:
        """Errors of the app go to our log in full and to the server by their kind alone: their text may name files."""
        try:
            message = self._get(head, tree)
            began = time.monotonic()
            try:
                reply = self.app(message, self._context(head.metadata.run_id))
            except Exception as error:
                self.events.note("failed", what=repr(error))
                error_ = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error).__name__}, see the client's log")
                reply = Message(error_, reply_to=message)
            self._put(reply, time.monotonic() - began)
        except RunNotRunningException:
            self.events.note("run over", message=head.metadata.message_id)
        except Exception as error:
            self.events.note("not delivered", what=repr(error))

    def _context(self, run_id: int) -> Context:
        return Context(run_id=run_id, node_id=self.node_id, node_config={}, state=RecordDict(), run_config={})

    def _get(self, head: Message, tree: ObjectTree) -> Message:
        run_id, message_id = head.metadata.run_id, head.metadata.message_id
        ids = [branch.object_id for branch in iterate_object_tree(tree)]
        if len(ids) > MAX_OBJECTS:
            raise ValueError(f"a message of {len(ids)} pieces")
        contents = pull_objects(ids, functools.partial(self.pull, run_id))
        self.confirm(run_id, message_id)
        message = inflate_object_from_contents(message_id, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = message_id
        return message

    def _put(self, reply: Message, seconds: float) -> None:
        reply.metadata.__dict__["_message_id"] = reply.object_id
        with no_object_id_recompute():
            objects, tree = get_all_nested_objects(reply), get_object_tree(reply)
            wanted, session = self.send(reply, tree, seconds)
            run_id = reply.metadata.run_id
            push_objects(objects, functools.partial(self.push, run_id, session), object_ids_to_push=wanted)
