"""``data.json``: what readers of the run need to know about its images, so that they need not be loaded again."""

from __future__ import annotations

from typing import Any

from fedqssl.federated.context import Context


def describe_data(context: Context) -> dict[str, Any]:
    """Shape of an image, class names (None if unknown), and images of each class by client (None without labels)."""
    names = context.train.class_names
    return {
        "image": list(context.buffer().shape[1:]),
        "classes": context.task.classes,
        "class_names": None if names is None else list(names),
        "labels": context.label_counts(),
    }


__all__ = ["describe_data"]
