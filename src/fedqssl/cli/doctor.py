"""``fedqssl doctor``: what this machine offers, and what to change."""

from __future__ import annotations

import importlib.util
import json as json_format
import os
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

EXTRAS = {
    "data": {"pyarrow": "pyarrow", "pillow": "PIL", "scikit-learn": "sklearn"},
    "plots": {"matplotlib": "matplotlib"},
    "export": {"onnx": "onnx", "onnxruntime": "onnxruntime"},
    "serve": {"fastapi": "fastapi", "uvicorn": "uvicorn"},
    "flower": {"flwr": "flwr", "ray": "ray"},
    "bench": {"brevitas": "brevitas", "kornia": "kornia"},
}
ON_GPUS = {"gpu": {"triton": "triton"}}
"""Extras that only machines with a GPU need."""


def _memory_bytes(field: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":")), None)


def collect() -> dict[str, Any]:
    """Facts about the machine and the installation, as JSON values; ``advice`` says what to change."""
    import torch

    from fedqssl import accelerators
    from fedqssl.studies.bench.records import machine

    facts = machine()
    wanted = EXTRAS | (ON_GPUS if accelerators.gpus() else {})
    extras = {
        extra: {name: importlib.util.find_spec(module) is not None for name, module in modules.items()}
        for extra, modules in wanted.items()
    }
    facts.update(
        threads=torch.get_num_threads(),
        device=accelerators.describe() | _gpu_kernels(),
        extras=extras,
        ram_bytes=_memory_bytes("MemTotal"),
        ram_free_bytes=_memory_bytes("MemAvailable"),
        disk_free_bytes=shutil.disk_usage(Path.cwd()).free,
        advice=_advice(extras),
    )
    return facts


def _gpu_kernels() -> dict[str, str]:
    """What each GPU runs on, as probed on it: the kernels, and convolutions on tensor cores."""
    import torch

    from fedqssl import accelerators
    from fedqssl.quant.kernels import gpu, tensorcores

    found = {}
    for index in range(accelerators.gpus()):
        device = torch.device("cuda", index)
        exact = "exact" if tensorcores.available(device) else "not exact or not there, float32 instead"
        found[f"cuda:{index}_kernels"] = f"{gpu.probe(device)[1]}; TF32 sums of codes: {exact}"
    return found


def _package(extra: str) -> str:
    """What pip takes: this folder where fedqssl runs from its source, which is not published, else its name."""
    source = Path(__file__).parents[3]
    return f"-e '{source}[{extra}]'" if (source / "pyproject.toml").is_file() else f"'fedqssl[{extra}]'"


def _advice(extras: dict[str, dict[str, bool]]) -> list[str]:
    from fedqssl import accelerators
    from fedqssl.quant import kernels

    advice = []
    if os.environ.get("OMP_WAIT_POLICY", "").upper() != "PASSIVE":
        advice.append("export OMP_WAIT_POLICY=PASSIVE: idle threads then sleep instead of spinning")
    if accelerators.gpus():
        advice.append(
            f"device=cuda (or auto) uses the GPU; its code is {accelerators.UNTRIED}: compare with device=cpu"
        )
    if kernels.backend_name() != "native":
        advice.append("the kernels run in plain torch, several times slower; 'kernels' above says why")
    for extra, modules in extras.items():
        missing = [name for name, present in modules.items() if not present]
        if missing:
            advice.append(f"{', '.join(missing)} not installed: pip install {_package(extra)}")
    return advice


def doctor(json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False) -> None:
    """Show versions, kernels, threads, extras, memory and disk, and advice."""
    facts = collect()
    if json:
        typer.echo(json_format.dumps(facts, indent=1))
        return
    console = Console()
    table = Table(title="fedqssl doctor", show_header=False)
    for key, value in _flat(facts):
        table.add_row(key, value)
    console.print(table)
    for line in facts["advice"]:
        console.print(f"advice: {line}", markup=False, highlight=False)


def _flat(facts: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Rows of the table: nested names joined by dots, sizes in GiB, yes or no for flags."""
    rows: list[tuple[str, str]] = []
    for key, value in facts.items():
        if key == "advice":
            continue
        if isinstance(value, dict):
            rows += _flat(value, f"{prefix}{key}.")
        elif key.endswith("_bytes"):
            name = key.removesuffix("_bytes").replace("_", " ")
            rows.append((prefix + name, "unknown" if value is None else f"{value / 2**30:.1f} GiB"))
        elif isinstance(value, bool):
            rows.append((prefix + key, "yes" if value else "no"))
        else:
            rows.append((prefix + key, "not set" if value is None else str(value)))
    return rows
