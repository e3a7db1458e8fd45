"""Images per second and memory of low-bit inference against fp32 torch, torch.ao int8 and onnxruntime, interleaved."""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedqssl.studies.bench.memory import measuring_process, steady_and_peak
from fedqssl.studies.bench.records import PeerUnavailableError, Record, Row, available, import_peer
from fedqssl.studies.bench.timing import interleaved, torch_threads

FP32 = "fp32"
PEERS = ("torch.ao int8", "onnxruntime fp32")
Work = Callable[[], object]


def network(width: int, classes: int = 10, seed: int = 0) -> nn.Module:
    """ResNet-18 with a classifier, in evaluation mode, with batch-norm statistics of random images."""
    from fedqssl.models import resnet18

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = resnet18(width, num_classes=classes)
        model.train()
        with torch.no_grad():
            model(torch.rand(16, 3, 32, 32))
    return model.eval()


def lowbit(model: nn.Module, bits: int, images: Tensor) -> tuple[nn.Module, int, int]:
    """Ours in some bits, the bytes of its packed model, and how many of its convolutions run in integers (or bits)."""
    from fedqssl.lowbit import Precision, to_bytes, to_lowbit
    from fedqssl.lowbit.functions import integer_path
    from fedqssl.lowbit.layers import LowBitConv2d

    made = to_lowbit(model, Precision.for_bits(bits)).eval()
    seen: list[bool] = []
    layers = [m for m in made.modules() if isinstance(m, LowBitConv2d)]
    handles = [m.register_forward_hook(lambda m, args, y: seen.append(integer_path(args[0].bits, m))) for m in layers]
    with torch.no_grad():
        made(images[:2])
    for handle in handles:
        handle.remove()
    return made, len(to_bytes(made)), sum(seen)


def ao_int8(model: nn.Module, images: Tensor) -> tuple[nn.Module, int]:
    """torch.ao's static post-training quantization to int8, with its x86 kernels; and the bytes of its weights."""
    ao = import_peer("torch.ao.quantization", "torch 2.13 still has it")
    fx_mode = import_peer("torch.ao.quantization.quantize_fx", "torch 2.13 still has it")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao.quantization announces its move to torchao
        try:
            mapping = ao.get_default_qconfig_mapping("x86")
            prepared = fx_mode.prepare_fx(copy.deepcopy(model), mapping, (images[:2],))
            with torch.no_grad():
                prepared(images[:16])
            made: nn.Module = fx_mode.convert_fx(prepared)
            with torch.no_grad():
                made(images[:2])
        except (RuntimeError, AttributeError, NotImplementedError) as error:
            raise PeerUnavailableError(f"torch.ao int8 does not run here: {str(error).splitlines()[0]}") from error
    count = sum(p.numel() for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear)) for p in [m.weight])
    return made, count


def onnx_fp32(model: nn.Module, images: Tensor, threads: int) -> tuple[Work, int]:
    """Onnxruntime on the fp32 graph that our exporter writes, and the graph's bytes."""
    onnx, ort = (import_peer(module, "pip install 'fedqssl[export]'") for module in ("onnx", "onnxruntime"))
    from fedqssl.device.onnx_export import IR_VERSION, OPSET
    from fedqssl.device.onnx_graph import GraphWriter, Value
    from fedqssl.lowbit import Precision, to_lowbit

    writer, helper, floats = GraphWriter(onnx, full=True), onnx.helper, onnx.TensorProto.FLOAT
    found = writer.append(to_lowbit(model, Precision.for_bits(32)).eval(), Value("x", 4))
    ends = [[helper.make_tensor_value_info(n, floats, None)] for n in ("x", found.name)]
    graph = helper.make_graph(writer.nodes, "fp32", *ends, initializer=writer.initializers)
    opsets = [helper.make_opsetid("", OPSET)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION).SerializeToString()
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    feed = {"x": images.contiguous().numpy()}
    return (lambda: session.run(None, feed)), len(data)


def _calling(model: nn.Module, x: Tensor) -> Work:
    def work() -> object:
        with torch.inference_mode():
            return model(x)

    return work


def pictures(count: int) -> Tensor:
    """Random images, the same for every variant."""
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, 32, 32, generator=generator).contiguous(memory_format=torch.channels_last)


def variant(name: str, model: nn.Module, x: Tensor, threads: int) -> tuple[Work, dict[str, Any]]:
    """One candidate by name: what to call, and what it is."""
    integers: int | None = 0
    if name == PEERS[0]:
        quantized, size = ao_int8(model, x)
        work, bits, integers = _calling(quantized, x), 8, None
    elif name == PEERS[1]:
        (work, size), bits = onnx_fp32(model, x, threads), 32
    elif name == FP32:
        fp32 = copy.deepcopy(model).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        size = 4 * sum(t.numel() for t in (*fp32.parameters(), *fp32.buffers()))
        work, bits = _calling(fp32, x), 32
    else:
        name, _, text = name.partition("-")
        made, size, integers = lowbit(model, bits := int(text), x)
        work = _calling(made, x)
    return work, {"variant": name, "bits": bits, "integer_layers": integers, "model_bytes": size}


def run(
    width: int = 64,
    images: int = 32,
    bits: Sequence[int] = (2, 4, 6, 8, 12),
    repeats: int = 7,
    threads: int = 1,
    peers: bool = True,
) -> Record:
    """Measure a forward pass of ResNet-18 with classifier on one batch.

    ``speedup`` is fp32's CPU time / the variant's, the median over interleaved repeats; ``integer_layers`` counts
    convolutions that run on integers, exactly. ``model_bytes`` is the stored model, ``peak_bytes`` what a call needs in addition.
    """
    x = pictures(images)
    wanted = [FP32, *(f"fedqssl-{s}" for s in bits), *(PEERS if peers else ())]
    with torch_threads(threads):
        model = network(width)
        made, skipped = available({name: partial(variant, name, model, x, threads) for name in wanted})
    work = {name: call for name, (call, _) in made.items()}
    timings = interleaved(work, FP32, repeats=repeats, warmup=1, threads=threads)
    results: list[Row] = [
        {
            **made[name][1],
            "images_per_second": images / timing.seconds,
            "speedup": 1 / timing.ratio,
            "spread": timing.spread,
            "peak_bytes": _peak_apart(name, width, images, threads),
        }
        for name, timing in timings.items()
    ]
    settings = {
        "model": "resnet18+classifier",
        "width": width,
        "images": images,
        "repeats": repeats,
        "threads": threads,
    }
    return Record("inference", results, skipped, {**settings, "reference": "fp32 torch, channels_last, inference mode"})


def _peak_apart(name: str, width: int, images: int, threads: int) -> int | None:
    """Memory that one call adds to its process; measured in a separate process, as in ``bench memory``."""
    done = measuring_process("inference", name, width, images, threads)
    return int(done.stdout) if done.returncode == 0 else None


def _measure(arguments: Sequence[str]) -> int:
    width, images, threads = map(int, arguments[1:])
    torch.set_num_threads(threads)
    work, _ = variant(arguments[0], network(width), pictures(images), threads)
    print(steady_and_peak(work, warm=1)[1])
    return 0


if __name__ == "__main__":
    sys.exit(_measure(sys.argv[1:]))
