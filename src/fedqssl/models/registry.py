"""Backbones by name, and any ``nn.Module`` of the user's by import path."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedqssl.imported import imported, nearest, one_line
from fedqssl.models.resnet import resnet18, resnet34
from fedqssl.models.resnet9 import resnet9
from fedqssl.models.smallcnn import small_cnn

IMAGE_SIZE = 32
"""Side of the images unless something else is said."""


class ModelError(ValueError):
    """The model is unknown or not a feature extractor; the message says what to change."""


class ModelEntry(NamedTuple):
    """A backbone: its description, and how it is built from a width and a number of image channels."""

    description: str
    build: Callable[[int, int], nn.Module]


MODELS: dict[str, ModelEntry] = {
    "resnet18": ModelEntry(
        "CIFAR ResNet-18; 11.2 million weights at width 64, 0.7 million at 16",
        lambda width, in_channels: resnet18(width, in_channels=in_channels),
    ),
    "resnet34": ModelEntry(
        "CIFAR ResNet-34; 21.3 million weights at width 64",
        lambda width, in_channels: resnet34(width, in_channels=in_channels),
    ),
    "resnet9": ModelEntry(
        "9-layer ResNet, quick on a CPU; 0.41 million weights at width 16, 1.64 million at 32", resnet9
    ),
    "small_cnn": ModelEntry("four convolutions; 98 thousand weights at width 16", small_cnn),
}


def build_model(name: str, width: int = 16, in_channels: int = 3, size: int = IMAGE_SIZE) -> nn.Module:
    """A feature extractor with ``feature_dim``: images (N, C, H, W) to features (N, feature_dim).

    Args:
        name: one of ``MODELS``, or ``package.module:Class`` (or a function) of the user's; the working folder is searched too.
            It is called with ``width`` and ``in_channels`` if it takes arguments of these names.
        width: channels of the first stage.
        in_channels: 3 for colour images, 1 for grey ones.
        size: side of the images; a model of the user's is tried on one of them.

    Raises:
        ModelError: the message says what to change.
    """
    if ":" in name:
        return _with_feature_dim(_call(_imported(name), name, width, in_channels), name, in_channels, size)
    if name not in MODELS:
        known = f"models: {', '.join(MODELS)}; or an import path like package.module:Class"
        raise ModelError(f"unknown model {name!r}{nearest(name, MODELS)} ({known})")
    return MODELS[name].build(width, in_channels)


def _imported(name: str) -> Callable[..., object]:
    found = imported(name, "model", ModelError)
    if isinstance(found, nn.Module) or not callable(found):
        raise ModelError(f"model {name!r} must name a class or a function that builds the model, not an instance")
    return found


def _call(make: Callable[..., object], name: str, width: int, in_channels: int) -> nn.Module:
    parameters = inspect.signature(make).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    takes = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    offered = {"width": width, "in_channels": in_channels}
    given = {key: value for key, value in offered.items() if takes_all or key in takes}
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.name not in given and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if missing:
        raise ModelError(f"model {name!r} needs {', '.join(missing)}; give defaults to all but width and in_channels")
    try:
        model = make(**given)
    except Exception as error:  # whatever the user's code raises
        raise ModelError(f"model {name!r} cannot be built ({one_line(error)}); fix it") from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"model {name!r} made a {type(model).__name__}, not a module of torch")
    return model


def _with_feature_dim(model: nn.Module, name: str, in_channels: int, size: int) -> nn.Module:
    """Measure ``feature_dim`` with one grey image; it is an error if the model states another one."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            features = model(torch.full((1, in_channels, size, size), 0.5))
    except Exception as error:  # whatever the user's code raises
        raise ModelError(
            f"model {name!r} fails on one {in_channels}x{size}x{size} image ({one_line(error)}); fix it"
        ) from error
    model.train(training)
    if not isinstance(features, Tensor) or features.ndim != 2:
        shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise ModelError(f"model {name!r} must return features (N, d), pooled and flattened; it returned {shape}")
    told, found = getattr(model, "feature_dim", None), features.shape[1]
    if told not in (None, found):
        raise ModelError(
            f"model {name!r} states feature_dim = {told} but returns {found} features; remove the attribute"
        )
    model.feature_dim = found  # type: ignore[assignment]
    return model


__all__ = ["MODELS", "ModelEntry", "ModelError", "build_model"]
