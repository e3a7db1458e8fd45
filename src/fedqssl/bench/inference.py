"""Images per second and memory of low-bit inference against fp32 torch, torch.ao int8 and onnxruntime, interleaved."""

from __future__ import annotations

import copy
import ctypes
import gc
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedqssl.bench.memory import status_bytes
from fedqssl.bench.peers import PeerUnavailableError
from fedqssl.bench.records import Record, Row, Skipped
from fedqssl.bench.timing import interleaved, torch_threads

FP32 = "fp32"
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
    try:
        import torch.ao.quantization as ao
        from torch.ao.quantization import quantize_fx
    except ImportError as error:
        raise PeerUnavailableError(f"torch.ao.quantization: {error}; torch 2.13 still has it") from error
    aoq, fx_mode = ao, quantize_fx  # type: Any, Any
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao.quantization announces its move to torchao
        try:
            mapping = aoq.get_default_qconfig_mapping("x86")
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
    try:
        import onnx
        import onnxruntime as ort
    except ImportError as error:
        raise PeerUnavailableError(f"onnxruntime: {error}; pip install 'fedqssl[export]'") from error
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


def _peak(work: Work) -> int | None:
    """How far one call rises above what the process holds before it; None where the kernel does not tell."""
    try:
        work()
        gc.collect()
        before = status_bytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets VmHWM to VmRSS
        work()
        return status_bytes("VmHWM") - before
    except OSError:
        return None


def _peaks(work: dict[str, Work], threads: int) -> dict[str, int | None]:
    """Peaks of all variants, with freed buffers given back at once (glibc); last of all, because that costs speed."""
    try:
        ctypes.CDLL("libc.so.6").mallopt(-3, 128 << 10)  # M_MMAP_THRESHOLD
    except (OSError, AttributeError):
        return dict.fromkeys(work)
    with torch_threads(threads):
        return {name: _peak(call) for name, call in work.items()}


def _calling(model: nn.Module, x: Tensor) -> Work:
    def work() -> object:
        with torch.inference_mode():
            return model(x)

    return work


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
    convolutions that run on integers, exactly. ``model_bytes`` is the stored model, ``peak_bytes`` what a call needs besides.
    """
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(images, 3, 32, 32, generator=generator).contiguous(memory_format=torch.channels_last)
    work: dict[str, Work] = {}
    about: dict[str, dict[str, Any]] = {}
    skipped: list[Skipped] = []
    with torch_threads(threads):
        float_model = network(width)
        fp32 = network(width).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        work[FP32] = _calling(fp32, x)
        stored = 4 * sum(t.numel() for t in (*fp32.parameters(), *fp32.buffers()))
        about[FP32] = {"variant": FP32, "bits": 32, "integer_layers": 0, "model_bytes": stored}
        for s in bits:
            model, size, integers = lowbit(float_model, s, x)
            work[f"fedqssl-{s}"] = _calling(model, x)
            about[f"fedqssl-{s}"] = {"variant": "fedqssl", "bits": s, "integer_layers": integers, "model_bytes": size}
        if peers:
            _add_peers(float_model, x, threads, work, about, skipped)
    timings = interleaved(work, FP32, repeats=repeats, warmup=1, threads=threads)
    peaks = _peaks(work, threads)
    results: list[Row] = [
        {
            **about[name],
            "images_per_second": images / timing.seconds,
            "speedup": 1 / timing.ratio,
            "spread": timing.spread,
            "peak_bytes": peaks[name],
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


def _add_peers(
    model: nn.Module,
    x: Tensor,
    threads: int,
    work: dict[str, Work],
    about: dict[str, dict[str, Any]],
    skipped: list[Skipped],
) -> None:
    try:
        quantized, size = ao_int8(model, x)
        work["torch.ao-int8"] = _calling(quantized, x)
        about["torch.ao-int8"] = {"variant": "torch.ao int8", "bits": 8, "integer_layers": None, "model_bytes": size}
    except PeerUnavailableError as error:
        skipped.append(Skipped("torch.ao int8", str(error)))
    try:
        work["onnxruntime"], size = onnx_fp32(model, x, threads)
        about["onnxruntime"] = {"variant": "onnxruntime fp32", "bits": 32, "integer_layers": 0, "model_bytes": size}
    except PeerUnavailableError as error:
        skipped.append(Skipped("onnxruntime fp32", str(error)))
