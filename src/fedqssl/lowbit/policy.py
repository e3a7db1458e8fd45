"""The one place that decides what happens to each tensor of a model: quantized, averaged, local or dropped.

==================  =======================================  ==========  ========  ==========
role                tensors                                  on the wire  averaged  at a client
==================  =======================================  ==========  ========  ==========
``quantized``       weights of Conv2d and Linear             s-bit codes  as x      codes
``averaged``        batch-norm affine and statistics,        16/32-bit    yes       floats
                    biases, activation ranges, skipped       floats
                    layers
``dropped``         counters, autograd anchors               no           no        rebuilt
``local``           named in the call of :func:`state_of`    no           no        stays
==================  =======================================  ==========  ========  ==========
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from fedqssl.lowbit.fp32_layers import FullConv2d, FullLinear
from fedqssl.lowbit.weight import LowBitWeight

Role = Literal["quantized", "averaged", "local", "dropped"]


@dataclass(frozen=True, eq=False)
class Entry:
    """One tensor of a model: its name at every precision, its role, and the object that holds it."""

    name: str
    role: Role
    shape: torch.Size
    weight: LowBitWeight | None = None
    tensor: Tensor | None = None

    def parameters_x(self) -> Tensor:
        """Its float parameters x: what codes stand for, or the tensor itself."""
        if self.weight is not None:
            return self.weight.parameters_of_codes().float()
        assert self.tensor is not None
        return self.tensor.detach()

    def assign(self, x: Tensor) -> None:
        """Set it from floats; codes are rounded to nearest."""
        if self.weight is not None:
            self.weight.assign(x.to(self.weight.codes.device))
            return
        assert self.tensor is not None
        with torch.no_grad():
            self.tensor.copy_(x)


def _dropped(name: str) -> bool:
    return name.rsplit(".", 1)[-1] == "num_batches_tracked"


def state_of(model: nn.Module, local: Callable[[str], bool] | Iterable[str] = ()) -> dict[str, Entry]:
    """Every tensor of a model by name, with its role; names are the same at every precision.

    Args:
        model: a model that ``to_lowbit`` returned.
        local: names of tensors that never leave a client, or a function that decides by name.
    """
    is_local = local if callable(local) else set(local).__contains__
    entries: dict[str, Entry] = {}
    inside: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, LowBitWeight):
            inside |= {f"{name}.{k}" for k in ("anchor", "codes", "scale")}
            entries[name] = Entry(name, "quantized", module.shape, weight=module)
        elif isinstance(module, (FullConv2d, FullLinear)):
            inside.add(f"{name}.weight")
            full = f"{name}.weight"
            entries[full] = Entry(full, "quantized", module.weight.shape, tensor=module.weight)
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in inside:
            role: Role = "dropped" if _dropped(name) else "averaged"
            entries[name] = Entry(name, role, tensor.shape, tensor=tensor)
    for name, entry in entries.items():
        if is_local(name):
            entries[name] = Entry(name, "local", entry.shape, entry.weight, entry.tensor)
    return dict(sorted(entries.items()))


_RANGES = (".low", ".high")
_MEASURED = (".running_mean", ".running_var", *_RANGES)


def is_statistic(name: str) -> bool:
    """Whether a tensor is measured rather than optimised: batch-norm statistics and activation ranges."""
    return name.endswith(_MEASURED)


def is_variance(name: str) -> bool:
    """Whether a tensor holds the variances of a batch norm."""
    return name.endswith(".running_var")


def is_weight(x: Tensor) -> bool:
    """Whether a float tensor is the weight of a layer, which clients hold in their bits; batch norm and biases are vectors."""
    return x.dim() > 1


def all_finite(tensors: Sequence[Tensor]) -> list[bool]:
    """Of each tensor, whether all its values are finite. A finite sum says so faster; another one may have overflowed."""
    if not tensors:
        return []
    sums = torch.stack([x.sum().float() for x in tensors]).tolist()
    return [math.isfinite(s) or bool(torch.isfinite(x).all()) for s, x in zip(sums, tensors, strict=True)]


def fingerprint(model: nn.Module) -> str:
    """Hash of the architecture: names, roles and shapes of all that travels; equal at every low bitwidth."""
    lines = [
        f"{e.name} {e.role} {tuple(e.shape)}"
        for e in state_of(model).values()
        if e.role in ("quantized", "averaged") and not e.name.endswith(_RANGES)
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
