"""Operators that modules and functions share in the ONNX export: the same numbers as torch, or an error that names them."""

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

from fedqssl.device import onnx_export
from fedqssl.device.onnx_graph import GraphWriter, Value

ort = pytest.importorskip("onnxruntime")


def exported(module: nn.Module, x: torch.Tensor) -> np.ndarray:
    """What onnxruntime makes of a module's graph."""
    writer, helper = GraphWriter(onnx, full=True), onnx.helper
    found = writer.append(fx.symbolic_trace(module), Value("x", x.ndim))
    ends = [[helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, None)] for n in ("x", found.name)]
    graph = helper.make_graph(writer.nodes, "part", *ends, initializer=writer.initializers)
    opset = [helper.make_opsetid("", onnx_export.OPSET)]
    made = helper.make_model(graph, opset_imports=opset, ir_version=onnx_export.IR_VERSION)
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run([found.name], {"x": x.numpy()})[0]


class Call(nn.Module):
    """A function as a module, which torch.fx traces into a call of that function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Flatten()),
        nn.Sequential(nn.AdaptiveAvgPool2d(1)),
        nn.Sequential(nn.AdaptiveMaxPool2d((1, 1))),
        nn.Sequential(nn.MaxPool2d(3, 2, 1)),
        nn.Sequential(nn.AvgPool2d(2, padding=1, count_include_pad=False)),
        nn.Sequential(nn.Dropout(), nn.Identity(), nn.Flatten()),
        Call(lambda x: torch.flatten(x, 1)),
        Call(lambda x: x.flatten(1, -1)),
        Call(lambda x: F.adaptive_avg_pool2d(x, (1, 1))),
        Call(lambda x: x.mean((2, 3))),
        Call(lambda x: torch.mean(x, dim=3, keepdim=True)),
        Call(lambda x: torch.cat([x, x + x], dim=1)),
    ],
    ids=str,
)
def test_the_same_as_torch(module):
    module.eval()
    x = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(exported(module, x), module(x).numpy(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Flatten(2)), "flattening from dimension 1 only, not 0"),
        (nn.Sequential(nn.AdaptiveAvgPool2d(2)), "adaptive pooling to 1x1 only, not 0"),
        (nn.Sequential(nn.MaxPool2d(2, ceil_mode=True)), "settings of 0: MaxPool2d"),
        (nn.Sequential(nn.MaxPool2d(2, dilation=2)), "settings of 0: MaxPool2d"),
        (nn.Sequential(nn.AvgPool2d(2, divisor_override=3)), "settings of 0: AvgPool2d"),
        (Call(lambda x: x.flatten()), "flattening from dimension 1 only"),
        (Call(lambda x: F.adaptive_avg_pool2d(x, 2)), "adaptive pooling to 1x1 only"),
        (Call(lambda x: x.mean()), "mean"),
        (Call(lambda x: x.sigmoid()), "no counterpart of sigmoid"),
    ],
)
def test_what_is_not_known_is_named(module, message):
    with pytest.raises(ValueError, match=rf"{message}.*use --format fedqssl"):
        exported(module.eval(), torch.rand(2, 3, 6, 6))
