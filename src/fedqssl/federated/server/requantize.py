"""Re-quantization (Algorithm 1, line 14): low-bit fine-tuning on D_g, so that the model handed out has s bits."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, fx

from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.federated.state import State, read_state, write_state
from fedqssl.federated.task import Task, batches, train_epoch
from fedqssl.lowbit import LowBitSGD, to_bytes
from fedqssl.lowbit.layers import RangeCodes
from fedqssl.lowbit.optim import ScalePolicy

RequantizeStart = Literal["average", "codes"]


def requantize(
    state: State,
    bits: int,
    buffer: Tensor,
    task: Task,
    round_number: int,
    epochs: int,
    lr: float,
    start: RequantizeStart = "average",
    scale: ScalePolicy = "grow",
) -> bytes:
    """The s-bit model of an aggregated state; made once per bitwidth and shared by all clients of these bits.

    The server has full precision, so the fine-tuning keeps float copies of the weights (rule ``latent``), which start at the
    aggregate (``average``) or at what its codes stand for (``codes``); only codes are sent. At 32 bits it is the identity.
    """
    model = task.converted(bits)
    write_state(model, state)
    model.to(buffer.device)
    if bits != 32 and epochs:
        seed = derived_seed(task.seed, "re-quantization rounding", bits, round_number)
        opt = LowBitSGD(model, lr, rule="latent", scale=scale, seed=seed)
        if start == "average":
            opt.start_at(state)
        draws = generator(task.seed, "re-quantization", round_number)
        for _ in range(epochs):
            train_epoch(model, opt, buffer, task, draws)
    elif not read_state(model).keys() <= state.keys():
        _find_ranges(model, buffer, task, round_number)
    return to_bytes(model)


@torch.no_grad()
def _find_ranges(model: fx.GraphModule, buffer: Tensor, task: Task, round_number: int) -> None:
    """Activation ranges of the buffer's views, for a state without them: full-precision models have none.

    Nothing else changes; an empty range would hand out a model whose head sees zeros.
    """
    model.eval()
    for module in model.modules():
        if isinstance(module, RangeCodes):
            module.train()
    draws = generator(task.seed, "activation ranges", round_number)
    for index in batches(len(buffer), task.batch_size, draws, buffer.device):
        model(task.two_views(buffer[index], draws))
