"""What consumers leave in a sink is added up, strided gradients included, in whatever order they come."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from fedqssl.lowbit import activation
from fedqssl.lowbit.activation import Sink

SHAPE = torch.Size((2, 3, 5, 4))


def whole(seed: int) -> Tensor:
    made = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))
    return made.contiguous(memory_format=torch.channels_last)


def deposits() -> dict[str, tuple[Tensor, tuple[int, int] | None]]:
    return {
        "whole": (whole(0), None),
        "another": (whole(1), None),
        "strided": (whole(2)[:, :, ::2, ::2].clone(), (2, 2)),
        "strided alike": (whole(3)[:, :, ::2, ::2].clone(), (2, 2)),
        "strided otherwise": (whole(4)[:, :, :, ::3].clone(), (1, 3)),
    }


ORDERS = [order for n in range(1, 5) for order in itertools.permutations(deposits(), n)]


@pytest.mark.parametrize("order", ORDERS, ids=", ".join)
def test_the_sum_of_all_deposits(order: tuple[str, ...]) -> None:
    sink, want = Sink(), torch.zeros(SHAPE, dtype=torch.float64)
    for name in order:
        g, stride = deposits()[name]
        if stride is None:
            want += g
            sink.add(g)
        else:
            want[:, :, :: stride[0], :: stride[1]] += g
            sink.add_strided(g, stride, SHAPE)
    got = sink.take()
    assert got is not None and got.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(got.double(), want, rtol=0, atol=1e-6)
    assert sink.take() is None


def test_what_another_pass_left_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("whole", "strided"):
        sink = Sink()
        (left, _), (g, stride) = deposits()["another"], deposits()[name]
        monkeypatch.setattr(activation, "_backward_pass", lambda: 1)
        sink.add_strided(left[:, :, ::2, ::2].clone(), (2, 2), SHAPE)
        monkeypatch.setattr(activation, "_backward_pass", lambda: 2)
        if stride is None:
            sink.add(g.clone())
        else:
            sink.add_strided(g.clone(), stride, SHAPE)
        got = sink.take()
        assert got is not None and torch.equal(got[:, :, ::2, ::2], g if stride else g[:, :, ::2, ::2])
        sink.add(g.clone() if stride is None else left.clone())
        monkeypatch.setattr(activation, "_backward_pass", lambda: 3)
        assert sink.take() is None
