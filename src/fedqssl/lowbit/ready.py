"""What a kernel takes, made once from codes and kept: for a model that predicts again and again, and never trains.

A layer keeps nothing but codes by default, and unpacks them in every pass. A service would rather spend the memory
(about one byte for each weight where layers compute in integers, four elsewhere) than the time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from torch import Tensor, nn

T = TypeVar("T")


class Ready:
    """What was made of some tensors, by what it is for; made again when one of them was replaced or written to."""

    def __init__(self) -> None:
        self._of: tuple[Any, ...] = ()
        self._versions: tuple[int, ...] = ()
        self._made: dict[Hashable, Any] = {}

    def _same(self, tensors: tuple[Tensor | None, ...]) -> bool:
        """Whether these are the tensors of before, unchanged; asked a dozen times for every picture, so it is a plain loop."""
        if len(tensors) != len(self._of):
            return False
        for a, b, version in zip(tensors, self._of, self._versions, strict=True):
            if a is not b or (a is not None and a._version != version):
                return False
        return True

    def get(self, tensors: tuple[Tensor | None, ...], key: Hashable, make: Callable[[], T]) -> T:
        """What ``make`` returned for these tensors and this key."""
        if not self._same(tensors):
            self._of, self._made = tensors, {}
            self._versions = tuple(0 if t is None else t._version for t in tensors)
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found


class Keeping(nn.Module):
    """A layer that can be told to keep what it makes for its kernels."""

    ready: Ready | None = None


def keep_ready(model: nn.Module) -> None:
    """Let every low-bit layer of a model keep what its kernels take, so that later passes are faster. Results are the same."""
    for module in model.modules():
        if isinstance(module, Keeping):
            module.ready = Ready()
