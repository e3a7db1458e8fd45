"""From a run to ONNX: export a client's model and check it against onnxruntime.

python examples/run_to_onnx.py RUN OUT.onnx        (needs pip install 'fedqssl[export]')
"""

import sys

import onnxruntime

import fedqssl


def main(folder: str, out: str, name: str | None = None) -> float:
    run = fedqssl.Run(folder, trust=True)
    client = run.clients[name or next(iter(run.clients))]
    client.export(out, format="onnx")

    images, _ = client.images("test")
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": images.numpy()})
    agree = float((logits.argmax(1) == client.model().logits(images).argmax(1).numpy()).mean())
    print(f"{client.name}, {client.bits} bits: the same answer on {100 * agree:.1f}% of {len(images)} images")
    return agree


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
