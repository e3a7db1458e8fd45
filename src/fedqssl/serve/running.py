"""Run the service: bind first, so that a port in use gives a one-line error."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from fedqssl.data.pixels import import_extra
from fedqssl.listen import is_loopback
from fedqssl.serve.limits import LOOPBACK, Limits

if TYPE_CHECKING:
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
    config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_keep_alive=5)
    uvicorn.Server(config).run(sockets=[sock])


__all__ = ["check_serve", "serve"]
