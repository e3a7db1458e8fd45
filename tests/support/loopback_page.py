"""A page of ours on loopback, and how to ask for it."""

import http.client
import threading
from contextlib import contextmanager


@contextmanager
def served(server):
    """The port of one of the standard library's HTTP servers, while it serves in a thread."""
    with server as found:
        thread = threading.Thread(target=found.serve_forever, daemon=True)
        thread.start()
        try:
            yield found.server_address[1]
        finally:
            found.shutdown()
            thread.join(20)


def ask(port, path="/", host=None, method="GET"):
    """Status, text and headers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    reply = connection.getresponse()
    return reply.status, reply.read().decode(), dict(reply.getheaders())
