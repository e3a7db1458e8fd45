"""``curves.png`` and ``partition.png`` of a run; they need matplotlib (the ``plots`` extra)."""

from __future__ import annotations

from typing import Any

from fedqssl import plotting
from fedqssl.federated.context import Context
from fedqssl.runs.folder import RunFolder


def draw(context: Context, folder: RunFolder) -> list[str]:
    """Draw what can be drawn; returns the names of the files."""
    if not plotting.installed():
        return []
    drawn = {"curves.png": curves(folder), "partition.png": _partition(context)}
    for name, figure in drawn.items():
        plotting.save(figure, folder.path / name)
    return list(drawn)


def curves(folder: RunFolder) -> Any:
    """Mean client loss, kNN accuracy and aggregation weights over rounds."""
    lines = folder.lines()
    rounds = [line["round"] for line in lines]
    figure, axes = plotting.subplots(1, 3, figsize=(12, 3.6))
    axes[0].plot(rounds, [line["loss"] for line in lines], marker="o")
    axes[0].set(title="Training loss", xlabel="round", ylabel="mean loss, last epoch of the round")
    known = [(r, 100 * line["knn"]) for r, line in zip(rounds, lines, strict=True) if line["knn"] is not None]
    axes[1].plot([r for r, _ in known], [v for _, v in known], marker="o", color="tab:green")
    if lines and (floor := lines[-1].get("untrained_knn")) is not None:
        axes[1].axhline(100 * floor, color="grey", linestyle="--", label="untrained network")
        axes[1].legend(fontsize=6)
    axes[1].set(title="kNN accuracy of the global model", xlabel="round", ylabel="%")
    names = sorted({name for line in lines for name in line["weights"]})
    for name in names:
        took_part = [(line["round"], line["weights"][name]) for line in lines if name in line["weights"]]
        style = (
            "-" if len(took_part) == len(lines) else ".:"
        )  # clients that take turns have no line from round to round
        axes[2].plot(*zip(*took_part, strict=True), style, linewidth=1.5 if style == "-" else 0.5, label=name)
    axes[2].set(title="Aggregation weights", xlabel="round", ylabel="p_k", ylim=(0, None))
    if 0 < len(names) <= 12:
        axes[2].legend(fontsize=6, ncols=2)
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.xaxis.get_major_locator().set_params(integer=True)
    return figure


def _partition(context: Context) -> Any:
    """Number of training images of each class at every client."""
    counts = context.label_counts()
    if counts is None:
        return _sizes(context)
    names = sorted(counts)
    classes = context.train.class_names or tuple(map(str, range(len(counts[names[0]]["train"]))))
    table = [counts[n]["train"] for n in names]
    figure, axis = plotting.subplots(figsize=(1.5 + 0.6 * len(classes), 1.5 + 0.32 * len(names)))
    image = axis.imshow(table, cmap="Blues", aspect="auto")
    axis.set_xticks(range(len(classes)), classes, rotation=45, ha="right")
    axis.set_yticks(range(len(names)), [f"{n} ({context.bits[n]} bits)" for n in names])
    axis.set_title("Training images by client and class")
    figure.colorbar(image)
    return figure


def _sizes(context: Context) -> Any:
    """Without labels: number of training images at every client."""
    names = sorted(context.bits)
    figure, axis = plotting.subplots(figsize=(6, 1.5 + 0.32 * len(names)))
    axis.barh(range(len(names)), [context.sizes[n] for n in names])
    axis.set_yticks(range(len(names)), [f"{n} ({context.bits[n]} bits)" for n in names])
    axis.invert_yaxis()
    axis.set_title("Training images by client (they have no labels)")
    return figure


__all__ = ["draw"]
