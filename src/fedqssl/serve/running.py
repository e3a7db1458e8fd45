"""Run the service: bind first, so that a taken port is an error in one line."""

from __future__ import annotations

import ipaddress
import socket
from typing import TYPE_CHECKING

from fedqssl.data.pixels import import_extra
from fedqssl.serve.limits import LOOPBACK, Limits

if TYPE_CHECKING:
    from fedqssl.device import DeviceModel


def check_serve() -> None:
    """One line that names the extra, if it is not installed."""
    for name in ("fastapi", "PIL", "python_multipart", "uvicorn"):
        import_extra(name, name, "serving", "serve")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        OSError: the address is taken or not this machine's; says what to do.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"cannot listen on {host} port {port} ({reason}); choose another --port or --host") from error
    return found


def serve(model: DeviceModel, sock: socket.socket, host: str, limits: Limits) -> None:
    """Answer requests until Ctrl-C."""
    import uvicorn

    from fedqssl.serve.app import make_app

    app = make_app(model, limits, LOOPBACK if is_loopback(host) else None)
    config = uvicorn.Config(app, log_level="warning", server_header=False, timeout_keep_alive=5)
    uvicorn.Server(config).run(sockets=[sock])


__all__ = ["bind", "check_serve", "is_loopback", "serve"]
