"""Run the service: bind first, so that a port in use gives a one-line error."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from fedqssl.data.pixels import import_extra
from fedqssl.listen import ConnectionLimits, Doors, is_loopback, limited_protocol
from fedqssl.serve.limits import LOOPBACK, Limits

if TYPE_CHECKING:
    import uvicorn

    from fedqssl.device import DeviceModel


def check_serve() -> None:
    """Raise a one-line error that names the extra if it is not installed."""
    for name in ("fastapi", "PIL", "python_multipart", "uvicorn"):
        import_extra(name, name, "serving", "serve")


def serve(model: DeviceModel, sock: socket.socket, host: str, limits: Limits) -> None:
    """Answer requests until Ctrl-C."""
    import uvicorn

    from fedqssl.serve.app import make_app

    app = make_app(model, limits, LOOPBACK if is_loopback(host) else None)
    uvicorn.Server(server_config(app)).run(sockets=[sock])


def server_config(app: Any, connections: ConnectionLimits | None = None) -> uvicorn.Config:
    """How the application is served: without waiting for, or remembering much of, callers that send nothing sensible."""
    import uvicorn

    return uvicorn.Config(
        app,
        http=limited_protocol(Doors(connections or ConnectionLimits()), complete_is_proof=True),
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=5,
        h11_max_incomplete_event_size=32 << 10,
    )


__all__ = ["check_serve", "serve", "server_config"]
