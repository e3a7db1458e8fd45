"""A model's float state: what the server averages, read from and written to models of any bits."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from fedqssl.federated.task import Task
from fedqssl.lowbit.policy import Entry, state_of

State = dict[str, Tensor]


def read_state(model: nn.Module) -> State:
    """Everything that travels, as floats on the CPU: parameters x of codes, batch norm, biases, ranges."""
    return _floats(entry for entry in state_of(model).values() if entry.role in ("quantized", "averaged"))


def _floats(travelling: Iterable[Entry]) -> State:
    return {entry.name: entry.parameters_x().to("cpu", copy=True) for entry in travelling}


def weight_names(model: nn.Module) -> frozenset[str]:
    """The names in :func:`read_state` that are held in the model's bits; none at full precision."""
    return frozenset(n for n, e in state_of(model).items() if e.weight is not None)


def write_state(model: nn.Module, state: State) -> None:
    """Fill a model of any bits from floats; codes are rounded to nearest. Names that the model lacks are ignored."""
    for name, entry in state_of(model).items():
        if entry.role in ("quantized", "averaged") and name in state:
            entry.assign(state[name].reshape(entry.shape))


def read_payload(payload: bytes, bits: int, task: Task) -> State:
    """The state of a model whose checksum was verified on arrival, or which was made here."""
    reader = task.reader(bits)
    reader.load(payload, checked=True)
    return _floats(reader.travelling)
