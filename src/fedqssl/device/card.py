"""The model card of a device file as a page: what the model is, what it was made from, how good it is and what it costs."""

from __future__ import annotations

from typing import Any

from fedqssl.device.format import Manifest
from fedqssl.models.features import FEATURES
from fedqssl.units import bytes_text, operations_text


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
    """The card as Markdown; ``file_bytes`` is the size of the device file."""
    card, m = manifest.card, manifest
    missing = [n for n, c in zip(m.class_names, card["data"]["labels by class"], strict=True) if not c]
    kind, size = "RGB" if m.channels == 3 else "grey", bytes_text(file_bytes)
    lines = [f"# {m.model}, {m.bits} bits, for {m.client}", ""]
    lines += [f"A personal low-bit image classifier of {len(m.class_names)} classes in {size}, made by fedqssl.", ""]
    lines += [f"Input: {kind} images, resized to {m.size}x{m.size} (centre square), pixels as `{m.normalisation}`.", ""]
    if m.contrast == "stretch":
        lines += ["Every image gets the same brightness and contrast first; the file does that by itself.", ""]
    if m.features != "pooled":
        lines += [f"Features: {FEATURES[m.features].description}; {m.feature_dim} numbers.", ""]
    for title in ("data", "training", "bits", "accuracy", "cost"):
        lines += [f"## {title.capitalize()}", ""]
        if title == "training":
            lines += [f"Protocol `{m.protocol}`.", ""]
        lines += _rows(card[title])
        if title == "accuracy":
            lines += _class_rows(m)
    tested, error = card["accuracy"]["test images"], card["accuracy"]["calibration error"]
    lines += [
        "## Limits",
        "",
        f"- Tested on {tested} images with the label distribution of this client, not on your images.",
        "- Accuracy elsewhere may be lower: the classifier knows only the classes above and assigns one of them to every image.",
        *([] if error is None else [f"- Probabilities were {error:.3f} off on average (expected calibration error)."]),
    ]
    if missing:
        lines.append(
            f"- No labels of these classes were seen, so they will hardly ever be predicted: {', '.join(missing)}."
        )
    return "\n".join([*lines, ""])


__all__ = ["markdown"]
