"""A GPU that is not there: tensors that say ``cuda``, refuse to meet tensors of the CPU, and compute on the CPU.

torch's own ``FakeTensorMode`` holds tensors on a fake ``cuda`` device in a build without CUDA, but the autograd engine then
refuses to run ("Cannot access accelerator device when none is available"). So a tensor here wraps one of the CPU. Every operator
checks that all its tensors are on one device, as CUDA's do (single numbers may come from the CPU), and then really computes:
control flow is that of real data, and results can be compared with the CPU's.

What crosses is noted with the function of fedqssl that asked for it: ``up`` (CPU to GPU), ``down`` (GPU to CPU), and ``wait``: a
number that the host reads and has to wait for.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

from fedqssl import accelerators

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
_WAITS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default, torch.ops.aten.nonzero.default)
_SHAPED_BY_DATA = (
    torch.ops.aten._unique2.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.bincount.default,
)


class OnGpu(torch.Tensor):
    """A tensor that pretends."""

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnGpu:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=CPU,
            requires_grad=inner.requires_grad,
        )
        made.inner = inner.detach()
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return CUDA

    def __repr__(self, **_: Any) -> str:
        return f"OnGpu({self.inner!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if id(self) not in memo:
            made = OnGpu(self.inner.clone())
            made.requires_grad_(self.requires_grad)
            made.__class__ = type(self)
            if getattr(self, "_is_param", False):
                made._is_param = True
            memo[id(self)] = made
        return memo[id(self)]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found: list[Tensor] = []
        tree_map(lambda x: found.append(x) if isinstance(x, Tensor) else None, (args, kwargs))
        if func is torch.ops.aten.copy_.default:
            target, source = found[:2]
            if isinstance(target, OnGpu) != isinstance(source, OnGpu):
                _note("up" if isinstance(target, OnGpu) else "down")
        elif any(not isinstance(x, OnGpu) and x.dim() > 0 and not _made_by_autograd(func, x) for x in found):
            raise AssertionError(
                f"{func}: tensors of the CPU among those of the GPU, {[tuple(x.shape) for x in found]}"
            )
        if func in _WAITS or func in _SHAPED_BY_DATA:
            _note("wait")
        plain = tree_map(lambda x: x.inner if isinstance(x, OnGpu) else x, (args, kwargs))
        out = func(*plain[0], **plain[1])
        if func is torch.ops.aten.copy_.default and not isinstance(found[0], OnGpu):
            return found[0]
        wrapped = tree_map(lambda x: OnGpu(x) if isinstance(x, Tensor) else x, out)
        return return_and_correct_aliasing(func, args, kwargs, wrapped)


def _made_by_autograd(func: Any, x: Tensor) -> bool:
    """Zeros for a part of a tensor that got no gradient: autograd makes them where it believes the tensor to be."""
    return func is torch.ops.aten.cat.default and torch._C._current_graph_task_id() >= 0 and not bool(x.any())


NOTED: Counter[tuple[str, str]] = Counter()


def _note(what: str) -> None:
    """Count a crossing, by the innermost function of fedqssl."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("fedqssl.") and name != "fedqssl.accelerators":
            NOTED[what, f"{name.removeprefix('fedqssl.')}.{frame.f_code.co_name}"] += 1
            return
        frame = frame.f_back  # type: ignore[assignment]
    NOTED[what, "test"] += 1


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def _target(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The device that ``Tensor.to`` is asked for."""
    for value in (*args[1:], kwargs.get("device")):
        if isinstance(value, Tensor):
            return CUDA if isinstance(value, OnGpu) else CPU
        if isinstance(value, torch.device) or (isinstance(value, str) and value):
            return torch.device(value)
    return None


class PretendGpu(TorchFunctionMode):
    """Lets torch's functions make, move and describe tensors on the GPU that is not there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.pin_memory:
            return args[0]
        kwargs.pop("pin_memory", None)
        if func in (Tensor.to, Tensor.cpu):
            return self._to(CPU if func is Tensor.cpu else _target(args, kwargs), args, kwargs)
        if func is Tensor.tolist and isinstance(args[0], OnGpu):
            _note("wait")
            return args[0].inner.tolist()
        if func is Tensor.numpy and isinstance(args[0], OnGpu):
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if _is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
            if func is torch.tensor:
                _note("up")
            out = func(*args, **kwargs)
            return OnGpu(out) if not isinstance(out, OnGpu) else out
        return func(*args, **kwargs)

    def _to(self, device: torch.device | None, args: Any, kwargs: dict[str, Any]) -> Any:
        x = args[0]
        rest = [a for a in args[1:] if not isinstance(a, (torch.device, str)) or a == ""]
        others = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
        rest = [a.dtype if isinstance(a, Tensor) else a for a in rest]
        rest = [a for a in rest if not isinstance(a, bool) and a is not None]
        here = isinstance(x, OnGpu)
        if device is None or (device.type == "cuda") == here:
            return Tensor.to(x, *rest, **others) if rest or others else x
        _note("up" if device.type == "cuda" else "down")
        if device.type == "cuda":
            moved = _Up.apply(x)
        else:
            moved = _Down.apply(x)
        others.pop("copy", None)
        return Tensor.to(moved, *rest, **others) if rest or others else moved


class _Up(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return OnGpu(x.detach().clone())

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g.inner if isinstance(g, OnGpu) else g


class _Down(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        assert isinstance(x, OnGpu)
        return x.inner.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return OnGpu(g)


@contextmanager
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[tuple[str, str]]]:
    """Inside, ``device=cuda`` works; yields what crosses, by kind and function."""
    monkeypatch.setattr(accelerators, "gpus", lambda: 1)
    monkeypatch.setattr(accelerators, "_prepare", lambda index: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU that is not there")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: torch.empty(0))
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: None)
    NOTED.clear()
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)  # a parameter's data cannot become another class's
    mode, engine = PretendGpu(), torch.autograd._engine_run_backward  # type: ignore[attr-defined]

    def backward(*args: Any, **kwargs: Any) -> Any:
        with mode:  # which torch leaves while it runs a function that the mode has seen
            return engine(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "_engine_run_backward", backward)
    try:
        with mode:
            yield NOTED
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
