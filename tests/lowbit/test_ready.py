"""A model that keeps what its kernels take gives the same results, and notices that its weights changed."""

import pytest
import torch
from torch import nn

from fedqssl.lowbit import LowBitSGD, Precision, keep_ready, to_bytes, to_lowbit
from fedqssl.lowbit.ready import Keeping, Ready
from fedqssl.models.registry import build_model


def _pair(bits: int) -> tuple[nn.Module, nn.Module]:
    """The same low-bit model twice, the second one keeping; in evaluation mode."""
    both = []
    for _ in range(2):
        torch.manual_seed(0)
        both.append(to_lowbit(build_model("resnet9", 8, 3), Precision.for_bits(bits)).eval())
    keep_ready(both[1])
    return both[0], both[1]


def _images(n: int, size: int = 16, seed: int = 0) -> torch.Tensor:
    return torch.rand(n, 3, size, size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("bits", [1, 4, 8, 12, 32])
def test_same_outputs_for_batches_of_several_shapes_in_any_order(bits):
    plain, keeping = _pair(bits)
    with torch.no_grad():
        for n, size in ((1, 16), (5, 16), (1, 16), (2, 24), (5, 16)):
            x = _images(n, size, n)
            assert torch.equal(plain(x), keeping(x)), (n, size)


@pytest.mark.parametrize("bits", [4, 8])
def test_training_is_the_same_and_predictions_follow_the_new_weights(bits):
    plain, keeping = _pair(bits)
    before = []
    for model in (plain, keeping):
        with torch.no_grad():
            before.append(model(_images(3)))
        model.train()
        opt = LowBitSGD(model, lr=0.5)
        for step in range(3):
            model(_images(8, seed=step)).square().mean().backward()
            opt.step()
        model.eval()
    assert to_bytes(plain) == to_bytes(keeping)
    with torch.no_grad():
        after = [model(_images(3)) for model in (plain, keeping)]
    assert torch.equal(*before) and torch.equal(*after)
    assert not torch.equal(before[0], after[0])


def test_nothing_is_made_twice():
    _, keeping = _pair(4)
    with torch.no_grad():
        keeping(_images(2))
        made = {name: m.ready._made.copy() for name, m in keeping.named_modules() if isinstance(m, Keeping)}
        keeping(_images(2, seed=1))
    assert made and all(made.values())
    for name, m in keeping.named_modules():
        if isinstance(m, Keeping):
            assert all(m.ready._made[key] is value for key, value in made[name].items())
            assert len(m.ready._made) == len(made[name])


def test_made_again_when_a_tensor_is_replaced_or_written_to():
    ready, x = Ready(), torch.zeros(2)
    assert ready.get((x, None), "sum", lambda: float(x.sum())) == 0
    x += 1
    assert ready.get((x, None), "sum", lambda: float(x.sum())) == 2
    assert ready.get((x, None), "sum", lambda: 7.0) == 2
    assert ready.get((x.clone(), None), "sum", lambda: 7.0) == 7


def test_layers_keep_nothing_by_default():
    plain, _ = _pair(4)
    with torch.no_grad():
        plain(_images(2))
    assert all(m.ready is None for m in plain.modules() if isinstance(m, Keeping))
