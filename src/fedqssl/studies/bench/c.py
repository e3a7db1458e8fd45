"""A device file as C: time per image on this processor beside onnxruntime in fp32, flash, RAM, instructions on Cortex-M.

On this processor the C is a library that Python calls, compiled as its Makefile does and with ``-O2`` alone; Cortex-M code is
compiled with ``-O2``, and its instructions are counted by qemu on an mps2 board.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fedqssl.device.c_export import CFolder, to_c
from fedqssl.device.model import DeviceModel, architecture, load
from fedqssl.studies.bench.inference import onnx_fp32
from fedqssl.studies.bench.records import PeerUnavailableError, Record, Row, available
from fedqssl.studies.bench.timing import interleaved

BOARD = Path(__file__).with_name("mps2")
BOARDS = {"cortex-m3": "mps2-an385", "cortex-m4": "mps2-an386", "cortex-m7": "mps2-an500"}
ORT, OURS = "onnxruntime fp32", "C"
BUILDS = {
    OURS: ("gcc", "-O3", "-march=native"),
    f"{OURS}, gcc -O2": ("gcc", "-O2"),
    f"{OURS}, clang -O2": ("clang", "-O2"),
}
"""Compiler and options of the C on this processor, by the name of its row."""
Work = Callable[[], object]


def _ran(words: Sequence[str], folder: Path, package: str) -> str:
    """What a program prints; a program that is missing, or fails, is a peer that cannot be measured."""
    if not shutil.which(words[0]):
        raise PeerUnavailableError(f"no {words[0]} (apt-get install {package})")
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise PeerUnavailableError(f"{words[0]} failed: {last}")
    return done.stdout


def on_this_processor(folder: Path, image: np.ndarray[Any, Any], calls: int, build: str = OURS) -> Work:
    """The C as a library: what to call to classify one image ``calls`` times."""
    library = folder / f"{build}.so"
    _ran([*BUILDS[build], "-std=c99", "-shared", "-fPIC", "-o", str(library), "model.c"], folder, BUILDS[build][0])
    predict = ctypes.CDLL(str(library)).model_predict
    predict.restype, predict.argtypes = ctypes.c_int32, [ctypes.c_void_p, ctypes.c_void_p]
    address = image.ctypes.data

    def work() -> object:
        for _ in range(calls):
            predict(address, None)
        return image  # keeps the memory alive

    return work


def in_fp32(model: DeviceModel, image: np.ndarray[Any, Any], calls: int) -> Work:
    """The same backbone with a linear classifier in onnxruntime, one image at a time; its weights do not matter."""
    m = model.manifest
    encoder = architecture(m, trust=True).encoder
    network = nn.Sequential(encoder, nn.Linear(int(encoder.feature_dim), len(m.class_names))).eval()  # type: ignore[arg-type]
    once, _ = onnx_fp32(network, torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255, threads=1)

    def work() -> object:
        for _ in range(calls):
            once()
        return None

    return work


def on_cortex(folder: Path, cpu: str) -> dict[str, int]:
    """Flash, RAM and instructions per image on a Cortex-M."""
    gcc, packages = "arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi"
    compile_for = [gcc, f"-mcpu={cpu}", "-mthumb", "-O2", "-std=c99"]
    _ran([*compile_for, "-c", "-o", "model.o", "model.c"], folder, packages)
    sizes = _ran(["arm-none-eabi-size", "model.o"], folder, packages).splitlines()[1].split()
    parts = ["--specs=rdimon.specs", f"-T{BOARD / 'mps2.ld'}", str(BOARD / "vectors.c"), str(BOARD / "count_main.c")]
    _ran([*compile_for, "-I.", *parts, "model.c", "-o", "count.elf"], folder, packages)
    board = ["qemu-system-arm", "-M", BOARDS[cpu], "-nographic", "-semihosting", "-icount", "shift=0"]
    counted = _ran([*board, "-kernel", "count.elf"], folder, "qemu-system-arm")
    return {"flash": int(sizes[0]), "ram": int(sizes[2]), "instructions": int(counted.split()[0])}


def _rows(made: CFolder, bits: int, cortex: dict[str, dict[str, int]]) -> list[Row]:
    """One row for each Cortex-M, with the constants of the model beside all flash."""
    words = {"bits": bits, "us": None, "speed": None, "constants": made.table_bytes}
    return [{"variant": f"{OURS}, {cpu}", **words, **found} for cpu, found in cortex.items()]


def run(file: Path, repeats: int = 7, calls: int = 500) -> Record:
    """Measure a device file as C.

    ``us`` are microseconds of CPU time per image, the median over interleaved repeats; ``speed`` is onnxruntime's time divided
    by it. ``flash`` is code and constants, ``ram`` static memory; stack and image come on top.
    """
    model = load(file)
    m, made = model.manifest, to_c(model)
    pixels = np.random.default_rng(0).integers(0, 256, (m.size, m.size, m.channels)).astype(np.uint8)
    with tempfile.TemporaryDirectory(prefix="fedqssl-bench-c-") as name:
        folder = Path(name)
        for file_name, text in made.files.items():
            (folder / file_name).write_text(text)
        candidates: dict[str, Callable[[], Work]] = {
            build: partial(on_this_processor, folder, pixels, calls, build) for build in BUILDS
        }
        candidates[ORT] = lambda: in_fp32(model, pixels, calls)
        work, skipped = available(candidates)
        reference = ORT if ORT in work else next(iter(work), None)
        timings = interleaved(work, reference, repeats=repeats) if reference is not None else {}
        cortex, missing = available({cpu: partial(on_cortex, folder, cpu) for cpu in BOARDS})
    empty = {"flash": None, "ram": None, "instructions": None}
    results: list[Row] = [
        {
            **{"variant": name, "bits": m.bits if name in BUILDS else 32, "us": 1e6 * timing.seconds / calls},
            **{"speed": 1 / timing.ratio, "constants": made.table_bytes if name in BUILDS else None, **empty},
        }
        for name, timing in timings.items()
    ]
    results += _rows(made, m.bits, cortex)
    if not results:
        raise ValueError(f"nothing can be measured here: {skipped[0].reason}")
    settings = {"model": m.model, "width": m.width, "size": m.size, "features": m.features, "repeats": repeats}
    return Record("c", results, [*skipped, *missing], {**settings, "calls": calls, "flags": " ".join(BUILDS[OURS])})


__all__ = ["run"]
