"""A small model, and containers that only a hostile or broken sender could make."""

import hashlib
import json
import struct

import pytest
import safetensors.torch
import torch
from torch import nn

from fedqssl.lowbit import ContainerError, LowBitOptions, Precision, load_bytes, to_lowbit
from fedqssl.lowbit.container import MAGIC, VERSION

HEAD = 48  # mark 6, version 2, length 8, SHA-256 32


def small_net(channels: int = 5) -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.Conv2d(channels, 7, 3, stride=2),
        nn.BatchNorm2d(7),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(7, 3),
    )
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias, std=1e-3)
            module.running_mean.normal_()
            module.running_var.uniform_(1e-9, 1e6)  # beyond float16
    return net


def small_model(bits: int = 4, net: nn.Module | None = None, **options) -> nn.Module:
    return to_lowbit(net or small_net(), Precision.for_bits(bits), LowBitOptions(**options))


def digest(model: nn.Module) -> str:
    """Everything the model holds, bit by bit."""
    h = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        h.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        h.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return h.hexdigest()


def seal(blob: bytes, version: int = VERSION) -> bytes:
    """A container with a right length and checksum around any blob: what a hostile sender can make."""
    return struct.pack("<6sHQ32s", MAGIC, version, len(blob), hashlib.sha256(blob).digest()) + blob


def parts(data: bytes) -> tuple[dict, bytes]:
    """The safetensors header and payload of a container."""
    size = struct.unpack_from("<Q", data, HEAD)[0]
    return json.loads(data[HEAD + 8 : HEAD + 8 + size]), data[HEAD + 8 + size :]


def forge(header: object, payload: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return seal(struct.pack("<Q", len(raw)) + raw + payload)


def with_tensors(data: bytes, change) -> bytes:
    """The container with its tensors changed by ``change(dict)``, sealed again."""
    tensors = safetensors.torch.load(data[HEAD:])
    change(tensors)
    return seal(safetensors.torch.save(tensors, metadata=parts(data)[0]["__metadata__"]))


def refuses(model: nn.Module, data: bytes, match: str | None = None, **kw) -> None:
    before = digest(model)
    with pytest.raises(ContainerError, match=match):
        load_bytes(model, data, **kw)
    assert digest(model) == before
