"""A small model behind the service, without a run."""

import threading
import time
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from fedqssl.device.model import from_bytes, pack_device
from fedqssl.evaluation.local import LowBitClassifier, empty_classifier
from fedqssl.lowbit import Precision, to_lowbit
from fedqssl.models.features import features_of
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import build_model


@pytest.fixture(scope="session")
def model_bytes() -> bytes:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = build_model("small_cnn", 4)
        network = SelfSupervisedNetwork(encoder, nn.Identity())
    extractor = features_of(to_lowbit(network, Precision.for_bits(4)).eval())
    classifier = LowBitClassifier(empty_classifier(encoder.feature_dim, 3, Precision.for_bits(4)).eval(), 1.0)
    words = {"model": "small_cnn", "width": 4, "channels": 3, "size": 32, "objective": "simclr", "bits": 4}
    words |= {"feature_dim": encoder.feature_dim, "class_names": ["cat", "dog", "<b>fish</b>"], "protocol": "p"}
    return pack_device({**words, "client": "phone", "card": {}}, extractor, classifier)


@pytest.fixture(scope="session")
def model(model_bytes):
    return from_bytes(model_bytes)


@contextmanager
def served(model, **limits):
    """A real server on a free port, which it gives; ``limits`` are those of connections."""
    import uvicorn

    from fedqssl.listen import ConnectionLimits, bind
    from fedqssl.serve.app import make_app
    from fedqssl.serve.limits import LOOPBACK, Limits
    from fedqssl.serve.running import server_config

    sock = bind("127.0.0.1", 0)
    app = make_app(model, Limits(rate=1000, burst=1000), LOOPBACK)
    server = uvicorn.Server(server_config(app, *([ConnectionLimits(**limits)] if limits else [])))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    began = time.monotonic()
    while not server.started:
        assert time.monotonic() - began < 600, "the server does not start"
        time.sleep(0.05)
    yield sock.getsockname()[1]
    server.should_exit = True
    thread.join(20)


@pytest.fixture(scope="session")
def address(model):
    with served(model) as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="module")
def narrow_port(model):
    """Of a service with small limits."""
    with served(model, total=20, each=8, head_bytes=4096, head_seconds=1.0, body_seconds=1.0) as port:
        yield port
