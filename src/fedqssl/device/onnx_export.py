"""A device model as an ONNX graph: weights stay codes in the smallest integer type, activations are rounded as ours are.

Weights are initializers of UINT4 (up to 4 bits), UINT8 or UINT16 codes; the graph casts them to indices and looks them up in
a codebook (one for all layers whose weights are levels). Rounding is ONNX ``Round``: half to even, the rule of our kernels.
The input is ``images``, uint8 (N, C, size, size); the outputs are ``logits`` and ``probabilities``.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fedqssl import __version__
from fedqssl.data.pixels import import_extra

if TYPE_CHECKING:
    from fedqssl.device.model import DeviceModel

OPSET = 21
"""The first with 4-bit integers."""
IR_VERSION = 10
INPUT, LOGITS, PROBABILITIES = "images", "logits", "probabilities"


def check_onnx() -> Any:
    """The ``onnx`` package, or a one-line error that names the extra."""
    return import_extra("onnx", "onnx", "ONNX export", "export")


def versions() -> str:
    """Opset and versions, for the model card."""
    onnx = check_onnx()
    try:
        import onnxruntime

        runtime = f"onnxruntime {onnxruntime.__version__}"
    except ImportError:
        runtime = "onnxruntime (not installed here)"
    return (
        "\n## ONNX\n\n"
        f"Opset {OPSET}, IR version {IR_VERSION}, written with onnx {onnx.__version__}, checked against {runtime}.\n"
        f"Input `{INPUT}`: uint8 (N, C, H, W); outputs `{LOGITS}` and `{PROBABILITIES}`: float32 (N, classes).\n"
    )


def to_onnx(model: DeviceModel) -> bytes:
    """The graph as bytes; the same model gives the same bytes.

    Raises:
        ValueError: names an operator that the export does not know.
    """
    onnx = check_onnx()
    from fedqssl.device.onnx_graph import GraphWriter, Value

    m, helper = model.manifest, onnx.helper
    writer = GraphWriter(onnx, full=m.bits == 32)
    found = writer.append(model.extractor, writer.pixels(INPUT))
    if model.classifier is not None:
        scaled = writer.op("Div", writer.floats(found), writer.constant("feature_scale", model.classifier.scale))
        found = writer.append(model.classifier.model, Value(scaled, 2), "classifier.")
    logits = writer.op("Identity", writer.floats(found), output=LOGITS)
    writer.op("Softmax", logits, output=PROBABILITIES, axis=1)
    element = onnx.TensorProto
    classes = len(m.class_names)
    shape = ["N", m.channels, m.size, m.size]
    graph = helper.make_graph(
        writer.nodes,
        "fedqssl",
        [helper.make_tensor_value_info(INPUT, element.UINT8, shape)],
        [helper.make_tensor_value_info(n, element.FLOAT, ["N", classes]) for n in (LOGITS, PROBABILITIES)],
        initializer=writer.initializers,
    )
    made = helper.make_model(
        graph,
        producer_name="fedqssl",
        producer_version=__version__,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    described = {
        "bits": str(m.bits),
        "class_names": json.dumps(m.class_names, ensure_ascii=False),
        "client": m.client,
        "model_card": model.card(),
        "normalisation": f"inside the graph: {m.normalisation}",
        "protocol": m.protocol,
    }
    helper.set_model_props(made, described)
    onnx.checker.check_model(made)
    data: bytes = made.SerializeToString(deterministic=True)
    return data


__all__ = ["IR_VERSION", "OPSET", "check_onnx", "to_onnx", "versions"]
