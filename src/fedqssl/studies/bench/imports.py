"""Seconds until a device can load a model: how long imports take in a fresh process, compared with torch alone."""

from __future__ import annotations

import statistics
import subprocess
import sys

from fedqssl.studies.bench.records import Record, Row

MODULES = ("torch", "fedqssl.device", "fedqssl.runs")
CODE = "import time; began = time.perf_counter(); import {0}; print(time.perf_counter() - began)"


def seconds(module: str) -> float:
    """Seconds that importing a module takes in a new process."""
    done = subprocess.run([sys.executable, "-c", CODE.format(module)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def run(repeats: int = 7) -> Record:
    """Import the runtime of a device, and for comparison torch alone and what a run needs, interleaved."""
    found = [{module: seconds(module) for module in MODULES} for _ in range(repeats)]
    medians = {module: statistics.median(each[module] for each in found) for module in MODULES}
    rows: list[Row] = [
        {"variant": module, "seconds": took, "beside_torch": took - medians["torch"]}
        for module, took in medians.items()
    ]
    return Record("imports", rows, settings={"repeats": repeats})
