"""Hostile connections to a port of this machine, from a process of their own: ``python flood.py PORT AUTHORITY SECONDS COUNT``.

Idle, half a header, half a body, a long header, one connection after another, from nine addresses of the loopback interface.
"""

import contextlib
import socket
import ssl
import sys
import threading

HALF = {
    0: b"",
    1: b"POST /v1/",
    2: b"POST /v1/fleet/x HTTP/1.1\r\nHost: a\r\nContent-Length: 6000000\r\n\r\n" + b"x" * 60000,
    3: b"GET /v1/fleet/x HTTP/1.1\r\nX: " + b"x" * (1 << 20),
}


def flood(number: int, port: int, context: ssl.SSLContext, stop: threading.Event) -> None:
    """One connection after another until told to stop; every fourth never begins TLS."""
    kind, source = number % 4, f"127.0.0.{1 + number % 9}"
    while not stop.is_set():
        with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
            sock = socket.create_connection(("127.0.0.1", port), timeout=5, source_address=(source, 0))
            opened.callback(sock.close)
            if kind:
                sock = opened.enter_context(context.wrap_socket(sock, server_hostname="localhost"))
            sock.sendall(HALF[kind])
            stop.wait(5)
        stop.wait(1)


def main(port: int, authority: str, seconds: float, count: int) -> None:
    """Flood the port for so long."""
    context, stop = ssl.create_default_context(cafile=authority), threading.Event()
    threads = [threading.Thread(target=flood, args=(i, port, context, stop), daemon=True) for i in range(count)]
    for thread in threads:
        thread.start()
    stop.wait(seconds)
    stop.set()
    for thread in threads:
        thread.join(10)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], float(sys.argv[3]), int(sys.argv[4]))
