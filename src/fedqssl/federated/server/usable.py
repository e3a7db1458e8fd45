"""Whether an aggregate can be trained further: finite, and not the same for all images."""

from __future__ import annotations

import torch
from torch import Tensor

from fedqssl.evaluation.features import extract_features
from fedqssl.federated.state import State, write_state
from fedqssl.federated.task import Task
from fedqssl.lowbit.policy import is_variance

IMAGES = 64
"""Of the buffer, at most: a model that sees no difference between these sees none at all."""
SAME = 1e-6
"""Relative to the largest feature: the spread of single precision."""


class UnusableAggregateError(ArithmeticError):
    """The aggregate is not finite, or has collapsed; the message says which."""


def check_usable(state: State, before: State, images: Tensor, task: Task) -> None:
    """Raise UnusableAggregateError for an aggregate that is not finite or has collapsed on the buffer's images.

    What had collapsed before the round is no fault of the round.
    """
    bad = sorted(name for name, x in state.items() if not bool(torch.isfinite(x).all()))
    if bad:
        raise UnusableAggregateError(f"'{bad[0]}' of the aggregate holds values that are not finite")
    negative = sorted(name for name, x in state.items() if is_variance(name) and bool((x < 0).any()))
    if negative:
        raise UnusableAggregateError(f"'{negative[0]}' of the aggregate holds negative variances")
    images = images[:IMAGES]
    outputs, features = _seen(state, images, task)
    if not bool(outputs.isfinite().all() and features.isfinite().all()):
        raise UnusableAggregateError("the aggregate's outputs for the buffer are not finite")
    if _all_the_same(features) and not _all_the_same(_seen(before, images, task)[1]):
        raise UnusableAggregateError("the aggregate sees no difference between the buffer's images")


def _seen(state: State, images: Tensor, task: Task) -> tuple[Tensor, Tensor]:
    """The model's outputs and its features for these images, without rounding."""
    model = task.converted(32)
    write_state(model, state)
    model.to(images.device)
    return extract_features(model, images), extract_features(task.extractor(model, images.shape[-1]), images)


def _all_the_same(features: Tensor) -> bool:
    if len(features) < 2:
        return False
    return bool((features - features[0]).abs().max() <= SAME * features.abs().max())


__all__ = ["UnusableAggregateError", "check_usable"]
