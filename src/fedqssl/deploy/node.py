"""``fedqssl deploy client``: receive messages from the server and let the ClientApp answer them, all in this one process.

Flower's SuperNode would start a process for every message and run code sent by the server. This loop uses its requests
(TLS, signatures, heartbeats, retries) and runs the ClientApp that is installed here, and nothing else.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import httpx
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.message_pb2 import ObjectTree
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from fedqssl.deploy.connection import UPGRADE, Connection, RunOverError, Whereabouts, clock_difference, told, why
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError, stop_like_ctrl_c
from fedqssl.deploy.keys import read_key
from fedqssl.deploy.limits import Allowance
from fedqssl.engines.flower import hush
from fedqssl.engines.flower.client import RAISED

POLL, IDLE = 0.5, 3.0
"""Seconds between two polls for messages: shortly after the last one, and when idle."""
RETRY, LONGEST = 3.0, 60.0
"""Seconds before a connection is retried: after the first failure, and at most."""
REFUSED = (401, 403, 412)
"""Flower's response to an unknown key: 412 to a request to join, 401 to everything else."""
REFUSALS = 3
"""A key that was just added to the server's folder takes a second or two to be recognised."""
MAX_OBJECTS = 1000
"""Pieces of a message: ours have six and one more for every 5 MiB."""


class QuietError(RuntimeError):
    """The hours in which this client takes part are over."""


def run_node(
    fleet: Fleet,
    name: str,
    app: ClientApp,
    events: Events,
    say: Callable[[str], None],
    allowance: Allowance | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C; waits for a server that is away; it is an error if the server rejects the key."""
    os.environ["FLWR_HOME"] = str(fleet.client(name) / "flwr")
    hush(fleet.client(name) / "flower.log")
    signal.signal(signal.SIGTERM, stop_like_ctrl_c)
    key, wait = read_key(fleet.client(name) / "key"), RETRY
    allowance, where = allowance or Allowance(), Whereabouts(fleet)
    with suppress(KeyboardInterrupt):
        while True:
            _wait_for_hours(name, allowance, events, say)
            address = where.fleet.address
            with Connection(where.fleet, name, key, events, say, allowance, where) as connection:
                if not _admit(connection):
                    continue
                say(f"{name} is connected to {address}; stop with Ctrl-C")
                events.note("connected", server=address)
                began = time.monotonic()
                error = _serve(_Link(connection, app, events))
            if isinstance(error, QuietError):
                continue
            wait = RETRY if time.monotonic() - began > LONGEST else wait
            events.note("disconnected", what=repr(error))
            say(f"the connection to {address} broke ({why(error)}); retrying")
            time.sleep(wait)
            wait = min(2 * wait, LONGEST)
    events.note("stopped")
    say(f"{name} has stopped")


def _wait_for_hours(name: str, allowance: Allowance, events: Events, say: Callable[[str], None]) -> None:
    """Wait until this client may take part; looks at the clock every minute, for it may be set meanwhile."""
    if allowance.seconds_until_open():
        events.note("quiet", hours=str(allowance.hours))
        say(f"{name} takes part from {allowance.hours}; it is disconnected until then")
    while left := allowance.seconds_until_open():
        time.sleep(min(left, LONGEST))


def _serve(link: _Link) -> Exception:
    """Answer messages until the connection fails, or its hours are over; returns the error."""
    pause = POLL
    while True:
        if link.connection.allowance.seconds_until_open():
            return QuietError()
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


def _admit(to: Connection) -> bool:
    """Return True once the server accepts this key; an unreachable server is retried, a refusal is not.

    False: the fleet's address has changed, and the connection must be made anew.
    """
    refused = 0
    while True:
        try:
            to.open()
            return True
        except httpx.HTTPStatusError as error:
            if error.response.status_code == UPGRADE:
                to.events.note("refused", server=to.fleet.address, status=UPGRADE)
                raise FleetError(f"{to.fleet.address} refuses {to.name}: {told(error.response)}") from error
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
                    f"and give deploy renew the server's address"
                ) from error
            to.away(error)
        time.sleep(RETRY)
        if to.where.moved():
            return False


def _check_clock(to: Connection, response: httpx.Response) -> None:
    """A signature is of the time: with another time than the server's, every key is refused."""
    ahead = clock_difference(response)
    if ahead:
        where = "ahead of" if ahead > 0 else "behind"
        raise FleetError(
            f"the server at {to.fleet.address} refuses {to.name}: this machine's clock differs by {abs(ahead):.0f} s (it is "
            f"{where} the server's); let NTP set both clocks, for example with timedatectl set-ntp true"
        )


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
        except RunOverError:
            self.events.note("run over", message=head.metadata.message_id)
        except Exception as error:
            self.events.note("not delivered", what=repr(error))
            self._give_up(head, error)

    def _give_up(self, head: Message, error: Exception) -> None:
        """Tell the server that no reply will come; without a deadline it would wait for days."""
        try:
            text = f"the model could not be received or sent ({type(error).__name__}), see the client's log"
            self._put(_error(head, text), 0.0)
        except Exception as again:
            self.events.note("failure not reported", what=repr(again))

    def _get(self, head: Message, tree: ObjectTree) -> Message:
        run_id, message_id = head.metadata.run_id, head.metadata.message_id
        ids = [branch.object_id for branch in iterate_object_tree(tree)]
        if len(ids) > MAX_OBJECTS:
            raise ValueError(f"a message of {len(ids)} pieces")
        contents = {part: self.connection.pull(run_id, part) for part in dict.fromkeys(ids)}
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
            for part in [part for part in objects if part in wanted]:
                self.connection.push(run_id, session, part, objects.pop(part).deflate())


def _error(message: Message, text: str) -> Message:
    return Message(Error(RAISED, text), reply_to=message)
