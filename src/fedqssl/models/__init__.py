"""Backbones and heads, as plain torch modules; ``fedqssl.lowbit.to_lowbit`` makes them low-bit."""

from fedqssl.models.resnet import ResNet, projector, resnet18, resnet34

__all__ = ["ResNet", "projector", "resnet18", "resnet34"]
