"""The model card: what a device model is, what it was made from, how good it is, what it costs and what it is not for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from fedqssl.cost.trace import trace
from fedqssl.cost.units import bytes_text, operations_text
from fedqssl.lowbit import Precision

if TYPE_CHECKING:
    from fedqssl.device.format import Manifest
    from fedqssl.maker.finished_run import FinishedRun
    from fedqssl.maker.probing import Probe

SETTINGS = ("algorithm", "objective", "rounds", "local_epochs", "batch_size", "lr", "partition", "clients", "seed")


def card_values(run: FinishedRun, probe: Probe, model: torch.nn.Module, image: tuple[int, int, int]) -> dict[str, Any]:
    """What the card is written from; plain values, and the same for the same run."""
    config, client = run.config, run.result.clients[probe.client]
    products = trace(model, image).products
    precision = Precision.for_bits(probe.bits)
    return {
        "data": {
            "pre-trained on": config.data,
            "images of this client": client.samples,
            "classifier fitted on": probe.settings.data or "the client's own images",
            "labels used": probe.train_images,
            "labels by class": list(probe.train_counts),
        },
        "training": {**{key: getattr(config, key) for key in SETTINGS}, "lowbit.weights": config.lowbit.weights},
        "bits": {
            "input": 8 if not precision.full else 32,
            "weights": precision.weight,
            "activations": precision.activation,
            "gradients (training)": precision.gradient,
        },
        "accuracy": {
            "test accuracy": probe.outcome.accuracy,
            "test images": probe.outcome.images,
            "calibration error": probe.outcome.calibration_error,
            "by class": probe.outcome.per_class(),
            "global accuracy of the run": run.result.global_accuracy,
        },
        "cost": {
            "weights": sum(p.numel() for p in _weights(model)),
            "multiply-accumulates per image": sum(p.macs for p in products),
            "bit operations per image": sum(p.macs * p.weight_bits * p.input_bits for p in products),
            "bytes sent in training": client.bytes_up,
            "bytes received in training": client.bytes_down,
        },
    }


def _weights(model: torch.nn.Module) -> list[torch.Tensor]:
    from fedqssl.lowbit.policy import state_of

    shapes = [e.shape for e in state_of(model).values() if e.role == "quantized"]
    return [torch.empty(shape, device="meta") for shape in shapes]


def _text(key: str, value: Any) -> str:
    if value is None:
        return "not measured"
    if key.startswith("bytes"):
        return bytes_text(value)
    if "operations" in key or "multiply" in key:
        return operations_text(value)
    if "accuracy" in key:
        return f"{100 * value:.1f}%"
    return f"{value:.3f}" if isinstance(value, float) and key == "calibration error" else str(value)


def _rows(values: dict[str, Any]) -> list[str]:
    plain = {k: v for k, v in values.items() if not isinstance(v, list)}
    return ["| | |", "|---|---|", *(f"| {k} | {_text(k, v)} |" for k, v in plain.items()), ""]


def _class_rows(manifest: Manifest) -> list[str]:
    counts, shares = manifest.card["data"]["labels by class"], manifest.card["accuracy"]["by class"]
    rows = zip(manifest.class_names, counts, shares, strict=True)
    found = [f"| {n} | {c} | {'no test images' if s is None else f'{100 * s:.1f}%'} |" for n, c, s in rows]
    return ["| class | labels | accuracy |", "|---|---|---|", *found, ""]


def markdown(manifest: Manifest, file_bytes: int) -> str:
    """The card as a page."""
    card, m = manifest.card, manifest
    missing = [n for n, c in zip(m.class_names, card["data"]["labels by class"], strict=True) if not c]
    kind, size = "RGB" if m.channels == 3 else "grey", bytes_text(file_bytes)
    lines = [f"# {m.model}, {m.bits} bits, for {m.client}", ""]
    lines += [f"A personal low-bit image classifier of {len(m.class_names)} classes in {size}, made by fedqssl.", ""]
    lines += [f"Input: {kind} images, brought to {m.size}x{m.size} (centre square), pixels as `{m.normalisation}`.", ""]
    for title in ("data", "training", "bits", "accuracy", "cost"):
        lines += [f"## {title.capitalize()}", ""]
        if title == "training":
            lines += [f"Protocol `{m.protocol}`.", ""]
        lines += _rows(card[title])
        if title == "accuracy":
            lines += _class_rows(m)
    lines += ["## Limits", ""]
    lines += [
        f"- Tested on {card['accuracy']['test images']} images with the label distribution of this client, not on yours.",
        "- Accuracy elsewhere may be lower: the classifier knows the classes above and gives every image one of them.",
        f"- Probabilities were {card['accuracy']['calibration error']:.3f} off on average (expected calibration error).",
    ]
    if missing:
        lines.append(
            f"- No labels of these classes were seen, so they will hardly ever be the answer: {', '.join(missing)}."
        )
    return "\n".join([*lines, ""])


__all__ = ["card_values", "markdown"]
