"""``plan`` times its step where the run will train."""

from __future__ import annotations

import pytest

from fedqssl.config import load_config
from fedqssl.cost import Sizes, study
from fedqssl.quant import kernels
from pretend_gpu import pretend_gpu


@pytest.mark.parametrize("bits", [4, pytest.param(32, marks=pytest.mark.slow)])
def test_a_step_is_measured_on_the_gpu(monkeypatch, bits):
    config = load_config(
        "smoke", {"model": "small_cnn", "width": 4, "batch_size": 4, "device": "cuda", "views.size": 16}
    )
    sizes = Sizes({"client-00": 8}, buffer=4, image=(3, 16, 16))
    with kernels.use("torch"), pretend_gpu(monkeypatch) as crossed:
        found = study(config, sizes, bits, measure_seconds=0.2)
    assert found.measured is not None and found.measured.seconds(4) > 0
    assert crossed["up", "cost.bitwidth.passes"] > 0
