"""Flower's SuperLink, hosted in this process behind the guard: TLS, signed requests, clients known by their keys.

It is Flower's own application and state, without the part that starts code: Flower's command line sends an app's source to the
SuperLink, which passes it to every client. Here both sides run only the software that is installed.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    ISOLATION_MODE_PROCESS,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    TRANSPORT_TYPE_GRPC_RERE,
    SubStatus,
)
from flwr.server.superlink.linkstate import LinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig, load_control_authn_plugin
from flwr.superlink.main import create_app

from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError
from fedqssl.deploy.guard import Guard
from fedqssl.deploy.keys import public_keys
from fedqssl.listen import Doors


@dataclass(frozen=True)
class Ticket:
    """What a run needs to use the SuperLink: its id and its token."""

    run_id: int
    task_id: int
    token: str


class SuperLink:
    """The application and its state."""

    def __init__(
        self, fleet: Fleet, host: str, port: int, max_bytes: int, events: Events, doors: Doors | None = None
    ) -> None:
        self.fleet, self.events = fleet, events
        app = create_app(_config(fleet, host, port), SuperLinkLifespan)
        self.state: LinkState = app.state.linkstate_factory.state()
        self.guard = Guard(app, max_bytes, events, doors or Doors())
        self.keys: dict[str, bytes] = {}
        self.refused: set[bytes] = set()

    def admit(self) -> None:
        """Bring the SuperLink's list of clients up to date with the fleet folder: add new keys, remove deleted ones."""
        there = public_keys(self.fleet)
        for name in [n for n, key in self.keys.items() if there.get(n) != key and self._gone(n, there)]:
            node = self.state.get_node_id_by_public_key(self.keys.pop(name))
            if node is not None:
                self.state.delete_node(NOOP_FLWR_AID, node)
            self.events.note("removed", client=name)
        for name in [n for n in there if n not in self.keys]:
            self._let_in(name, there[name])

    def _let_in(self, name: str, key: bytes) -> None:
        """Register a key once: a key with another name here, or one that was removed before, stays out."""
        if key in self.refused:
            return
        try:
            if key in self.keys.values():
                raise ValueError("this key belongs to another name")
            if self.state.get_node_id_by_public_key(key) is None:
                self.state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, HEARTBEAT_DEFAULT_INTERVAL, name=name)
        except ValueError as error:
            self.refused.add(key)
            self.events.note("not admitted", client=name, why=str(error))
            return
        self.keys[name] = key
        self.guard.know(name, key)
        self.events.note("admitted", client=name)

    def _gone(self, name: str, there: dict[str, bytes]) -> bool:
        """Whether a key was replaced or removed, which is final; a key that cannot be read now is checked again later."""
        try:
            (self.fleet.path / "clients" / name / "key.pub").stat()
        except OSError as error:
            return name in there or isinstance(error, FileNotFoundError)
        return name in there

    def put_out_strangers(self) -> None:
        """At the start: remove keys that were deleted while no server was running."""
        there = public_keys(self.fleet)
        known = set(there.values())
        for node in self.state.get_node_info(owner_aids=[NOOP_FLWR_AID]):
            if node.public_key not in known and not node.unregistered_at and self._gone(node.name, there):
                self.state.delete_node(NOOP_FLWR_AID, node.node_id)

    def connected(self) -> dict[str, bool]:
        """Whether each client is connected now."""
        names = {key: name for name, key in self.keys.items()}
        nodes = self.state.get_node_info(owner_aids=[NOOP_FLWR_AID])
        return {names[n.public_key]: n.status == "online" for n in nodes if n.public_key in names}

    def open_run(self) -> Ticket:
        """Register a new, running run with the SuperLink; it has no app to send to clients."""
        run_id = self.state.create_run(
            None, None, secrets.token_hex(32), {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        task_id = self.state.get_run_info(run_ids=[run_id])[0].primary_task_id
        token = self.state.claim_task(task_id) if task_id is not None else None
        if task_id is None or token is None or not self.state.activate_task(task_id):
            raise FleetError(
                f"no run could be started; stop the server, delete {self.fleet.server / 'state.db'} and start it again"
            )
        return Ticket(run_id, task_id, token)

    def keep_alive(self, ticket: Ticket) -> None:
        """Tell the SuperLink that the run's process is alive."""
        self.state.acknowledge_task_heartbeat(ticket.task_id)

    def close_run(self, ticket: Ticket, ok: bool) -> tuple[int, int]:
        """End the run; returns the bytes that the SuperLink counted to and from clients."""
        self.state.finish_task(ticket.task_id, SubStatus.COMPLETED if ok else SubStatus.FAILED, "")
        run = self.state.get_run_info(run_ids=[ticket.run_id])[0]
        return run.bytes_sent, run.bytes_recv


def _config(fleet: Fleet, host: str, port: int) -> SuperLinkLifespanConfig:
    files = fleet.authority, fleet.server / "server.crt", fleet.server / "server.key"
    absent = (
        "health_server_address",
        "event_log_plugin",
        "fleet_event_log_plugin",
        "artifact_provider",
        "fleet_api_address",
    )
    off = ("insecure", "enable_event_log", "simulation", "runtime_dependency_install")
    unused: dict[str, Any] = {**dict.fromkeys(absent), **dict.fromkeys(off, False)}
    authority, certificate, key = (file.read_bytes() for file in files)
    return SuperLinkLifespanConfig(
        control_address="",
        host=host,
        port=port,
        certificates=(authority, certificate, key),
        superexec_auth_secret=secrets.token_bytes(32),  # nobody knows it: no SuperExec may take our runs
        authn_plugin=load_control_authn_plugin(),
        enable_supernode_auth=True,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        ssl_ca_certfile=str(files[0]),
        ssl_certfile=str(files[1]),
        ssl_keyfile=str(files[2]),
        database=str(fleet.server / "state.db"),
        isolation=ISOLATION_MODE_PROCESS,
        **unused,
    )
