"""``lowbit.skip`` from the setting to the device file: what is skipped is float everywhere, and nothing else is."""

import numpy as np
import pytest
import torch
from torch import nn

from fedqssl.config import load_config, to_toml
from fedqssl.config.load import accuracy_settings
from fedqssl.cost.bitwidth import study
from fedqssl.cost.sizes import Sizes
from fedqssl.data.scenes import scenes
from fedqssl.federated.context import make_task
from fedqssl.federated.job import Job
from fedqssl.federated.protocol import protocol
from fedqssl.lowbit import ConversionError, LowBitWeight
from fedqssl.lowbit.container import read_header
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.maker.personal import device_model
from tiny_run import known_run, tiny, tiny_context

SKIP = "encoder.layers.0, heads.*"


def test_the_setting(tmp_path):
    config = load_config("smoke", [f"lowbit.skip={SKIP}"])
    assert config.lowbit.skip == ("encoder.layers.0", "heads.*")
    (tmp_path / "mine.toml").write_text(to_toml(config))
    assert load_config(tmp_path / "mine.toml") == config
    assert load_config(tmp_path / "mine.toml", ["lowbit.skip=none"]) == load_config("smoke")
    assert accuracy_settings(config)["lowbit.skip"] == ["encoder.layers.0", "heads.*"]
    assert protocol(config) != protocol(load_config("smoke"))


def test_a_job_carries_it_to_other_machines():
    job = tiny_context(**{"lowbit.skip": SKIP}).job(0, 0.1)
    assert Job.from_json(job.to_json()) == job and job.task.options.skip == ("encoder.layers.0", "heads.*")


def test_a_name_that_is_none_is_an_error_before_training():
    with pytest.raises(ConversionError, match=r"'encoder.layer.0'; did you mean 'encoder.layers.0'\?"):
        make_task(tiny(**{"lowbit.skip": "encoder.layer.0"}), 3, 10).converted(4)


def test_the_ledger_counts_it_in_floats():
    sizes = Sizes(clients={"a": 40}, buffer=20, image=(3, 32, 32), classes=10)
    plain, skipped = (study(tiny(**{"lowbit.skip": s}), sizes, 4) for s in ("none", "encoder.layers.0"))
    first = {s: s_.trace.products[0] for s, s_ in (("plain", plain), ("skipped", skipped))}
    assert (first["plain"].weight_bits, first["plain"].input_bits) == (4, 8)
    assert (first["skipped"].weight_bits, first["skipped"].input_bits) == (32, 32)
    assert plain.trace.products[1:] == skipped.trace.products[1:]
    assert skipped.memory(8).total > plain.memory(8).total and skipped.wire.total > plain.wire.total


def test_a_whole_run():
    result = known_run(**{"lowbit.skip": SKIP})
    run = FinishedRun.open(result.folder)
    assert result.clients["client-00"].local_accuracy is not None
    for client in ("client-00", "client-02"):  # 4 bits, floats
        model = device_model(run, client)
        assert type(model.extractor.get_submodule("encoder.layers.0")) is nn.Conv2d
        kept = [name for name, m in model.extractor.named_modules() if isinstance(m, LowBitWeight)]
        assert len(kept) == (3 if client == "client-00" else 0)
        assert model.manifest.card["bits"]["layers in floats"] == "encoder.layers.0, heads.*"
        assert model.manifest.card["bits"]["weights in floats"] == 3 * 4 * 9
        _same_in_onnx(model)
    header = read_header((result.folder / "clients" / "client-00" / "model.fqssl").read_bytes())
    assert '"skip": ["encoder.layers.0", "heads.*"]' in header["options"]


def _same_in_onnx(model) -> None:
    ort = pytest.importorskip("onnxruntime")
    from fedqssl.device.onnx_export import to_onnx

    images = scenes(24).images
    session = ort.InferenceSession(to_onnx(model), providers=["CPUExecutionProvider"])
    found = torch.from_numpy(session.run(["logits"], {"images": images.numpy().astype(np.uint8)})[0])
    assert (found.argmax(1) == model.logits(images).argmax(1)).float().mean() >= 0.9
