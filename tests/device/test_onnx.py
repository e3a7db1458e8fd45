"""The ONNX graph against our own kernels: logits at 32 bits, codes layer by layer and answers below, sizes."""

import numpy as np
import onnx
import pytest
import torch
from torch import nn

from device_models import CARD, made
from fedqssl.cli.main import main
from fedqssl.device import onnx_export
from fedqssl.device.model import DeviceModel
from fedqssl.device.onnx_export import to_onnx
from fedqssl.device.onnx_graph import GraphWriter, Value, _lowbit_conv, _lowbit_norm, storage
from fedqssl.evaluation.local import LowBitClassifier, empty_classifier
from fedqssl.lowbit import LowBitOptions, Precision, to_lowbit
from fedqssl.lowbit.layers import LowBitConv2d, LowBitNorm
from fedqssl.maker.personal import device_model
from fedqssl.models import resnet18
from fedqssl.models.features import features_of
from fedqssl.models.network import SelfSupervisedNetwork

ort = pytest.importorskip("onnxruntime")


def session(data: bytes):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


@pytest.fixture(scope="module")
def pictures():
    from fedqssl.data.scenes import scenes

    return scenes(1000, "train")


@pytest.mark.parametrize("bits", [2, 4, 6, 8, 12])
def test_answers_agree(bits, pictures):
    model = made(bits, pictures.images, pictures.labels)
    (logits,) = session(to_onnx(model)).run(["logits"], {"images": pictures.images.numpy()})
    ours = model.logits(pictures.images)
    assert (logits.argmax(1) == ours.argmax(1).numpy()).mean() >= 0.99


@pytest.mark.parametrize("kind", ["grid2", "stages"])
@pytest.mark.parametrize("name", ["small_cnn", "resnet9"])
@pytest.mark.parametrize(("bits", "size"), [(4, 32), (8, 32), (8, 28), (32, 32)])
def test_answers_agree_for_every_kind_of_features(kind, name, bits, size, pictures):
    images = pictures.images[:300, :, :size, :size]
    model = made(bits, images, pictures.labels, name, 4, kind=kind)
    assert model.manifest.feature_dim == {"grid2": 4 * 32, "stages": 32 + 16 * 8}[kind]
    (logits,) = session(to_onnx(model)).run(["logits"], {"images": images.numpy()})
    ours = model.logits(images)
    assert (logits.argmax(1) == ours.argmax(1).numpy()).mean() >= 0.99


@pytest.mark.parametrize("bits", [4, 8, 32])
def test_answers_agree_where_contrast_is_stretched(bits, pictures):
    """The graph does it by itself: photos that are too dark get the answers that our own file gives."""
    images = (pictures.images[:300].float() * 0.4 + 10).to(torch.uint8)
    model = made(bits, images, pictures.labels, "resnet9", 4, kind="pyramid", contrast="stretch")
    assert model.manifest.contrast == "stretch" and model.manifest.feature_dim == 32 + (16 + 64) * 8
    (logits,) = session(to_onnx(model)).run(["logits"], {"images": images.numpy()})
    ours = model.logits(images)
    assert (logits.argmax(1) == ours.argmax(1).numpy()).mean() >= 0.98
    assert (ours.argmax(1) == model.logits(pictures.images[:300]).argmax(1)).double().mean() > 0.9


def test_logits_agree_at_full_precision(pictures, finished):
    model = made(32, pictures.images, pictures.labels, "resnet18", 8)
    images = pictures.images[:100]
    logits, shares = session(to_onnx(model)).run(None, {"images": images.numpy()})
    assert np.abs(logits - model.logits(images).numpy()).max() <= 1e-4
    assert np.abs(shares - model.probabilities(images).numpy()).max() <= 1e-4
    own = device_model(finished, "client-03")
    (logits,) = session(to_onnx(own)).run(["logits"], {"images": images.numpy()})
    assert np.abs(logits - own.logits(images).numpy()).max() <= 1e-4


def _layers(extractor, images):
    """Every low-bit norm that activates behind a convolution, with the codes that went in and came out."""
    seen, behind = [], {}
    handles = []
    for module in extractor.modules():
        if isinstance(module, LowBitConv2d):
            handles.append(module.register_forward_hook(lambda m, args, y: behind.__setitem__(id(y), (m, args[0], y))))
        elif isinstance(module, LowBitNorm) and module.activate:
            handles.append(module.register_forward_hook(lambda m, args, out: seen.append((m, args, out))))
    with torch.no_grad():
        extractor(images.float() / 255)
    for handle in handles:
        handle.remove()
    return [(*behind[id(args[0])][:2], m, args, out) for m, args, out in seen]


@pytest.mark.parametrize("bits", [2, 4, 6, 8, 12])
def test_codes_agree_layer_by_layer(bits, pictures):
    """Given equal input codes, output codes differ only within 1e-5 (of the activation's range) of a rounding boundary."""
    model = made(bits, pictures.images, pictures.labels, "resnet18", 8)
    top, layers = 2**bits - 1, _layers(model.extractor, pictures.images[:8])
    assert len(layers) == 17
    for conv, x, norm, args, out in layers:
        writer = GraphWriter(onnx, full=False)
        y = _lowbit_conv(writer, conv, "conv", [Value("x", 4, x.step)])
        feeds = {"x": (x.floats() / x.step).round().numpy()}
        inputs, residual = [y], args[1] if len(args) > 1 else None
        if residual is not None:
            codes = not isinstance(residual, torch.Tensor)
            feeds["r"] = ((residual.floats() / residual.step).round() if codes else residual).numpy()
            inputs.append(Value("r", 4, residual.step if codes else None))
        found = _lowbit_norm(writer, norm, "norm", inputs)
        want = (out.floats() / out.step).round().numpy()
        got = _run(writer, feeds, found.name)
        z = _exact(conv, x, norm, residual) / norm.clip  # in units of the activation's range
        wrong = got != want
        distance = np.abs((z[wrong] * top) - (np.floor(z[wrong] * top) + 0.5)) / top
        assert distance.max(initial=0) <= 1e-5 and wrong.mean() < 0.01


def _exact(conv, x, norm, residual):
    """z in float64."""
    w = conv.weight.effective().double()
    y = nn.functional.conv2d(x.floats().double(), w, None, conv.stride, conv.padding)
    z = nn.functional.batch_norm(
        y, norm.running_mean.double(), norm.running_var.double(), norm.weight.double(), norm.bias.double(), eps=norm.eps
    )
    if residual is not None:
        z = z + (residual if isinstance(residual, torch.Tensor) else residual.floats()).double()
    return z.detach().numpy()


def _run(writer, feeds, output):
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    ends = [[helper.make_tensor_value_info(n, floats, None) for n in names] for names in (feeds, [output])]
    graph = helper.make_graph(writer.nodes, "part", *ends, initializer=writer.initializers)
    opset = [helper.make_opsetid("", onnx_export.OPSET)]
    part = helper.make_model(graph, opset_imports=opset, ir_version=onnx_export.IR_VERSION)
    return session(part.SerializeToString()).run([output], feeds)[0]


@pytest.mark.parametrize(("bits", "stored"), [(2, 4), (6, 8), (12, 16)])
def test_size_of_resnet18(bits, stored):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SelfSupervisedNetwork(resnet18(64), nn.Identity())
    extractor = features_of(to_lowbit(network, Precision.for_bits(bits))).eval()
    classifier = LowBitClassifier(empty_classifier(512, 10, Precision.for_bits(bits)), 1.0)
    words = {"model": "resnet18", "width": 64, "channels": 3, "size": 32, "objective": "simclr", "bits": bits}
    words |= {"feature_dim": 512, "class_names": [f"c{i}" for i in range(10)], "protocol": "p", "client": "c"}
    from fedqssl.device.format import Manifest

    manifest = Manifest.model_validate({**words, "card": CARD, "extractor_bytes": 1, "classifier_bytes": 1})
    data = to_onnx(DeviceModel(manifest, extractor, classifier))
    fp32 = 4 * (sum(v.numel() for v in network.state_dict().values()) + 5130)
    assert len(data) <= fp32 * stored / 32 * 1.05
    kinds = {i.data_type for i in onnx.load_from_string(data).graph.initializer if i.name.endswith("conv1")}
    assert kinds == {getattr(onnx.TensorProto, storage(bits))}


def test_values_have_their_own_codebooks(pictures):
    model = made(6, pictures.images, pictures.labels, options=LowBitOptions(weights="value"))
    names = {i.name for i in onnx.load_from_string(to_onnx(model)).graph.initializer}
    assert sum(n.endswith(".codebook") for n in names) == 4
    (logits,) = session(to_onnx(model)).run(["logits"], {"images": pictures.images[:300].numpy()})
    assert (logits.argmax(1) == model.logits(pictures.images[:300]).argmax(1).numpy()).mean() >= 0.99


def test_command_and_metadata(run_folder, tmp_path, capsys):
    out = tmp_path / "phone.onnx"
    main_words = ["export", str(run_folder), "--client", "client-00", "--format", "onnx", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        main(main_words)
    assert not ended.value.code
    first = out.read_bytes()
    assert f"Opset {onnx_export.OPSET}" in (tmp_path / "phone.onnx.md").read_text()
    props = {p.key: p.value for p in onnx.load(out).metadata_props}
    assert props["bits"] == "2" and "stripes" in props["class_names"] and "# small_cnn, 2 bits" in props["model_card"]
    with pytest.raises(SystemExit):
        main([*main_words, "--overwrite"])
    assert out.read_bytes() == first


def test_what_cannot_be_exported_is_named(pictures):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.bn, self.act = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
            self.odd = nn.PixelShuffle(2)

        def forward(self, x):
            return self.odd(self.act(self.bn(self.conv(x)))).flatten(1)

    model = to_lowbit(Odd(), Precision.for_bits(4)).eval()
    with pytest.raises(ValueError, match=r"no counterpart of odd \(PixelShuffle\); use --format fedqssl"):
        GraphWriter(onnx, full=False).append(model, Value("x", 4, 1 / 255))


def test_without_onnx(monkeypatch, run_folder, tmp_path, capsys):
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    with pytest.raises(SystemExit) as ended:
        main(
            ["export", str(run_folder), "--client", "client-00", "--format", "onnx", "--out", str(tmp_path / "x.onnx")]
        )
    assert ended.value.code == 2 and "pip install 'fedqssl[export]'" in capsys.readouterr().err
