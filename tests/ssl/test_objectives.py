"""Every objective's heads are converted with the encoder and trained in low bits."""

import pytest
import torch
from torch import nn

from fedqssl.config.schema import RunConfig
from fedqssl.lowbit import LowBitSGD, Precision, from_bytes, to_bytes, to_lowbit
from fedqssl.models.smallcnn import small_cnn
from fedqssl.ssl.dcl import dcl
from fedqssl.ssl.objectives import OBJECTIVES, get_objective
from fedqssl.ssl.simclr import nt_xent
from fedqssl.ssl.simsiam import simsiam_loss
from fedqssl.ssl.vicreg import vicreg


def model_for(name: str, bits: int) -> nn.Module:
    torch.manual_seed(0)
    encoder = small_cnn(4)
    return to_lowbit(nn.Sequential(encoder, get_objective(name).heads(encoder.feature_dim)), Precision.for_bits(bits))


@pytest.mark.parametrize("bits", [4, 32])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_lowers_the_loss(name, bits):
    model = model_for(name, bits)
    assert isinstance(model, nn.Module)
    opt = LowBitSGD(model, lr=0.1)
    x = torch.rand(16, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    losses = []
    for _ in range(12):
        opt.zero_grad()
        loss = OBJECTIVES[name].loss(model(x), 0.5)
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    assert opt.steps == 12 and opt.skipped == 0
    assert sum(losses[-3:]) < sum(losses[:3])


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_layer_learns_and_travels(name):
    model = model_for(name, 4)
    opt = LowBitSGD(model, lr=0.3)
    assert len(opt.weights) == {"simclr": 6, "simsiam": 8, "dcl": 6, "vicreg": 7, "byol": 8}[name]
    OBJECTIVES[name].loss(model(torch.rand(16, 3, 16, 16)), 0.5).backward()
    assert all(weight.gradient is not None for weight in opt.weights.values())
    opt.step()
    payload = to_bytes(model)
    encoder = small_cnn(4)
    copy = from_bytes(payload, nn.Sequential(encoder, OBJECTIVES[name].heads(encoder.feature_dim)))
    assert to_bytes(copy) == payload


def test_losses_are_those_of_the_paper():
    outputs = torch.randn(8, 6)
    assert OBJECTIVES["simclr"].loss(outputs, 0.2) == nt_xent(outputs, 0.2)
    assert OBJECTIVES["simsiam"].loss(outputs, 0.2) == simsiam_loss(outputs[:, 3:], outputs[:, :3])
    assert OBJECTIVES["dcl"].loss(outputs, 0.2) == dcl(outputs, 0.2)
    assert OBJECTIVES["vicreg"].loss(outputs, 0.2) == vicreg(outputs)


def test_names():
    assert set(RunConfig.model_fields["objective"].annotation.__args__) == set(OBJECTIVES)
    assert all(name == entry.name and entry.description for name, entry in OBJECTIVES.items())
    with pytest.raises(ValueError, match="did you mean 'simsiam'"):
        get_objective("simsam")
