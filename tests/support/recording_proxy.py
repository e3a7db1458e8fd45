"""Between a client and the server with the server's own key: forwards everything and keeps every byte, decrypted."""

import contextlib
import socket
import ssl
import threading

from fedqssl.deploy.fleet import Fleet


class RecordingProxy:
    """Use as a context manager; ``sent`` is what clients sent, ``received`` what they got, one connection after the other."""

    def __init__(self, fleet: Fleet) -> None:
        self._sent: list[bytearray] = []
        self._received: list[bytearray] = []
        host, _, port = fleet.address.rpartition(":")
        self.target = host, int(port)
        self.inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.inside.load_cert_chain(fleet.server / "server.crt", fleet.server / "server.key")
        self.outside = ssl.create_default_context(cafile=str(fleet.authority))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.open = True

    @property
    def sent(self) -> bytes:
        return b"".join(self._sent)

    @property
    def received(self) -> bytes:
        return b"".join(self._received)

    def __enter__(self):
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.open = False
        self.listener.close()

    def _accept(self) -> None:
        while self.open:
            with contextlib.suppress(OSError):
                plain, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client = self.inside.wrap_socket(plain, server_side=True)
            server = self.outside.wrap_socket(socket.create_connection(self.target), server_hostname=self.target[0])
            threading.Thread(target=self._pump, args=(server, client, self._received), daemon=True).start()
            self._pump(client, server, self._sent)

    def _pump(self, source: ssl.SSLSocket, target: ssl.SSLSocket, all_kept: list[bytearray]) -> None:
        kept = bytearray()
        all_kept.append(kept)
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
