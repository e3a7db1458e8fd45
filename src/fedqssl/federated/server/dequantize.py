"""De-quantization (Algorithm 1, line 12): full-precision fine-tuning of a received model on the unlabeled buffer D_g."""

from __future__ import annotations

from torch import Tensor

from fedqssl.federated.randomness import generator
from fedqssl.federated.state import State, read_state, write_state
from fedqssl.federated.task import Task, train_epoch
from fedqssl.lowbit import LowBitSGD, load_bytes


def dequantize(
    payload: bytes, bits: int, buffer: Tensor, task: Task, round_number: int, epochs: int, lr: float
) -> tuple[State, float]:
    """``w'_k`` and ``L_DQ_k``, the mean loss of the last epoch (with no epochs: of one pass without updates).

    All clients of a round see the same batches and views (common random numbers), so that losses can be compared.
    """
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
