"""``confusion.png`` of a probe: which classes are confused, and how well the probabilities are calibrated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedqssl import plotting

if TYPE_CHECKING:
    from fedqssl.maker.probing import Probe

NAMED = 30
"""Classes are named on the axes up to this number."""


def draw_probe(probe: Probe, path: Path) -> list[Path]:
    """Draw the confusion matrix and the reliability diagram; nothing without test images or matplotlib (the ``plots`` extra)."""
    if probe.outcome.accuracy is None or not plotting.installed():
        return []
    figure, axes = plotting.subplots(1, 2, figsize=(11, 5), width_ratios=(1.2, 1))
    _confusion(axes[0], probe)
    _reliability(axes[1], probe)
    figure.suptitle(f"{probe.client}, {probe.bits} bits: {100 * probe.outcome.accuracy:.1f}% of {probe.outcome.images}")
    return [plotting.save(figure, path, dpi=110)]


def _confusion(axis: Any, probe: Probe) -> None:
    table = probe.outcome.confusion.double()
    shares = (table / table.sum(1, keepdim=True).clamp(min=1)).tolist()
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    if len(probe.class_names) <= NAMED:
        places = range(len(probe.class_names))
        axis.set_xticks(places, probe.class_names, rotation=60, ha="right", fontsize=8)
        axis.set_yticks(places, probe.class_names, fontsize=8)
    if len(probe.class_names) <= 12:
        for i, row in enumerate(probe.outcome.confusion.tolist()):
            for j, count in enumerate(row):
                if count:
                    colour = "white" if shares[i][j] > 0.5 else "black"
                    axis.text(j, i, str(count), ha="center", va="center", fontsize=7, color=colour)
    axis.set(title="Confusion: share of each true class", xlabel="answer", ylabel="truth")


def _reliability(axis: Any, probe: Probe) -> None:
    bins = probe.outcome.bins
    axis.plot([0, 1], [0, 1], color="grey", linewidth=1, label="perfectly calibrated")
    sizes = [20 + 200 * b.count / probe.outcome.images for b in bins]
    axis.scatter([b.confidence for b in bins], [b.accuracy for b in bins], s=sizes, alpha=0.7)
    axis.set(xlim=(0, 1), ylim=(-0.02, 1.02), xlabel="mean confidence", ylabel="accuracy")
    axis.set_title(f"Calibration error {probe.outcome.calibration_error:.3f}")
    axis.legend(fontsize=8)
    axis.grid(alpha=0.3)


__all__ = ["draw_probe"]
