"""The values of a model card: what a device model was made from, how good it is, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from torch import nn

from fedqssl.cost.trace import trace
from fedqssl.evaluation.controls import WORDS
from fedqssl.federated.task import Task
from fedqssl.lowbit import Precision
from fedqssl.lowbit.policy import state_of

if TYPE_CHECKING:
    from fedqssl.maker.finished_run import FinishedRun
    from fedqssl.maker.probing import Probe

SETTINGS = (
    *("algorithm", "objective", "rounds", "local_epochs", "local_steps", "batch_size", "lr", "partition", "clients"),
    "seed",
)
Card = dict[str, dict[str, Any]]


def _probed(probe: Probe, controls: Mapping[str, float]) -> Card:
    """A probe's figures: labels, bits, accuracy beside that of its controls."""
    precision, judged = Precision.for_bits(probe.bits), probe.outcome
    return {
        "data": {"labels used": probe.train_images, "labels by class": list(probe.train_counts)},
        "bits": {"weights": precision.weight, "activations": precision.activation},
        "accuracy": {
            "test accuracy": judged.accuracy,
            **{f"accuracy of {WORDS[name]}": found for name, found in controls.items()},
            "test images": judged.images,
            "calibration error": judged.calibration_error,
            "by class": judged.per_class(),
        },
    }


def data_name(spec: str) -> str:
    """A data set by name, without the path on its maker's machine: ``folder:/home/me/birds`` is ``birds (folder)``."""
    kind, colon, path = spec.partition(":")
    return f"{PurePath(path).name or path} ({kind})" if colon else spec


def run_card(
    run: FinishedRun, probe: Probe, controls: Mapping[str, float], model: nn.Module, image: tuple[int, int, int]
) -> Card:
    """The card of a client of a finished run: plain values, the same for the same run.

    Args:
        run: the run.
        probe: the client's probe.
        controls: accuracies without pre-training on the same images.
        model: the client's extractor.
        image: shape of an image.
    """
    config, client, card = run.config, run.result.clients[probe.client], _probed(probe, controls)
    precision, products = Precision.for_bits(probe.bits), trace(model, image).products
    settings = {key: value for key in SETTINGS if (value := getattr(config, key)) is not None}
    card["data"] |= {
        "pre-trained on": data_name(config.data),
        "images of this client": client.samples,
        "classifier fitted on": data_name(probe.settings.data) if probe.settings.data else "the client's own images",
    }
    card["bits"] |= {"input": 32 if precision.full else 8, "gradients (training)": precision.gradient}
    weights = {role: [e for e in state_of(model).values() if e.role == role] for role in ("quantized", "averaged")}
    in_floats = sum(e.shape.numel() for e in weights["averaged"] if len(e.shape) > 1)
    if in_floats:
        card["bits"] |= {"layers in floats": ", ".join(config.lowbit.skip), "weights in floats": in_floats}
    card["accuracy"]["global accuracy of the run"] = run.result.global_accuracy
    return {
        **card,
        "training": {**settings, "lowbit.weights": config.lowbit.weights},
        "cost": {
            "weights": sum(e.shape.numel() for e in weights["quantized"]) + in_floats,
            "multiply-accumulates per image": sum(p.macs for p in products),
            "bit operations per image": sum(p.macs * p.weight_bits * p.input_bits for p in products),
            "bytes sent in training": client.bytes_up,
            "bytes received in training": client.bytes_down,
        },
    }


def fleet_card(task: Task, probe: Probe, controls: Mapping[str, float], payload: bytes) -> Card:
    """The card of a client of a fleet, which knows only its task, its probe and its final model."""
    return {
        **_probed(probe, controls),
        "training": {"objective": task.objective, "batch_size": task.batch_size, "seed": task.seed},
        "cost": {"bytes of the model on the wire": len(payload)},
    }


__all__ = ["Card", "fleet_card", "run_card"]
