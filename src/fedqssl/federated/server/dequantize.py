"""De-quantization (Algorithm 1, line 12): full-precision fine-tuning of a received model on the unlabeled buffer D_g."""

from __future__ import annotations

from torch import Tensor, nn

from fedqssl.federated.randomness import generator
from fedqssl.federated.server.aggregate import State
from fedqssl.federated.task import Task, train_epoch
from fedqssl.lowbit import LowBitSGD, load_bytes
from fedqssl.lowbit.policy import state_of


def read_state(model: nn.Module) -> State:
    """Everything that travels, as floats: parameters x of codes, batch norm, biases, ranges."""
    return {n: e.parameters_x().clone() for n, e in state_of(model).items() if e.role in ("quantized", "averaged")}


def dequantize(
    payload: bytes, bits: int, buffer: Tensor, task: Task, round_number: int, epochs: int, lr: float
) -> tuple[State, float]:
    """``w'_k`` and ``L_DQ_k``, the mean loss of the last epoch (with no epochs: of one pass without updates).

    All clients of a round see the same batches and views (common random numbers), so that losses can be compared.
    """
    from fedqssl.federated.server.requantize import write_state

    received = task.converted(bits)
    load_bytes(received, payload)
    state = read_state(received)
    full = task.converted(32)
    write_state(full, state)
    draws = generator(task.seed, "de-quantization", round_number)
    opt = LowBitSGD(full, lr)
    losses = [train_epoch(full, opt, buffer, task, draws) for _ in range(epochs)]
    loss = losses[-1] if losses else train_epoch(full, None, buffer, task, draws)
    return {**state, **read_state(full)}, loss
