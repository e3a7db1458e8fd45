"""The networks that a training step is measured on: fp32, ours, Brevitas and torch.ao QAT.

All are made from one fp32 network by replacing modules, so architecture and initial weights are the same.
Peers get what is cheapest for them: per-tensor scales, no quantizer on the images, no gradient quantization
(none of them has it), batch norm fused where the peer can, and plain SGD in channels_last.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedqssl.studies.bench.records import import_peer


@dataclass(frozen=True)
class Variant:
    """One candidate: a family of ``FAMILIES`` and its bits (32 for fp32)."""

    family: str
    bits: int

    @property
    def name(self) -> str:
        """``fp32``, ``fedqssl-4``, ``brevitas-8``, ..."""
        return self.family if self.family.startswith("fp32") else f"{self.family}-{self.bits}"


MIN_WIDTH = 8
Trainer = tuple[nn.Module, torch.optim.Optimizer]


def backbone(width: int, model: str = "resnet18", seed: int = 0) -> nn.Sequential:
    """A backbone (ResNet-18) and SimCLR's projector in fp32; the same weights for the same seed."""
    from fedqssl.models import projector
    from fedqssl.models.registry import MODELS

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        encoder = MODELS[model].build(width, 3)
        return nn.Sequential(encoder, projector(int(encoder.feature_dim)))  # type: ignore[arg-type]


def build(
    variant: Variant, width: int, lr: float = 0.3, device: torch.device | None = None, model: str = "resnet18"
) -> Trainer:
    """The variant's network in training mode on a device (the CPU by default), with its optimiser.

    Raises:
        ValueError: an unknown family or backbone, or a width below 8: there torch 2.13's channels_last backward of a
            strided 1x1 convolution (2 to 7 input channels) writes out of bounds and kills the process.
        PeerUnavailableError: the peer's library is missing or lacks what is needed.
    """
    from fedqssl.models.registry import MODELS

    if variant.family not in FAMILIES:
        raise ValueError(f"unknown variant {variant.family!r}; choose from {', '.join(FAMILIES)}")
    if model not in MODELS:
        raise ValueError(f"unknown model {model!r}; choose from {', '.join(MODELS)}")
    if width < MIN_WIDTH:
        raise ValueError(f"width must be at least {MIN_WIDTH} for a benchmark, not {width}")
    return FAMILIES[variant.family](backbone(width, model).to(device).train(), variant.bits, lr)


def _fp32(model: nn.Module, bits: int, lr: float) -> Trainer:
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model, torch.optim.SGD(model.parameters(), lr=lr)


class _Autocast(nn.Module):
    """A network whose products are bfloat16 (torch's AMP); weights and outputs stay float32."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            out: Tensor = self.inner(x)
        return out.float()


def _fp32_amp(model: nn.Module, bits: int, lr: float) -> Trainer:
    model, optimizer = _fp32(model, bits, lr)
    return _Autocast(model), optimizer


def _fedqssl(model: nn.Module, bits: int, lr: float) -> Trainer:
    from fedqssl.lowbit import LowBitSGD, Precision, to_lowbit

    model = to_lowbit(model, Precision.for_bits(bits))
    return model, LowBitSGD(model, lr=lr)


def _swap(model: nn.Module, replace: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Replace every submodule for which ``replace`` returns a module."""
    for name, child in model.named_children():
        new = replace(child)
        setattr(model, name, _swap(child, replace) if new is None else new)
    return model


_STEADY = 1  # steps of statistics, over before the first timed step
_DEFAULT = 300  # Brevitas' own default


def _brevitas(model: nn.Module, bits: int, lr: float, statistics_steps: int = _STEADY) -> Trainer:
    """Brevitas' layers; the first ``statistics_steps`` steps also take percentiles, which costs far more."""
    qnn = import_peer("brevitas.nn", "pip install 'fedqssl[bench]'")

    def replace(module: nn.Module) -> nn.Module | None:
        new: nn.Module
        if isinstance(module, nn.Conv2d):
            how = {"stride": module.stride, "padding": module.padding, "bias": module.bias is not None}
            new = qnn.QuantConv2d(
                module.in_channels, module.out_channels, module.kernel_size, **how, weight_bit_width=bits
            )
        elif isinstance(module, nn.Linear):
            bias = module.bias is not None
            new = qnn.QuantLinear(module.in_features, module.out_features, bias=bias, weight_bit_width=bits)
        elif isinstance(module, nn.ReLU):
            return qnn.QuantReLU(bit_width=bits, collect_stats_steps=statistics_steps)  # type: ignore[no-any-return]
        else:
            return None
        new.load_state_dict(module.state_dict(), strict=False)
        return new

    return _fp32(_swap(model, replace), bits, lr)


def _torchao_qat(model: nn.Module, bits: int, lr: float) -> Trainer:
    ao = import_peer("torch.ao.quantization", "torch 2.13 still has it")
    fake_quantize: Any = partial(ao.FusedMovingAvgObsFakeQuantize.with_args, observer=ao.MovingAverageMinMaxObserver)
    half = 2 ** (bits - 1)
    activation = fake_quantize(quant_min=0, quant_max=2 * half - 1, dtype=torch.quint8, qscheme=torch.per_tensor_affine)
    weight = fake_quantize(quant_min=-half, quant_max=half - 1, dtype=torch.qint8, qscheme=torch.per_tensor_symmetric)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao.quantization announces its move to torchao
        model = ao.fuse_modules_qat(model, _fusable(model))
        model.qconfig = ao.QConfig(activation=activation, weight=weight)
        model = ao.prepare_qat(model)
    # prepare_qat attaches no quantizer to a ReLU of its own, which is what follows a residual sum.
    model = _swap(model, lambda m: nn.Sequential(nn.ReLU(), activation()) if type(m) is nn.ReLU else None)
    return _fp32(model, bits, lr)


def _fusable(model: nn.Module) -> list[list[str]]:
    """Runs of convolution (or linear), batch norm and ReLU, in the naming of ``fedqssl.models``."""
    names = {name for name, _ in model.named_modules()}
    groups = []
    for name, module in model.named_modules():
        prefix, _, last = name.rpartition(".")
        if not isinstance(module, nn.Conv2d):
            continue
        if last.startswith("conv"):
            run = [f"{prefix}.{part}{last[4:]}" for part in ("conv", "bn", "relu")]
            groups.append(run if last == "conv1" and run[2] in names else run[:2])
        else:
            groups.append([name, f"{prefix}.{int(last) + 1}"])
    return groups


FAMILIES: dict[str, Callable[[nn.Module, int, float], Trainer]] = {
    "fp32": _fp32,
    "fp32-amp": _fp32_amp,
    "fedqssl": _fedqssl,
    "brevitas": _brevitas,
    "brevitas-first-300-steps": partial(_brevitas, statistics_steps=_DEFAULT),
    "torchao-qat": _torchao_qat,
}


@dataclass(frozen=True)
class TrainingStep:
    """One SimCLR step of a variant on a fixed batch: forward, NT-Xent, backward, update."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    views: Tensor  # (2N, 3, S, S), channels_last
    temperature: float = 0.5

    def loss(self) -> Tensor:
        """Forward pass and NT-Xent."""
        from fedqssl.ssl.simclr import nt_xent

        return nt_xent(self.model(self.views), self.temperature)

    def __call__(self) -> Tensor:
        """Train on the batch once, drop the gradients and return the loss."""
        loss = self.loss()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()


def training_step(
    variant: Variant,
    width: int,
    images: int,
    lr: float = 0.3,
    device: torch.device | None = None,
    model: str = "resnet18",
    size: int = 32,
) -> TrainingStep:
    """A variant on ``images`` random images of two views each, on a device; every variant gets the same batch."""
    generator = torch.Generator().manual_seed(1)
    views = torch.rand(2 * images, 3, size, size, generator=generator)
    made, optimizer = build(variant, width, lr, device, model)
    return TrainingStep(made, optimizer, views.contiguous(memory_format=torch.channels_last).to(device))
