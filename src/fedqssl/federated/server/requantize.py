"""Re-quantization (Algorithm 1, line 14): low-bit fine-tuning on D_g, so that what is handed out is an s-bit model."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.federated.state import State, read_state, write_state
from fedqssl.federated.task import Task, batches, train_epoch
from fedqssl.lowbit import LowBitSGD, to_bytes
from fedqssl.lowbit.layers import RangeCodes


def requantize(state: State, bits: int, buffer: Tensor, task: Task, round_number: int, epochs: int, lr: float) -> bytes:
    """The s-bit model of an aggregated state: the same for every client of these bits, so made once per bitwidth.

    The server has full precision, so the fine-tuning keeps float shadow weights (rule ``latent``); only codes are sent.
    At 32 bits it is the identity.
    """
    model = task.converted(bits)
    write_state(model, state)
    if bits != 32 and epochs:
        seed = derived_seed(task.seed, "re-quantization rounding", bits, round_number)
        opt = LowBitSGD(model, lr, rule="latent", seed=seed)
        draws = generator(task.seed, "re-quantization", round_number)
        for _ in range(epochs):
            train_epoch(model, opt, buffer, task, draws)
    elif not read_state(model).keys() <= state.keys():
        _find_ranges(model, buffer, task, round_number)
    return to_bytes(model)


@torch.no_grad()
def _find_ranges(model: fx.GraphModule, buffer: Tensor, task: Task, round_number: int) -> None:
    """Activation ranges of the buffer's views, for a state that comes without: full-precision models have none.

    Nothing else changes; an empty range would hand out a model whose head sees zeros.
    """
    model.eval()
    for module in model.modules():
        if isinstance(module, RangeCodes):
            module.train()
    draws = generator(task.seed, "activation ranges", round_number)
    for index in batches(len(buffer), task.batch_size, draws):
        model(task.two_views(buffer[index], draws))
