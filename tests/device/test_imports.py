"""A device loads the runtime alone: nothing of training, runs, costs or fleets, not even when it predicts."""

import subprocess
import sys
from pathlib import Path

import pytest

PHONE = Path(__file__).parents[1] / "compat" / "before_restructure" / "phone.fqssl"
ABOVE = ("engines", "runs", "cost", "federated", "maker", "studies", "reporting", "cli", "deploy", "serve", "config")
IMPORT = "import fedqssl.device, fedqssl.device.onnx_export, fedqssl.device.onnx_graph, fedqssl.device.c_export"
USE = f"""
import torch, fedqssl
model = fedqssl.load({str(PHONE)!r})
model.predict(torch.zeros(2, 3, 32, 32, dtype=torch.uint8))
model.card(), model.to_bytes()
"""


@pytest.mark.parametrize("code", [IMPORT, USE], ids=["import", "use"])
def test_the_runtime_imports_nothing_from_above(code):
    shown = "import sys; print(*(name for name in sys.modules if name.startswith('fedqssl.')))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{shown}"], capture_output=True, text=True, check=True)
    loaded = {name.split(".")[1] for name in done.stdout.split()}
    assert "device" in loaded and not loaded & set(ABOVE)
