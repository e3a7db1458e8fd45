"""What the container's tests share."""

import pytest
import torch
from torch import nn

from fedqssl.lowbit import to_bytes
from forging import small_model, small_net


@pytest.fixture(scope="module")
def data() -> bytes:
    return to_bytes(small_model())


@pytest.fixture
def model() -> nn.Module:
    """A target with other weights than the sender's."""
    torch.manual_seed(9)
    net = small_net()
    nn.init.normal_(net[0].weight)
    return small_model(net=net)
