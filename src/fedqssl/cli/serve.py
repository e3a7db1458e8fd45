"""``fedqssl serve``: a device file as a small HTTP service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedqssl.cli.predict import File, Trust

Host = Annotated[str, typer.Option(help="Address to listen on; by default this machine only.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")]
Megabytes = Annotated[int, typer.Option("--max-mib", min=1, max=1024, help="Largest request, in MiB.")]
Rate = Annotated[float, typer.Option(min=0.01, help="Requests per second allowed for each caller.")]
Threads = Annotated[int, typer.Option(min=1, help="Torch threads.")]


def serve(
    file: File,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    max_mib: Megabytes = 20,
    rate: Rate = 20.0,
    threads: Threads = 1,
    trust: Trust = False,
) -> None:
    """Answer POST /predict, and serve a page where you can drop images.

    For example: fedqssl serve phone.fqssl --port 8000, then open http://127.0.0.1:8000
    """
    from fedqssl.listen import bind, is_loopback
    from fedqssl.serve.running import check_serve
    from fedqssl.serve.running import serve as run

    check_serve()
    import torch

    from fedqssl.device import load
    from fedqssl.serve.limits import Limits

    torch.set_num_threads(threads)
    limits = Limits(request_bytes=max_mib << 20, rate=rate, burst=max(100, int(5 * rate)))
    model = load(Path(file), trust=trust)
    sock = bind(host, port)
    shown = f"[{host}]" if ":" in host else host
    typer.echo(f"serving {file} on http://{shown}:{sock.getsockname()[1]}; stop with Ctrl-C")
    if not is_loopback(host):
        typer.echo(
            "warning: anyone who can reach this address can use it; there is no password and no encryption", err=True
        )
    run(model, sock, host, limits)
