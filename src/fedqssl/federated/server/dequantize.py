"""De-quantization (Algorithm 1, line 12): full-precision fine-tuning of a received model on the unlabeled buffer D_g."""

from __future__ import annotations

from torch import Tensor

from fedqssl.federated.server.fine_tune import fine_tune
from fedqssl.federated.state import State, read_payload
from fedqssl.federated.task import Task


def dequantize(
    payload: bytes, bits: int, buffer: Tensor, task: Task, round_number: int, steps: int, lr: float
) -> tuple[State, float]:
    """``w'_k`` and ``L_DQ_k``, the mean loss of the last epoch (without steps: of one pass without updates).

    All clients of a round see the same batches and views (common random numbers), so that losses can be compared.
    """
    state = read_payload(payload, bits, task)
    return fine_tune(state, buffer, task, ("de-quantization", round_number), steps, lr)


def steps_each(steps: int, models: int) -> int:
    """An equal part of the server's steps for each of the received models, at least 1 if there are any."""
    return max(steps // max(models, 1), min(steps, 1))
