"""Figures of the service, printed: how long a caller waits, alone and beside a hostile one. Only ratios are judged."""

import io
import os
import statistics
import threading
import time

import httpx
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from fedqssl.device.model import from_bytes, pack_device
from fedqssl.evaluation.local import LowBitClassifier, empty_classifier
from fedqssl.listen import bind
from fedqssl.lowbit import Precision, to_lowbit
from fedqssl.models.features import features_of
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import build_model
from fedqssl.serve.app import make_app
from fedqssl.serve.limits import LOOPBACK, Limits
from fedqssl.serve.running import server_config
from uploads import png

CLASSES = 10
pytestmark = pytest.mark.slow


def device_model(width: int = 16, bits: int = 4):
    encoder = build_model("small_cnn", width)
    extractor = features_of(to_lowbit(SelfSupervisedNetwork(encoder, nn.Identity()), Precision.for_bits(bits)).eval())
    classifier = LowBitClassifier(empty_classifier(encoder.feature_dim, CLASSES, Precision.for_bits(bits)).eval(), 1.0)
    words = {"model": "small_cnn", "width": width, "channels": 3, "size": 32, "objective": "simclr", "bits": bits}
    words |= {"feature_dim": encoder.feature_dim, "class_names": [f"c{i}" for i in range(CLASSES)], "protocol": "p"}
    return from_bytes(pack_device({**words, "client": "phone", "card": {}}, extractor, classifier)), encoder


def plain_app(encoder: nn.Module):
    """What a user would write: FastAPI, pillow, and the float network."""
    from fastapi import FastAPI, UploadFile

    net, app = nn.Sequential(encoder, nn.Linear(int(encoder.feature_dim), CLASSES)).eval(), FastAPI()

    @app.post("/predict")
    def predict(images: list[UploadFile], top: int = 3) -> dict:
        batch = []
        for file in images:
            picture = (
                Image.open(io.BytesIO(file.file.read())).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR)
            )
            batch.append(torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255)
        with torch.inference_mode():
            values, places = net(torch.stack(batch)).softmax(1).topk(top)
        rows = zip(values.tolist(), places.tolist(), strict=True)
        found = [[{"name": f"c{k}", "probability": p} for p, k in zip(*row, strict=True)] for row in rows]
        return {"predictions": [{"file": f.filename, "top": t} for f, t in zip(images, found, strict=True)]}

    return app


class Serving:
    """A server in a thread of this process."""

    def __init__(self, config) -> None:
        import uvicorn

        self.sock, self.server = bind("127.0.0.1", 0), uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [self.sock]}, daemon=True)
        self.url = f"http://127.0.0.1:{self.sock.getsockname()[1]}"

    def __enter__(self) -> str:
        self.thread.start()
        while not self.server.started:
            time.sleep(0.02)
        return self.url

    def __exit__(self, *error) -> None:
        self.server.should_exit = True
        self.thread.join(20)


def timed(client: httpx.Client, url: str, picture: bytes) -> tuple[float, float]:
    """Seconds of the clock and of this process (server and caller alike) for one request."""
    wall, cpu = time.perf_counter(), time.process_time()
    found = client.post(f"{url}/predict", files={"images": ("a.png", picture)})
    assert found.status_code == 200
    return time.perf_counter() - wall, time.process_time() - cpu


def test_one_connection_against_plain_fastapi(capsys):
    """One request here, one there: a busy machine slows both.

    Issue 17 asks for 1.3x, which is about what is measured, and so no limit for a test. The caller's own work is in both figures;
    `fedqssl bench serve` leaves it out.
    """
    import uvicorn

    model, encoder = device_model()
    ours = server_config(make_app(model, Limits(rate=1e6, burst=10**6), LOOPBACK))
    plain = uvicorn.Config(plain_app(encoder), log_level="error", access_log=False)
    picture, rounds = png(40, 30), int(os.environ.get("FEDQSSL_ROUNDS", "300"))
    with Serving(ours) as here, Serving(plain) as there, httpx.Client() as a, httpx.Client() as b:
        for _ in range(20):
            timed(a, here, picture), timed(b, there, picture)
        pairs = [(timed(a, here, picture), timed(b, there, picture)) for _ in range(rounds)]
    walls = [statistics.median(p[i][0] for p in pairs) for i in (0, 1)]
    cpus = [statistics.median(p[i][1] for p in pairs) for i in (0, 1)]
    with capsys.disabled():
        print(f"\np50 of ours {1e3 * walls[0]:.2f} ms, of plain FastAPI {1e3 * walls[1]:.2f} ms", end="")
        print(f" ({walls[0] / walls[1]:.2f}x); CPU of both ends {1e3 * cpus[0]:.2f} and {1e3 * cpus[1]:.2f} ms", end="")
        print(f" ({cpus[0] / cpus[1]:.2f}x)")
    assert cpus[0] / cpus[1] < 4


def worst_request() -> list[tuple[str, tuple[str, bytes]]]:
    """As much decoding as one request may ask for: pictures that compress to little, in the slowest of the quick formats."""
    out = io.BytesIO()
    Image.effect_noise((880, 880), 90).convert("RGB").save(out, "PNG", compress_level=1)
    few = min(32, (20 << 20) // len(out.getvalue()))
    return [("images", (f"{i}.png", out.getvalue())) for i in range(few)]


def test_another_callers_wait_during_the_worst_request(capsys):
    """Beside the same caller's wait when nobody else asks, because this machine may be busy."""
    model, _ = device_model()
    files, picture = worst_request(), png(40, 30)
    with (
        Serving(server_config(make_app(model, Limits(rate=1e6, burst=10**6), LOOPBACK))) as url,
        httpx.Client() as other,
    ):
        alone = [timed(other, url, picture)[0] for _ in range(20)]
        took = []

        def heavy() -> None:
            began = time.perf_counter()
            status = httpx.post(f"{url}/predict", files=files, timeout=600).status_code
            took.append((status, time.perf_counter() - began))

        thread = threading.Thread(target=heavy)
        thread.start()
        waits = []
        while thread.is_alive():
            waits.append(timed(other, url, picture)[0])
        thread.join()
    with capsys.disabled():
        print(f"\nworst request {took[0][1]:.2f} s (status {took[0][0]}); another caller's longest wait", end="")
        print(f" {max(waits):.2f} s of {len(waits)}, alone {max(alone):.2f} s")
    assert took[0][0] == 200 and max(waits) < 1 + max(alone)
