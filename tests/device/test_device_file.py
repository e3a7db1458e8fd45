"""The device file: what goes in comes out bit for bit, and nothing else is accepted."""

import contextlib
import json
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fedqssl
from fedqssl.device.format import HEADER, DeviceFileError, Manifest, decode, encode
from fedqssl.device.model import load, pack_device
from fedqssl.evaluation.local import LowBitClassifier, empty_classifier
from fedqssl.lowbit import LowBitOptions, Precision, to_lowbit
from fedqssl.models import resnet18
from fedqssl.models.features import features_of
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.ssl.objectives import get_objective


def _words(classes=10, **changes):
    card = {"data": {"labels by class": [1] * classes}, "accuracy": {"by class": [None] * classes}}
    words = {"model": "resnet18", "width": 64, "channels": 3, "size": 32, "objective": "simclr", "feature_dim": 512}
    names = {"class_names": [f"class {i}" for i in range(classes)], "protocol": "p", "client": "c", "card": card}
    return {**words, **names, **changes}


@pytest.mark.parametrize("bits", [2, 4, 12])
def test_size_of_resnet18(bits):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = SelfSupervisedNetwork(resnet18(64), get_objective("simclr").heads(512))
    for module in network.modules():  # as after training: statistics that need 32 bits in places
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_var.uniform_(0.5, 2)
            module.running_mean.normal_()
    extractor = features_of(to_lowbit(network, Precision.for_bits(bits), LowBitOptions()))
    classifier = LowBitClassifier(empty_classifier(512, 10, Precision.for_bits(bits)), 1.0)
    made = pack_device(_words(bits=bits), extractor, classifier)
    fp32 = 4 * (sum(v.numel() for v in network.encoder.state_dict().values()) + 5130)
    assert len(made) <= fp32 * bits / 32 * 1.03


def test_tampered_and_truncated(device_file, tmp_path):
    data = device_file.read_bytes()
    for cut in (0, 3, 20, 47, 48, 50, 500, len(data) - 1):
        with pytest.raises(DeviceFileError, match=r"truncated|not a device file"):
            decode(data[:cut])
    path = tmp_path / "bad.fqssl"
    path.write_bytes(data[:-10] + b"\0" + data[-9:])
    with pytest.raises(DeviceFileError, match=r"bad.fqssl: checksum mismatch.*copy it again"):
        fedqssl.load(path)
    with pytest.raises(DeviceFileError, match="no such file; make one with fedqssl export"):
        fedqssl.load(tmp_path / "none")


def test_newer_and_other_formats(device_file, finished):
    data = bytearray(device_file.read_bytes())
    data[6:8] = struct.pack("<H", 7)
    with pytest.raises(
        DeviceFileError, match="format version 7 is newer than 1, the newest known here; update fedqssl"
    ):
        decode(bytes(data))
    data[6:8] = struct.pack("<H", 0)
    with pytest.raises(DeviceFileError, match="export the model again"):
        decode(bytes(data))
    with pytest.raises(DeviceFileError, match="fedqssl export"):
        decode(finished.payload("client-00"))


def _changed(path, **changes):
    manifest, body, head = decode(path.read_bytes())
    return encode(Manifest.model_construct(**{**manifest.model_dump(), **changes}), body, head)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"width": 100_000}, "width does not fit"),
        ({"bits": 8}, "bits"),
        ({"model": "os:abort"}, "trust=True"),
        ({"model": "nonesuch"}, "trust=True"),
        ({"class_names": []}, "class_names is empty"),
        ({"class_names": ["a"]}, "architecture|shape"),
        ({"objective": "nope"}, "nope"),
        ({"feature_dim": 7}, "features"),
        ({"features": "grid2"}, "gives 128 features here, 32 in the file"),
        ({"features": "grid3"}, "features in the manifest is not valid"),
        ({"scale": float("-1")}, "scale"),
        ({"extractor_bytes": 10}, "announces"),
    ],
)
def test_a_manifest_that_lies(device_file, tmp_path, changes, message):
    path = tmp_path / "lies.fqssl"
    path.write_bytes(_changed(device_file, **changes))
    with pytest.raises(DeviceFileError, match=message) as found:
        load(path)
    assert "\n" not in str(found.value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_changed_bytes_under_a_valid_checksum_raise_no_other_error(device_file, draws):
    data = bytearray(device_file.read_bytes()[48:])
    for _ in range(draws.draw(st.integers(1, 8))):
        data[draws.draw(st.integers(0, 600))] = draws.draw(st.integers(0, 255))
    with contextlib.suppress(DeviceFileError):
        decode(HEADER.wrap(bytes(data)))


def test_the_card(device_file):
    model = fedqssl.load(device_file)
    card = model.card()
    for words in (
        "4 bits, for client-01",
        "Protocol",
        "test accuracy",
        "bit operations",
        "Limits",
        "stripes",
        "scenes",
    ):
        assert words in card
    json.dumps(model.manifest.card, allow_nan=False)
