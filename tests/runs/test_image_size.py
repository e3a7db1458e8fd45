"""Images of 64 pixels, from a folder to a device: nothing on the way assumes 32."""

import json

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import fedqssl
from fedqssl.cli.main import app
from fedqssl.config import load_config
from fedqssl.cost import client_sizes, ledger
from fedqssl.federated.context import build_simulation
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.models.registry import ModelError
from fedqssl.reporting import write_report
from fedqssl.runs import start
from tiny_run import silent, tiny

FLAT = """
from torch import nn
class Flat(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(3, 4, 3, stride=16, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 6)
        )
"""


def photos(folder):
    """Two classes of 96x128 photos that differ in lines too fine for 32 pixels."""
    draws = np.random.default_rng(0)
    for name, fine in (("lines", 1), ("plain", 0)):
        (folder / name).mkdir(parents=True)
        for i in range(40):
            pixels = np.full((64, 96, 3), 128) + 60 * fine * (np.arange(96) % 2 * 2 - 1)[None, :, None]
            pixels = pixels + draws.integers(-20, 20, pixels.shape)
            picture = Image.fromarray(pixels.astype(np.uint8))
            picture.resize((128, 96), Image.Resampling.NEAREST).save(folder / name / f"{i:02d}.png")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    home = tmp_path_factory.mktemp("large")
    words = {"data": f"folder:{photos(home / 'photos')}", "image_size": 64, "features": "stages", "views.size": 48}
    settings = tiny(rounds=1, images=None, clients=2, bits=[4, 8], **words, **{"evaluation.controls": "all"})
    return FinishedRun.open(start(settings, home / "run", say=silent).folder)


def exported(run, path, *words):
    result = CliRunner().invoke(
        app, ["export", str(run.folder.path), "--client", "client-01", "--out", str(path), *words]
    )
    assert result.exit_code == 0, result.output


def test_the_size_reaches_the_images_and_the_network():
    context = build_simulation(tiny(image_size=64, images=None))
    assert context.train.images.shape[1:] == context.test.images.shape[1:] == context.buffer().shape[1:] == (3, 64, 64)
    assert context.task.image_size == 64


def test_fine_lines_survive(tmp_path):
    folder = photos(tmp_path / "photos")
    words = {"data": f"folder:{folder}", "clients": 2, "bits": 4}
    sized = {side: build_simulation(load_config("smoke", {**words, "image_size": side})) for side in (32, 64)}
    spread = {side: float(context.train.images.float().std()) for side, context in sized.items()}
    assert spread[64] > 1.5 * spread[32]


def test_a_run_of_64_pixels_from_the_folder_to_the_device(run, tmp_path):
    told = run.result.clients["client-01"]
    assert run.result.global_accuracy is not None and set(run.result.controls) >= {"pixels", "hog", "untrained"}
    assert json.loads((run.folder.path / "data.json").read_text())["image"] == [3, 64, 64]
    path = tmp_path / "phone.fqssl"
    exported(run, path)
    model, data = fedqssl.load(path), run.own("client-01")
    assert model.manifest.size == 64 and "resized to 64x64" in model.card()
    assert float((model.logits(data.test).argmax(1) == data.test_labels).double().mean()) == told.local_accuracy
    files = sorted((run.folder.path.parent / "photos").rglob("*.png"))
    with Image.open(files[0]) as picture:
        square = picture.crop((16, 0, 112, 96)).resize((64, 64), Image.Resampling.BILINEAR)
    expected = model.probabilities(torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1)[None])
    assert model.predict(files[0])[0].probability == pytest.approx(float(expected.max()), abs=1e-4)
    assert "64x64" in write_report(run.folder.path).read_text()


def test_the_onnx_graph_takes_64_pixels(run, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    path = tmp_path / "phone.onnx"
    exported(run, path, "--format", "onnx")
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    assert session.get_inputs()[0].shape == ["N", 3, 64, 64]
    from fedqssl.maker.personal import device_model

    model, images = device_model(run, "client-01"), run.own("client-01").test
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    assert (logits.argmax(1) == model.logits(images).argmax(1).numpy()).all()


def test_the_ledger_counts_the_views(run):
    def macs(**changes):
        config = run.config.model_copy(update=changes)
        found = ledger(config, client_sizes(config))
        return sum(product.macs for product in found.bitwidths[4].trace.products if "heads" not in product.name)

    plain = {"views": run.config.views.model_copy(update={"size": None})}
    assert client_sizes(run.config).image == (3, 64, 64)
    large, small = macs(**plain), macs(**plain, image_size=32)
    assert large == pytest.approx(4 * small, rel=0.05)
    assert macs() == pytest.approx(large * (48 / 64) ** 2, rel=0.05)  # steps are on views of 48


def test_assumed_sizes_have_the_images_side(tmp_path, monkeypatch):
    from fedqssl.cost import sizes

    monkeypatch.setattr(sizes, "cache_folder", lambda: tmp_path)
    assert client_sizes(load_config("cifar10-small", {"image_size": 96})).image == (3, 96, 96)


def test_a_backbone_of_the_users_is_tried_on_images_of_the_runs_size(tmp_path, monkeypatch):
    (tmp_path / "flat_64.py").write_text(FLAT)
    monkeypatch.syspath_prepend(tmp_path)
    task = build_simulation(tiny(model="flat_64:Flat", image_size=64)).task
    assert task.network()(torch.zeros(2, 3, 64, 64)).shape[0] == 2
    with pytest.raises(ModelError, match="fails on one 3x32x32 image"):
        build_simulation(tiny(model="flat_64:Flat")).task.network()


def test_resizing_counts_as_another_protocol_and_32_does_not():
    from fedqssl.federated.protocol import protocol

    assert protocol(tiny(image_size=32)) == protocol(tiny()) != protocol(tiny(image_size=64))
