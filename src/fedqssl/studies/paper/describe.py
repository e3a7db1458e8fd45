"""The protocol of a table in words and as settings."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fedqssl.config import RunConfig
from fedqssl.config.load import accuracy_settings
from fedqssl.runs.text_table import bits_text
from fedqssl.studies.paper.catalogue import Row
from fedqssl.studies.paper.plan import Plan

_PER_ROW = ("algorithm", "bits")


def protocol_line(config: RunConfig) -> str:
    """What was done, in one line that a reader can repeat it from."""
    images = "all" if config.images is None else f"{config.images:,}"
    split = f"Dirichlet({config.beta:g})" if config.partition == "dirichlet" else config.partition
    server = config.server
    rate = "" if server.lr is None else f" at lr {server.lr:g}"
    plural = "" if config.rounds == 1 else "s"
    own = f"{config.buffer_images:,} images of {config.buffer}"
    buffer = own if config.buffer_ratio is None else f"{100 * config.buffer_ratio:g}%"
    local = config.local_work if config.local_epochs is None else f"E = {config.local_epochs}"
    work = f"{server.dequantize_epochs} + {server.requantize_epochs} epochs"
    if server.dequantize_epochs is None:
        work = f"{server.steps} steps in all and {server.requantize_epochs} epochs of re-quantization"
    probe = config.evaluation.probe_images
    return (
        f"{config.clients} clients, bits {bits_text(config.bits)}, {split} split of {images} training images of {config.data}; "
        f"{config.model} at width {config.width}; {config.rounds} round{plural}, {local}, "
        f"batch {config.batch_size}, lr {config.lr:g} ({config.lr_schedule}); server: buffer {buffer}, "
        f"{work}{rate}, aggregation temperature "
        f"{config.aggregation.temperature:g}; global accuracy: "
        f"linear probe on {'all' if probe is None else f'{probe:,}'} training images (supervised rows: their own classifier), "
        "whole test set; local: in each client's bits, on its own held-out images"
    )


def settings(plan: Plan, config: RunConfig) -> dict[str, Any]:
    """What all rows share, the bits by precision, and what single algorithms were given instead."""
    shared = {key: value for key, value in accuracy_settings(config).items() if key not in _PER_ROW}
    return {
        "shared": shared,
        "bits": {name: list(bits) for name, bits in plan.scale.bits.items()},
        "algorithms": {name: dict(changes) for name, changes in plan.scale.algorithms.items()},
    }


def tuned_line(plan: Plan, rows: Iterable[Row]) -> str:
    """Which of these rows' algorithms have settings of their own; empty if none has."""
    there = {row.algorithm for row in rows}
    found = [
        f"{name} ({', '.join(f'{k} = {v}' for k, v in changes.items())})"
        for name, changes in plan.scale.algorithms.items()
        if changes and name in there
    ]
    return f"Settings of their own: {'; '.join(found)}." if found else ""


def scale_line(plan: Plan) -> str:
    """How large it was run, in words."""
    return f"Scale {plan.scale.name}: {plan.scale.description}."
