"""From a run to ONNX: export a client's model and check it against onnxruntime.

python examples/run_to_onnx.py RUN OUT.onnx        (needs pip install 'fedqssl[export]')
"""

import sys
from pathlib import Path

import onnxruntime

from fedqssl.device.onnx_export import to_onnx
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.maker.personal import device_model


def main(run: str, out: str, client: str | None = None) -> float:
    finished = FinishedRun.open(Path(run), trust=True)
    name = client or next(iter(finished.result.clients))
    model = device_model(finished, name)
    Path(out).write_bytes(to_onnx(model))

    images = finished.own(name).test
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    agree = float((logits.argmax(1) == model.logits(images).argmax(1).numpy()).mean())
    print(
        f"{name}, {model.manifest.bits} bits: onnxruntime gives the same answer on {100 * agree:.1f}% of {len(images)} images"
    )
    return agree


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
