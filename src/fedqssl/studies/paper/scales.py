"""How large experiments are: ``smoke`` (seconds, embedded images), ``small``, ``medium`` (minutes a run), ``paper`` (days).

A scale starts from presets and keeps the structure of the experiments: all rows, both bit configurations, the split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedqssl.federated.algorithms import ALGORITHMS

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Base:
    """The base configuration of the runs on one dataset.

    Args:
        label: first part of the cells' names; bases with the same label are equal and share cells.
        preset: name of a preset.
        changes: settings on top of it.
    """

    label: str
    preset: str
    changes: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Scale:
    """One size of all experiments.

    Args:
        name: on the command line.
        description: one line.
        bases: by the paper's dataset, ``cifar10`` and ``cifar100``.
        bits: by configuration: ``config1``, ``config2``, ``low``, ``full``.
        points: values on the horizontal axis, by figure.
        algorithms: settings of single algorithms, by name: every baseline gets the tuning that Fed-QSSL gets, so one that
            needs another learning rate has it here, and the tables mention it.
        foreign: data of a buffer that is not from the clients' dataset, if the command line does not name CIFAR-100.
        attacks: base configuration of the runs with hostile clients, if there are any at this scale.
    """

    name: str
    description: str
    bases: Mapping[str, Base]
    bits: Mapping[str, tuple[int, ...]]
    points: Mapping[str, tuple[float, ...]]
    algorithms: Mapping[str, Settings] = field(default_factory=dict)
    foreign: str = "cifar100"
    attacks: Base | None = None


_TEN = {
    "config1": (4, 4, 6, 6, 6, 8, 8, 8, 12, 12),
    "config2": (6, 6, 6, 6, 6, 12, 12, 12, 12, 12),
    "low": (2, 2, 2, 3, 3, 3, 4, 4, 4, 4),
    "full": (32,) * 10,
}
_FOUR = {"config1": (4, 6, 8, 12), "config2": (6, 6, 12, 12), "low": (2, 3, 4, 4), "full": (32,) * 4}

_OWN = {"figure_server": (1, 2, 4), "figure_temperature": (0.01, 0.1, 1)}
"""De-quantized losses differ by hundredths, so a temperature of 0.01 makes them count."""

_SECONDS = {
    **{"images": 200, "model": "small_cnn", "width": 4, "beta": 0.1, "rounds": 1},
    **{"batch_size": 16, "workers": 1, "evaluation.probe_images": 100},
}
_TINY = Base("scenes", "smoke", _SECONDS)

_ATTACKS: Settings = {
    **{"images": 2000, "buffer_ratio": 0.04, "width": 8, "views.size": 16, "fraction": 1.0, "rounds": 6},
    **{"local_steps": 4, "batch_size": 32, "server.steps": 80, "workers": 1},
    **{"evaluation.controls": "none", "evaluation.knn_every": 0, "evaluation.holdout": 0.0},
}
"""Quickstart's clients, all in every round: operators that compare clients need more than two. The server takes so many steps on
its 80 images that accuracy is flat in the last rounds: half-trained models differ by more than attacks cost."""

_RESNET: Settings = {
    **{
        "algorithm": "fed_qssl",
        "model": "resnet18",
        "features": "pooled",
        "views.size": None,
        "rounds": 5,
        "local_epochs": 1,
    },
    **{"server.dequantize_epochs": 1, "server.requantize_epochs": 1, "buffer_ratio": 0.05, "lr": 0.8},
    **{"lowbit.scale": "round", "server.requantize_start": "codes", "server.threads": None},
}
"""The recipe of the cells of scale ``small``; the preset ``cifar10-small`` has found a better one since."""

_AS_A_USER: Settings = {"evaluation.classifier": "regression", "evaluation.probe": "cross_validated"}
"""Scale ``medium`` is about what a user gets, so its accuracies are those of a plain run, not of the paper's classifiers."""
_AT_ONCE: Settings = {"fraction": 1.0, "rounds": 25, "server.steps": 20, "server.requantize_epochs": 0}
"""All clients in every round: as many steps of each client, and of the server in all, as in the preset."""
_EQUAL_WORK: Mapping[str, Settings] = {
    **{name: _AT_ONCE for name in ALGORITHMS if name not in ("fed_qssl_plus", "fed_seq")},
    "fed_qssl": {**_AT_ONCE, "server.requantize_epochs": 1},  # the paper's fine-tuning, which no other row has
}

_SUPERVISED: Mapping[str, Settings] = {name: {"lr": 0.1} for name in ("fed_avg", "fed_prox", "fed_paq")}
"""Supervised rows train at a rate of their own."""

_ONCE: Mapping[str, Settings] = {"untrained": {"rounds": 1}}
"""Random weights do not change with rounds."""

SMOKE = Scale(
    "smoke",
    "seconds a run: 4 clients, 200 embedded images, 1 round; shows that everything runs, says nothing about accuracy",
    {"cifar10": _TINY, "cifar100": _TINY},
    _FOUR,
    {"figure3": (0.1, 0.5, 5), "figure4": (0.05, 0.1, 0.2), "figure5": (1, 2, 3), **_OWN},
    foreign="digits",
    attacks=Base("attacks", "smoke", {**_SECONDS, "evaluation.controls": "none", "evaluation.knn_every": 0}),
)
SMALL = Scale(
    "small",
    "minutes a run: 10 clients, the paper's bits and split, 10,000 images, ResNet-18 at width 16",
    {
        "cifar10": Base("cifar10", "cifar10-small", _RESNET),
        "cifar100": Base("cifar100", "cifar10-small", {"data": "cifar100", **_RESNET}),
    },
    _TEN,
    {"figure3": (0.1, 0.5, 5), "figure4": (0.02, 0.05, 0.1), "figure5": (1, 2, 3), **_OWN, "figure_server": (0, 1, 4)},
    {**_SUPERVISED, "fed_simsiam": {"lr": 0.4}, **_ONCE},
    attacks=Base("attacks", "quickstart", _ATTACKS),
)
MEDIUM = Scale(
    "medium",
    "up to 25 minutes a run: 10 clients, the paper's bits and split, all 50,000 images, 1,000 steps a client, resnet9",
    {
        "cifar10": Base("cifar10", "cifar10-medium", _AS_A_USER),
        "cifar100": Base("cifar100", "cifar10-medium", {"data": "cifar100", **_AS_A_USER}),
    },
    _TEN,
    {"figure3": (0.1, 0.5, 5), "figure4": (0.005, 0.01, 0.02), "figure5": (1, 2, 3), **_OWN},
    {**_EQUAL_WORK, **{name: {**_AT_ONCE, **settings} for name, settings in _SUPERVISED.items()}, **_ONCE},
)
PAPER = Scale(
    "paper",
    "the paper's own: 100 rounds, ResNet-18 at width 64, the presets cifar10-paper and cifar100-paper",
    {"cifar10": Base("cifar10", "cifar10-paper"), "cifar100": Base("cifar100", "cifar100-paper")},
    _TEN,
    {"figure3": (0.1, 0.5, 5), "figure4": (0.02, 0.05, 0.1), "figure5": (5, 10, 20), **_OWN},
    {**_SUPERVISED, **_ONCE},  # the rate of scale small: no rate was tried at this one
)

SCALES: dict[str, Scale] = {scale.name: scale for scale in (SMOKE, SMALL, MEDIUM, PAPER)}
