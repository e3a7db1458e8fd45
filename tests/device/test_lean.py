"""Prediction without torch gives what prediction with torch gives, from the same files."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import fedqssl
from fedqssl import library
from fedqssl.data import DataError
from fedqssl.data.pictures import one_picture as picture_with_torch
from fedqssl.device import DeviceFileError, lean
from fedqssl.device.framing import framed, separated
from fedqssl.device.lean import layers, networks
from fedqssl.device.lean import pictures as lean_pictures
from fedqssl.device.model import DeviceModel, from_bytes, pack_device
from fedqssl.evaluation.features import extract_features
from fedqssl.evaluation.local import fit_lowbit_classifier
from fedqssl.lowbit import LowBitOptions, Precision, functions, to_lowbit
from fedqssl.lowbit.container import frame as container_frame
from fedqssl.models import contrast
from fedqssl.models.features import FEATURES, feature_dim, features_of
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import MODELS, build_model
from fedqssl.quant.kernels import intconv, native

pytestmark = pytest.mark.skipif(not native.available(), reason=native.REASON)

PHONE = Path(__file__).parents[1] / "compat" / "before_restructure" / "phone.fqssl"
DEFAULT = LowBitOptions()
CLASSES = 4


def pictures(count: int, channels: int = 3, size: int = 32, seed: int = 0) -> torch.Tensor:
    """Smooth random pictures, so that maps differ from place to place."""
    g = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, channels, 5, 5, generator=g)
    fine = F.interpolate(coarse, (size, size), mode="bicubic")
    return (fine.clamp(0, 1) * 255).to(torch.uint8)


@cache
def device_bytes(
    name: str,
    bits: int,
    features: str = "pooled",
    objective: str = "simclr",
    channels: int = 3,
    size: int = 32,
    options: LowBitOptions = DEFAULT,
) -> bytes:
    """A device file of a network whose batch norms have seen pictures, with a fitted classifier."""
    torch.manual_seed(bits)
    encoder = build_model(name, 8, channels)
    heads = torch.nn.Linear(int(encoder.feature_dim), CLASSES)
    model = to_lowbit(SelfSupervisedNetwork(encoder, heads), Precision.for_bits(bits), options)
    images = pictures(64, channels, size)
    model.train()
    with torch.no_grad():
        for _ in range(12):
            model(images[:32].float() / 255)
    model.eval()
    supervised = objective == "supervised"
    extractor = model if supervised else features_of(model, features, channels, size)
    dim = int(encoder.feature_dim) if features == "pooled" else feature_dim(extractor, channels, size)
    classifier = None
    if not supervised:
        labels = F.adaptive_avg_pool2d(images.float().mean(1), 2).flatten(1).argmax(1)  # brightest quarter
        classifier = fit_lowbit_classifier(extract_features(extractor, images), labels, CLASSES, bits, epochs=10)
    values = {"model": name, "width": 8, "channels": channels, "size": size, "objective": objective, "bits": bits}
    values |= {"features": features, "feature_dim": dim, "class_names": [f"class {k}" for k in range(CLASSES)]}
    values |= {"protocol": "test", "client": "phone", "card": {}}
    return pack_device(values, extractor, classifier)


def both(data: bytes) -> tuple[DeviceModel, lean.LeanModel]:
    return from_bytes(data), lean.from_bytes(data)


def exact_convolution(x, layer):
    """The sums of products of codes, which floats of 8 bits only come close to, where torch's integers cannot be used."""
    odd = layer.weight.unpacked().double() * 2 - (2**layer.weight.bits - 1)
    scale = torch.tensor(layer.weight.odd_scale() * x.step, dtype=torch.float32)
    return F.conv2d(x.codes.double(), odd, None, layer.stride, layer.padding).float() * scale


def check_agreement(data: bytes, monkeypatch, count: int = 30) -> None:
    with_torch, without = both(data)
    m = with_torch.manifest
    images = pictures(count, m.channels, m.size, seed=1)
    got = without.logits(images.numpy())
    as_it_is = with_torch.logits(images).numpy()
    assert (as_it_is.argmax(1) == got.argmax(1)).all()
    if m.bits == 8 and not intconv.available():
        monkeypatch.setattr(functions, "convolve", exact_convolution)
    near = 1e-4 if m.bits <= 8 else 1e-2  # above 8 bits both add floats, in orders of their own
    np.testing.assert_allclose(got, with_torch.logits(images).numpy(), rtol=1e-5, atol=near)
    assert got.std() > 0.1


ALL = [(name, bits, kind) for name in MODELS for bits in (2, 4, 8) for kind in FEATURES]
SOME = [("small_cnn", 2, "pooled"), ("small_cnn", 8, "stages"), ("resnet9", 4, "stages"), ("resnet9", 8, "grid2")]
SOME += [("resnet18", 4, "grid2"), ("resnet18", 8, "pooled")]


@pytest.mark.parametrize(("name", "bits", "kind"), SOME)
def test_logits_and_classes_are_those_with_torch(name, bits, kind, monkeypatch):
    check_agreement(device_bytes(name, bits, kind), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "bits", "kind"), ALL)
def test_every_backbone_bitwidth_and_kind_of_features(name, bits, kind, monkeypatch):
    check_agreement(device_bytes(name, bits, kind), monkeypatch)


@pytest.mark.parametrize(
    "settings",
    [
        {"bits": 4, "objective": "supervised"},
        {"bits": 1, "channels": 1, "size": 24},
        {"bits": 7, "size": 30, "features": "grid2"},
        {"bits": 12},
        {"bits": 4, "options": LowBitOptions(weights="value")},
        {"bits": 6, "options": LowBitOptions(compander="identity", activation_clip=2.0)},
    ],
    ids=["supervised", "grey", "odd sizes", "floats", "value", "other options"],
)
def test_other_files_agree_too(settings, monkeypatch):
    check_agreement(device_bytes("small_cnn", **settings), monkeypatch)


def test_every_backbone_and_kind_of_features_is_known():
    assert set(networks.NETWORKS) == set(MODELS)
    parts = {kind: tuple(map(tuple, found.parts)) for kind, found in FEATURES.items() if found.parts}
    assert parts == networks.FEATURE_PARTS


@pytest.mark.parametrize("variant", native.variants())
def test_all_variants_give_the_same_bits(variant, monkeypatch):
    images = pictures(5).numpy()
    want = lean.load(PHONE).logits(images)
    chosen = library.load(variant)
    monkeypatch.setattr(library, "load", lambda: chosen)
    model = lean.load(PHONE)
    assert model.variant == variant
    np.testing.assert_array_equal(model.logits(images), want)


def test_ready_models_batches_and_threads_change_nothing(monkeypatch):
    data, images = device_bytes("resnet9", 4, "stages"), pictures(9).numpy()
    model = lean.from_bytes(data)
    want = model.logits(images)
    np.testing.assert_array_equal(np.concatenate([model.logits(images[i : i + 1]) for i in range(9)]), want)
    model.keep_ready()
    for _ in range(2):
        np.testing.assert_array_equal(model.logits(images, batch_size=4), want)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert layers.threads() == 3
    np.testing.assert_array_equal(lean.from_bytes(data).logits(images), want)


def test_predictions_of_files_bytes_and_arrays(tmp_path):
    with_torch, without = both(PHONE.read_bytes())
    pixels = pictures(3, size=50, seed=3).permute(0, 2, 3, 1).numpy()
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(tmp_path / f"{number}.png")
    (tmp_path / "0.png").rename(tmp_path / "z.png")
    encoded = (tmp_path / "1.png").read_bytes()
    for source in (
        tmp_path,
        str(tmp_path / "1.png"),
        [tmp_path / "z.png", encoded],
        encoded,
        Image.fromarray(pixels[2]),
    ):
        want, got = with_torch.predict(source, top=3, batch_size=2), without.predict(source, top=3, batch_size=2)
        assert [(p.name, p.file) for p in got] == [(p.name, p.file) for p in want]
        for one, other in zip(got, want, strict=True):
            assert [n for n, _ in one.top] == [n for n, _ in other.top]
            np.testing.assert_allclose([v for _, v in one.top], [v for _, v in other.top], atol=1e-5)
    assert [p.name for p in without.predict(list(pixels))] == [p.name for p in with_torch.predict(list(pixels))]
    assert "small_cnn" in repr(without)


@pytest.mark.parametrize("shape", [(32, 32, 3), (50, 41, 3), (19, 64, 1), (100, 100, 3), (7, 9)])
@pytest.mark.parametrize("channels", [1, 3])
def test_arrays_become_the_same_pixels(shape, channels):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    want = picture_with_torch(array, "it", 32, channels).numpy().transpose(1, 2, 0).astype(int)
    got = lean_pictures.one_picture(array, "it", 32, channels).astype(int)
    assert got.shape == want.shape and np.abs(got - want).max() <= 1  # halves may be rounded to either side
    assert (got != want).mean() < 0.002


def test_contrast_is_stretched_as_with_torch():
    images = torch.cat([pictures(20), pictures(4) // 40 + 100, torch.zeros(1, 3, 32, 32, dtype=torch.uint8)])
    want = contrast.stretched(images).numpy().astype(int)
    got = lean_pictures.stretched(images.numpy().transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2).astype(int)
    assert np.abs(got - want).max() <= 1 and (got != want).mean() < 0.001  # halves may be rounded to either side
    assert (contrast.SPREAD, contrast.LEAST) == (lean_pictures.SPREAD, lean_pictures.LEAST)
    with_torch, without = both(_with_manifest(contrast="stretch"))
    dim = images // 3
    assert (with_torch.logits(dim).argmax(1).numpy() == without.logits(dim.numpy()).argmax(1)).all()


def _refused(data: bytes) -> str:
    with pytest.raises(DeviceFileError) as found:
        lean.from_bytes(data)
    message = str(found.value)
    assert len(message) <= 200 and "\n" not in message
    return message


def _with_manifest(**changes) -> bytes:
    text, models = separated(PHONE.read_bytes())
    return framed(json.dumps({**json.loads(text), **changes}).encode(), models)


def test_damaged_files_are_refused_as_with_torch():
    data = PHONE.read_bytes()
    text, models = separated(data)
    same = [
        data[:-1],
        data[:40],
        b"",
        data[:-1] + bytes([data[-1] ^ 1]),
        b"FQSSL\0" + data[6:],
        framed(text, models + b"x"),
    ]
    same += [framed(b"{", models), framed(b"[]", models), _with_manifest(width=3), _with_manifest(bits=3)]
    for bad in same:
        with pytest.raises(ValueError) as with_torch:
            from_bytes(bad)
        message = _refused(bad)
        if bad not in same[-3:]:
            assert message == str(with_torch.value)
    assert _refused(_with_manifest(size="large")) == "size in the manifest is not valid; export the model again"
    assert _refused(_with_manifest(surprise=1)) == "surprise in the manifest is not valid; export the model again"
    assert "needs a network" in _refused(_with_manifest(features="stages", size=1))
    assert "of shape" in _refused(_with_manifest(class_names=["one"]))


def test_architectures_that_differ_are_refused_by_the_fingerprint(monkeypatch):
    monkeypatch.setattr(networks.Network, "norm", lambda net, name, channels, activate=True: None)
    assert "is not part of this model" in _refused(PHONE.read_bytes())


def test_an_architecture_of_the_same_names_is_refused_too():
    text, models = separated(PHONE.read_bytes())
    manifest = json.loads(text)
    body, head = models[: manifest["extractor_bytes"]], models[manifest["extractor_bytes"] :]
    start = 48 + 8  # the header, and the length of the description
    described = json.loads(body[start : start + int.from_bytes(body[48:56], "little")])
    prints = json.loads(described["__metadata__"]["fedqssl"])["fingerprint"]
    blob = body[48:].replace(prints.encode(), b"0" * len(prints))
    assert "architecture 0000" in _refused(framed(text, container_frame(blob) + head))


def test_what_needs_torch_is_refused_by_name():
    assert "backbone 'mine:Net'; install torch" in _refused(_with_manifest(model="mine:Net"))
    skipped = device_bytes("small_cnn", 4, options=LowBitOptions(skip=("encoder.layers.0",)))
    assert "lowbit.skip" in _refused(skipped)
    assert "tanh" in _refused(device_bytes("small_cnn", 4, options=LowBitOptions(activation_quantizer="tanh")))
    assert "32 bits" in _refused(device_bytes("small_cnn", 32))


def test_bad_pictures_and_numbers_are_named(tmp_path):
    model = lean.load(PHONE)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    for bad, words in ((tmp_path / "none.png", "no such file"), (tmp_path / "bad.png", "corrupt image")):
        with pytest.raises(DataError, match=words):
            model.predict([bad])
    for bad, words in ((np.zeros((4, 4), np.float32), "must be uint8"), (np.zeros((4, 4, 2), np.uint8), "1 or 3")):
        with pytest.raises(DataError, match=words):
            model.predict(bad)
    for images in (np.zeros((1, 3, 32, 32)), np.zeros((0, 3, 32, 32), np.uint8), np.zeros((1, 1, 32, 32), np.uint8)):
        with pytest.raises(ValueError, match="images must"):
            model.logits(images)
    for words in ({"top": 0}, {"batch_size": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            model.predict(np.zeros((4, 4), np.uint8), **words)
    with pytest.raises(DeviceFileError, match="no such file; make one with fedqssl export"):
        lean.load(tmp_path / "none.fqssl")


def test_without_kernels_the_reason_is_given(monkeypatch):
    monkeypatch.setattr(library, "load", lambda: (None, "not built"))
    assert _refused(PHONE.read_bytes()) == "without torch the compiled kernels are needed, but: not built"


NO_TORCH = """
import sys, time
for name in ("torch", "pydantic", "safetensors", "rich", "typer"):
    sys.modules[name] = None  # importing it is an error, as if it were not installed
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else found(name, *rest)
import numpy as np
import fedqssl
model = fedqssl.load(sys.argv[1])
[first] = fedqssl.predict(model, np.zeros((40, 30, 3), np.uint8))
seconds = time.process_time()
high = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(type(model).__name__, first.name, seconds, high)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_without_torch_loads_and_predicts_soon_and_in_little_memory():
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", NO_TORCH, str(PHONE)], capture_output=True, text=True, env=env, timeout=60
    )
    assert done.returncode == 0, done.stderr
    kind, name, seconds, kibibytes = done.stdout.split()
    want = fedqssl.load(PHONE).predict(np.zeros((40, 30, 3), np.uint8))[0].name
    assert (kind, name) == ("LeanModel", want)
    assert float(seconds) < 0.5 and int(kibibytes) < 60 * 1024
