"""Milliseconds of a request to ``fedqssl serve``, beside what somebody would write without it: FastAPI and fp32 torch.

Both answer over loopback from processes of their own, on one connection each, in turns.
"""

from __future__ import annotations

import http.client
import io
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from fedqssl.device import DeviceModel, load
from fedqssl.studies.bench.records import Record, Row

OURS, PLAIN = "fedqssl serve", "FastAPI, fp32 torch"
BOUNDARY = "fedqssl-bench"
UNLIMITED = 10**6
"""Requests a second: the service must not turn its own benchmark away."""


def plain_app(model: DeviceModel) -> Any:
    """The same backbone in full precision with a linear classifier, behind the plainest service; its weights do not matter."""
    from fastapi import FastAPI, File
    from PIL import Image

    from fedqssl.device.model import architecture

    manifest = model.manifest
    encoder = architecture(manifest).encoder.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    head = torch.nn.Linear(int(encoder.feature_dim), len(manifest.class_names))
    app = FastAPI()

    def predict(images: bytes = File()) -> dict[str, float]:
        with Image.open(io.BytesIO(images)) as picture:
            small = picture.convert("RGB" if manifest.channels == 3 else "L").resize((manifest.size, manifest.size))
        pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8)
        x = pixels.view(1, manifest.size, manifest.size, manifest.channels).permute(0, 3, 1, 2).float() / 255
        with torch.inference_mode():
            values, places = head(encoder(x)).softmax(1).topk(min(3, len(manifest.class_names)))
        names = manifest.class_names
        return {names[int(k)]: float(p) for p, k in zip(values[0], places[0], strict=True)}

    app.post("/predict")(predict)
    return app


def answer(path: str, variant: str) -> None:
    """The body of a measured process: print the port, then answer until it is stopped."""
    import uvicorn

    from fedqssl.serve.app import make_app
    from fedqssl.serve.limits import Limits
    from fedqssl.serve.running import server_config

    torch.set_num_threads(1)
    model = load(path)
    config = (
        server_config(make_app(model, Limits(rate=UNLIMITED, burst=UNLIMITED)))
        if variant == OURS
        else uvicorn.Config(plain_app(model), log_level="error", access_log=False)
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(config).run(sockets=[listening])


@contextmanager
def _service(path: Path, variant: str) -> Iterator[http.client.HTTPConnection]:
    code = f"from fedqssl.studies.bench.serve import answer; answer({str(path)!r}, {variant!r})"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line:
            raise RuntimeError(f"{variant} did not start; its error is above")
        yield http.client.HTTPConnection("127.0.0.1", int(line), timeout=60)
    finally:
        process.terminate()
        process.wait(30)


def picture(size: int) -> bytes:
    """A PNG of random pixels."""
    from PIL import Image

    pixels = torch.randint(0, 256, (size, size, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, "png")
    return file.getvalue()


def _ask(connection: http.client.HTTPConnection, body: bytes) -> float:
    """Seconds until the answer to one request has arrived."""
    began = time.perf_counter()
    kind = f"multipart/form-data; boundary={BOUNDARY}"
    connection.request("POST", "/predict", body, {"Content-Type": kind})
    reply = connection.getresponse()
    found = reply.read()
    took = time.perf_counter() - began
    if reply.status != 200:
        raise RuntimeError(f"the service answered {reply.status}: {json.loads(found)}")
    return took


def run(file: Path, requests: int = 300, warmup: int = 20) -> Record:
    """Time requests of one picture of the model's size; medians and 95th percentiles over all requests."""
    model = load(file)
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="images"; filename="a.png"\r\n\r\n'
    body = head.encode() + picture(model.manifest.size) + f"\r\n--{BOUNDARY}--\r\n".encode()
    times: dict[str, list[float]] = {OURS: [], PLAIN: []}
    with ExitStack() as stack:
        services = {variant: stack.enter_context(_service(file, variant)) for variant in times}
        for number in range(warmup + requests):
            for variant, connection in services.items():
                took = _ask(connection, body)
                if number >= warmup:
                    times[variant].append(1000 * took)
    middle = {variant: statistics.median(found) for variant, found in times.items()}
    rows: list[Row] = [
        {
            "variant": variant,
            "bits": model.manifest.bits if variant == OURS else 32,
            "p50_ms": middle[variant],
            "p95_ms": statistics.quantiles(found, n=20)[-1],
            "ratio": middle[variant] / middle[PLAIN],
        }
        for variant, found in times.items()
    ]
    described = {"model": model.manifest.model, "width": model.manifest.width, "size": model.manifest.size}
    return Record("serve", rows, settings={**described, "requests": requests, "threads": 1})
