"""``fedqssl deploy server``: one process with the SuperLink, and a supervisor thread for everything else."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fedqssl.data.registry import load_dataset
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError, ServerData, full, only_one, stop_like_ctrl_c
from fedqssl.deploy.page import PageProcess
from fedqssl.deploy.supervisor import Supervisor
from fedqssl.engines.flower import hush
from fedqssl.listen import ConnectionLimits, Doors, bind, limited_protocol, small_tls_buffers

if TYPE_CHECKING:
    from socket import socket

    import uvicorn

CONNECTIONS = ConnectionLimits(total=500, each=100)
"""A client has one connection, or two for a moment; clients behind one router share an address."""


def serve(
    fleet: Fleet,
    data: ServerData,
    host: str,
    port: int,
    max_bytes: int,
    say: Callable[[str], None] = print,
    resume: bool = True,
    page: str | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C.

    Args:
        fleet: the fleet.
        data: the server's images.
        host: the address to listen on.
        port: the port to listen on.
        max_bytes: the largest message.
        say: receives lines for the terminal.
        resume: resume an interrupted run without being asked for.
        page: where to show the fleet in a browser: a port, or an address and a port.
    """
    _check_ready(fleet, data)
    os.environ["FLWR_HOME"] = str(fleet.server / "flwr")
    import uvicorn

    from fedqssl.deploy.superlink import SuperLink

    hush(fleet.server / "flower.log")
    with only_one(fleet.server, f"the server of {fleet.path}"):
        doors = Doors(CONNECTIONS)
        sock = bind(host, port, doors)
        events = Events(fleet.server / "log.jsonl")
        link = SuperLink(fleet, host, port, max_bytes, events, doors)
        link.put_out_strangers()
        link.admit()
        port = sock.getsockname()[1]
        config = server_config(link.guard, fleet, doors)
        certificate = Certificate(config, fleet, events)
        address = own_address(host, port)
        supervisor = Supervisor(fleet, link, data, address, events, resume, say, (certificate.refresh,))
        shown = PageProcess(fleet, page) if page is not None else None
        say(f"serving {fleet.path} on {host} port {port}; start a run with: fedqssl deploy start {fleet.path}")
        if shown is not None:
            say(f"the fleet's page is http://{own_address(*shown.address)}; it can only be read")
        events.note("server started", host=host, port=port)
        try:
            _until_stopped(uvicorn.Server(config), sock, supervisor)
        finally:
            if shown is not None:
                shown.end()
            events.note("server stopped")


def _check_ready(fleet: Fleet, data: ServerData) -> None:
    """Refuse what would only fail later: a client's copy of the fleet, a full disk, images that cannot be read.

    Raises:
        FleetError: there is no key, or no space.
        DataError: the images cannot be read.
    """
    if not (fleet.server / "server.key").is_file():
        raise FleetError(
            f"{fleet.server} has no key: this is a client's copy of the fleet; start the server where you ran init"
        )
    if why := full(fleet.server):
        raise FleetError(f"{why}; free some space, then start the server again")
    for spec in filter(None, (data.buffer, data.labeled)):
        load_dataset(spec, "train", on_bad="skip")


def _until_stopped(server: uvicorn.Server, sock: socket, supervisor: Supervisor) -> None:
    signal.signal(signal.SIGTERM, stop_like_ctrl_c)  # uvicorn ends in order, and then gives the signal on
    supervisor.start()
    try:
        with suppress(KeyboardInterrupt):
            server.run(sockets=[sock])
    finally:
        supervisor.leave()


class Certificate:
    """Has the running server use a renewed certificate (``fedqssl deploy renew``) for new connections."""

    def __init__(self, config: uvicorn.Config, fleet: Fleet, events: Events) -> None:
        self.config, self.file, self.events = config, fleet.server / "server.crt", events
        self.seen = self.file.read_bytes()

    def refresh(self) -> None:
        """Load the certificate if it has changed; it is replaced atomically, so it is never half of one."""
        now = self.file.read_bytes()
        if now == self.seen or self.config.ssl is None:
            return
        try:
            self.config.ssl.load_cert_chain(self.file, self.file.with_name("server.key"))
        except (OSError, ValueError) as error:  # of its own errors, those of ssl are OSErrors
            self.events.note("certificate not used", why=str(error))
        else:
            self.events.note("certificate renewed")
        self.seen = now


def server_config(app: Any, fleet: Fleet, doors: Doors) -> uvicorn.Config:
    """How the guarded SuperLink is served: over TLS, with limits on connections from the moment they are accepted."""
    import uvicorn

    small_tls_buffers()
    return uvicorn.Config(
        app,
        ssl_certfile=str(fleet.server / "server.crt"),
        ssl_keyfile=str(fleet.server / "server.key"),
        http=limited_protocol(doors, complete_is_proof=False),
        ws="none",
        loop="asyncio",  # another loop would not ask our socket, which limits connections before TLS
        h11_max_incomplete_event_size=doors.limits.head_bytes,
        timeout_graceful_shutdown=2,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )


def own_address(host: str, port: int) -> str:
    """The address at which this machine reaches a server that listens on ``host``."""
    here = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
    return f"[{here}]:{port}" if ":" in here else f"{here}:{port}"
