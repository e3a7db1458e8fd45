"""Which runs may be compared: a digest of everything that affects accuracy, the algorithm's revision included."""

from __future__ import annotations

import hashlib
import json

from fedqssl.config import RunConfig
from fedqssl.config.keys import flat
from fedqssl.config.load import BEFORE, accuracy_settings
from fedqssl.federated.algorithms import get_algorithm

_VERSION = 2
"""2: classifiers of clients have room to grow (local accuracies of version 1 are lower)."""
_ALWAYS_COUNTED = frozenset(
    (
        *("data", "images", "on_bad", "clients", "bits", "partition", "beta", "classes_per_client", "minority"),
        *("buffer_ratio", "algorithm", "objective", "model", "width", "rounds", "local_epochs", "batch_size"),
        *("lr", "lr_schedule", "fraction", "min_clients", "ssl.temperature", "aggregation.temperature"),
        *("server.dequantize_epochs", "server.requantize_epochs", "server.lr", "lowbit.weights", "lowbit.rule"),
        *("lowbit.scale", "lowbit.rounding", "lowbit.activation_clip", "fedprox.mu", "evaluation.probe_images"),
    )
)
"""The settings of the first digests. Never add to it: a newer setting counts only where it is not what runs did before it, so
that digests of runs from before it stay as they are, and unfinished ones can be resumed."""


def protocol(config: RunConfig) -> str:
    """12 hexadecimal digits of :func:`accuracy_settings` and of how this version evaluates and runs the algorithm."""
    defaults = {**flat(RunConfig().model_dump(mode="json")), **BEFORE}
    settings = {
        key: value
        for key, value in accuracy_settings(config).items()
        if key in _ALWAYS_COUNTED or value != defaults[key]
    }
    revision = get_algorithm(config.algorithm).revision
    text = json.dumps([_VERSION, *([revision] if revision else []), settings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


__all__ = ["protocol"]
