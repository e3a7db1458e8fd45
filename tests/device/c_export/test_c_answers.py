"""The exported C against its simulation (every score) and against our own prediction (class, codes layer by layer)."""

import numpy as np
import pytest
import torch
from torch import nn

from c_models import answers, compiled, pixels, written
from device_models import CARD, made
from fedqssl.config import load_config
from fedqssl.data.scenes import scenes
from fedqssl.device import lean
from fedqssl.device.c_export import to_c
from fedqssl.device.c_export.graph import lowered
from fedqssl.device.c_export.operations import Average, Convolution, Stretch
from fedqssl.device.c_export.simulate import carry_out, simulate
from fedqssl.device.model import from_bytes, pack_device
from fedqssl.lowbit import LowBitOptions, Precision, to_lowbit
from fedqssl.lowbit.layers import LowBitNorm, RangeCodes
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.maker.personal import device_bytes, device_model
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import build_model
from fedqssl.quant.kernels import native
from fedqssl.runs import start
from tiny_run import silent

SANITIZED = "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
QUICK = {("small_cnn", 4)}
EVERY = [
    pytest.param(name, bits, marks=[] if (name, bits) in QUICK else pytest.mark.slow)
    for name in ("small_cnn", "resnet9")
    for bits in (2, 4, 6, 8)
]


@pytest.fixture(scope="module")
def pictures():
    return scenes(1000, "train")


def scores_of(model, images):
    network = lowered(model)
    return simulate(network, pixels(images))[network.scores][:, 0, 0], network


def check(model, images, folder, agreement, *flags):
    """Scores of the C and of the simulation are equal; classes are those of our own prediction."""
    want, network = scores_of(model, images)
    classes, scores = answers(compiled(written(to_c(model).files, folder), *(flags or SANITIZED)), images)
    assert np.array_equal(scores, want) and np.array_equal(classes, want.argmax(1))
    ours = model.logits(images).numpy()
    assert (classes == ours.argmax(1)).mean() >= agreement
    assert np.median(np.abs(scores / 2.0**network.score_bits - ours)) <= 1e-3
    return classes


@pytest.mark.parametrize(("name", "bits"), EVERY)
def test_1000_images(name, bits, pictures, tmp_path):
    model = made(bits, pictures.images, pictures.labels, name, 4)
    classes = check(model, pictures.images, tmp_path, 0.995, "-O2")
    assert len(set(classes.tolist())) > 3  # not one class for everything


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 4, 6, 8])
@pytest.mark.parametrize("name", ["small_cnn", "resnet9"])
def test_1000_images_of_the_usual_width(name, bits, pictures, tmp_path):
    check(made(bits, pictures.images, pictures.labels, name, 16), pictures.images, tmp_path, 0.995, "-O2")


@pytest.mark.parametrize(
    ("kind", "name", "bits", "size"),
    [("grid2", "small_cnn", 3, 28), ("stages", "resnet9", 7, 30)],
)
def test_every_kind_of_features(kind, name, bits, size, pictures, tmp_path):
    images = pictures.images[:100, :, :size, :size]
    check(made(bits, images, pictures.labels, name, 4, kind=kind), images, tmp_path, 0.97)


def test_stretched_contrast_and_a_pyramid(pictures, tmp_path):
    """What the preset ``photos`` trains, on photos that are too dark."""
    images = (pictures.images[:60].float() * 0.4 + 10).to(torch.uint8)
    model = made(4, images, pictures.labels, width=2, kind="pyramid", contrast="stretch", brief=True)
    check(model, images, tmp_path, 0.96)
    first, *others = lowered(model).operations
    assert isinstance(first, Stretch) and not any(isinstance(o, Stretch) for o in others)
    levels = [o for o in others if isinstance(o, Average)]
    assert len({o.target for o in levels}) == 1  # side by side
    assert [o.source.height // o.window[0] for o in levels] == [1, 4, 8]


def test_shortcuts_with_layers_of_their_own(pictures, tmp_path):
    """ResNet-18 adds a convolution's sums to another's: they wait in 32 bits."""
    images = pictures.images[:100, :, :16, :16]
    model = made(5, images, pictures.labels, "resnet18", 4)
    check(model, images, tmp_path, 0.97)
    assert any(o.target.kind == "wide" for o in lowered(model).operations[:-1])


@pytest.mark.parametrize("bits", [1, 6])
def test_a_network_of_ones_own_on_grey_images(bits, pictures, tmp_path):
    images = pictures.images[:200, :1, :29, :29].contiguous()
    check(made(bits, images, pictures.labels, "own_networks:Odd", trust=True), images, tmp_path, 0.97)


def test_a_supervised_model_ends_in_its_own_classifier(pictures, tmp_path):
    images = pictures.images[:200]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SelfSupervisedNetwork(build_model("small_cnn", 4), nn.Linear(32, 10))
    extractor = to_lowbit(network, Precision.for_bits(4)).train()
    with torch.no_grad():
        for _ in range(10):
            extractor(images[:64].float() / 255)
    words = {"model": "small_cnn", "width": 4, "channels": 3, "size": 32, "objective": "supervised", "bits": 4}
    words |= {"feature_dim": 32, "class_names": list("abcdefghij"), "protocol": "p", "client": "c", "card": CARD}
    check(from_bytes(pack_device(words, extractor.eval(), None)), images, tmp_path, 0.985)


def test_features_whose_codes_start_below_zero(pictures):
    images = pictures.images[:100]
    model = made(4, images, pictures.labels, width=4)
    (codes,) = (m for m in model.classifier.model.modules() if isinstance(m, RangeCodes))
    codes.low.fill_(-0.4)
    scores, network = scores_of(model, images)
    assert np.median(np.abs(scores / 2.0**network.score_bits - model.logits(images).numpy())) <= 1e-3


def test_images_that_are_rounded_first(pictures):
    """With quantize_input = False an image is rounded to the model's own bits."""
    images = pictures.images[:100]
    model = made(3, images, pictures.labels, width=4, options=LowBitOptions(quantize_input=False))
    scores, network = scores_of(model, images)
    assert isinstance(network.operations[0], Average) and network.operations[0].top == 7
    ours = model.logits(images).numpy()
    assert (scores.argmax(1) == ours.argmax(1)).mean() >= 0.95


def test_a_client_of_a_run(finished, pictures):
    """At 2 bits, pooled features often lie half-way between two codes of the classifier: the noise of float32 decides."""
    model, images = device_model(finished, "client-00"), pictures.images[:300]
    scores, _ = scores_of(model, images)
    assert model.manifest.bits == 2
    assert (scores.argmax(1) == model.logits(images).numpy().argmax(1)).mean() >= 0.99


@pytest.mark.slow
@pytest.mark.skipif(not native.available(), reason=native.REASON)
@pytest.mark.parametrize("name", ["small_cnn", "resnet9"])
def test_every_client_of_a_trained_run(name, tmp_path):
    """Of 2, 4, 6 and 8 bits, on images that no client had: the C, and the runtime without torch, answer as torch does."""
    words = {"model": name, "width": 16, "bits": [2, 4, 6, 8], "clients": 4, "fraction": 0.5, "beta": 1, "rounds": 4}
    words |= {"images": 1500, "workers": 1, "evaluation.controls": "none", "evaluation.knn_every": 0}
    run = FinishedRun.open(start(load_config("quickstart", words), tmp_path / "run", say=silent).folder)
    images = scenes(1000, "test").images
    for client in run.result.clients:
        file = device_bytes(run, client)
        ours = from_bytes(file).logits(images).numpy().argmax(1)
        folder = written(to_c(from_bytes(file)).files, tmp_path / client)
        classes, _ = answers(compiled(folder, "-O2"), images)
        assert (classes == ours).mean() >= 0.995 and len(set(ours.tolist())) > 3
        assert (lean.from_bytes(file).logits(images.numpy()).argmax(1) == ours).mean() >= 0.995


@pytest.mark.parametrize("bits", [2, *(pytest.param(bits, marks=pytest.mark.slow) for bits in (4, 6)), 8])
def test_codes_agree_layer_by_layer(bits, pictures):
    """Given equal input codes, output codes differ only within 1e-5 (of the activation's range) of a rounding boundary."""
    model, images = made(bits, pictures.images, pictures.labels, "resnet9", 4), pictures.images[:20]
    network, own = lowered(model), []
    for module in model.extractor.modules():
        if isinstance(module, LowBitNorm) and module.activate:
            module.register_forward_hook(lambda m, args, out: own.append(out.codes))
    model.logits(images)
    layers = [o for o in network.operations if isinstance(o, Convolution) and o.target.kind == "codes"]
    assert len(own) == len(layers) == 8
    known = {network.image: pixels(images).astype(np.int64)}
    known |= {o.target: pixels(codes).astype(np.int64) for o, codes in zip(layers, own, strict=True)}
    for o in layers:
        found = dict(known)
        carry_out(o, found)
        wrong = found[o.target] != known[o.target]
        assert wrong.mean() < 0.001
        if wrong.any():
            exact = _levels(o, known)[wrong]
            assert np.abs(exact - np.floor(exact) - 0.5).max() / o.top <= 1e-5


def _levels(operation, maps):
    """Unrounded levels in floats of 64 bits."""
    x = torch.from_numpy(maps[operation.source].transpose(0, 3, 1, 2)).double()
    w = torch.from_numpy(operation.integers().transpose(0, 3, 1, 2)).double()
    sums = nn.functional.conv2d(x, w, None, operation.stride, operation.padding).permute(0, 2, 3, 1).numpy()
    levels = sums * operation.rescale.multiplier + operation.rescale.offset - 2.0 ** (operation.rescale.shift - 1)
    if operation.residual is not None:
        levels = levels + maps[operation.residual] * operation.residual_multiplier
    return levels / 2.0**operation.rescale.shift
