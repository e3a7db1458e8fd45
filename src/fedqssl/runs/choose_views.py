"""Which views suit the images (``views.preset = "auto"``): a short training with each candidate, judged by the clients' labels.

Views decide what pre-training learns, and no default suits all images: changes of colour improve the features of traffic signs
and spoil those of flowers (docs/how-to/own-photos.md). Labels are looked at in one place, so this is for simulations; test
images and held-out images play no part.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from fedqssl.accelerators import put
from fedqssl.config import RunConfig
from fedqssl.evaluation.classifier import held_out_loss
from fedqssl.evaluation.features import extract_features
from fedqssl.federated.context import Simulation
from fedqssl.federated.randomness import generator
from fedqssl.federated.server.fine_tune import fine_tune
from fedqssl.federated.state import read_state, write_state
from fedqssl.federated.task import Task
from fedqssl.runs.equipment import pool_of
from fedqssl.runs.progress import Progress
from fedqssl.ssl.presets import CANDIDATES, view_config

STEPS = 300
"""Steps of each training."""
IMAGES = 1500
"""Images of the clients that each training and its judgement see at most."""
LEAST_LABELS = 50
"""With fewer labels than this, differences are chance."""
LOOKS = 8
"""What two images look like is compared on this many pixels a side."""


def with_chosen_views(context: Simulation, progress: Progress) -> tuple[Simulation, str | None]:
    """The context with its views decided, and a line about it; unchanged where ``views.preset`` is not ``auto``."""
    if context.config.views.preset != "auto":
        return context, None
    if context.task.supervised or not _labels_enough(context):
        return _decided(context, CANDIDATES[0]), (
            f"views.preset=auto needs at least {LEAST_LABELS} labeled images of two classes to choose by: "
            f"views of {CANDIDATES[0]} are used"
        )
    with pool_of(context, progress, len(CANDIDATES)) as pool:
        losses = pool.run("choice of views", trial, {name: (name,) for name in CANDIDATES})
    best = min(losses, key=lambda name: losses[name])
    others = ", ".join(f"{name} {loss:.2f}" for name, loss in losses.items() if name != best)
    return _decided(context, best), (
        f"views of {best} suit these images by their labels: held-out loss {losses[best]:.2f} ({others}) "
        f"after {STEPS} steps each"
    )


def trial(context: Simulation, preset: str) -> float:
    """A job of the pool: held-out loss of the clients' labels on features that were trained with these views."""
    config, index = context.config, _some(context)
    task = _task(context, preset)
    images, labels = put(context.train.images[index], context.device), context.train.labels
    assert labels is not None
    state, _ = fine_tune(read_state(task.converted(32)), images, task, ("choice of views",), STEPS, config.lr)
    model = task.converted(32)
    write_state(model, state)
    extractor = task.extractor(model.to(images.device), images.shape[-1])
    features = extract_features(extractor, images)
    looks = F.adaptive_avg_pool2d(images.float(), LOOKS).flatten(1)
    return held_out_loss(features, put(labels[index], features.device), looks, config.seed, task.levels())


def _some(context: Simulation) -> torch.Tensor:
    """Positions of the clients' training images, or a random part of them."""
    everyone = torch.cat([split.train for split in context.partition.clients.values()])
    order = torch.randperm(len(everyone), generator=generator(context.config.seed, "images for the choice of views"))
    return everyone[order[:IMAGES]]


def _labels_enough(context: Simulation) -> bool:
    labels = context.train.labels
    if labels is None:
        return False
    found = labels[_some(context)]
    return len(found) >= LEAST_LABELS and bool((found != found[0]).any())


def _with_preset(config: RunConfig, preset: str) -> RunConfig:
    return config.model_copy(update={"views": config.views.model_copy(update={"preset": preset})})


def _task(context: Simulation, preset: str) -> Task:
    return replace(context.task, views=view_config(_with_preset(context.config, preset).views))


def _decided(context: Simulation, preset: str) -> Simulation:
    return replace(context, config=_with_preset(context.config, preset), task=_task(context, preset))


__all__ = ["IMAGES", "LEAST_LABELS", "LOOKS", "STEPS", "trial", "with_chosen_views"]
