"""Between a client and the server with the server's own key: forwards everything and keeps every byte, decrypted."""

import asyncio
import contextlib
import ssl
import threading

from fedqssl.deploy.fleet import Fleet
from fleet_processes import PATIENCE


class RecordingProxy:
    """Use as a context manager; ``sent`` is what clients sent, ``received`` what they got, one connection after the other.

    All connections belong to the event loop of one thread: OpenSSL may crash if one thread reads a connection while another
    writes to it.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._sent: list[list[bytes]] = []
        self._received: list[list[bytes]] = []
        host, _, port = fleet.address.rpartition(":")
        self.target = host, int(port)
        self.inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.inside.load_cert_chain(fleet.server / "server.crt", fleet.server / "server.key")
        self.outside = ssl.create_default_context(cafile=str(fleet.authority))
        self.thread = threading.Thread(target=lambda: asyncio.run(self._listen()), daemon=True)
        self.listening = threading.Event()

    @property
    def sent(self) -> bytes:
        return b"".join(piece for connection in list(self._sent) for piece in connection)

    @property
    def received(self) -> bytes:
        return b"".join(piece for connection in list(self._received) for piece in connection)

    def __enter__(self):
        self.thread.start()
        assert self.listening.wait(PATIENCE)
        return self

    def __exit__(self, *error) -> None:
        self.loop.call_soon_threadsafe(self.leave.set)
        self.thread.join(PATIENCE)

    async def _listen(self) -> None:
        self.loop, self.leave = asyncio.get_running_loop(), asyncio.Event()
        options = {"ssl": self.inside, "ssl_handshake_timeout": PATIENCE}
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0, **options)
        self.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        self.listening.set()
        await self.leave.wait()
        listener.close()

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError), contextlib.closing(to_client):
            server, to_server = await asyncio.open_connection(
                *self.target, ssl=self.outside, ssl_handshake_timeout=PATIENCE
            )
            with contextlib.closing(to_server):
                ways = (client, to_server, self._sent), (server, to_client, self._received)
                pumps = [asyncio.ensure_future(_pump(*way)) for way in ways]
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)  # one side closed: so do we, both
                for pump in pumps:
                    pump.cancel()
                await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter, all_kept: list[list[bytes]]) -> None:
    kept: list[bytes] = []
    all_kept.append(kept)
    while data := await source.read(1 << 16):
        kept.append(data)
        target.write(data)
        await target.drain()
