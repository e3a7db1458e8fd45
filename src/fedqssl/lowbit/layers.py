"""Low-bit layers. ``to_lowbit`` puts them in the place of torch's; their names in the model stay the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

from fedqssl.lowbit.activation import Activation, grad_carrier, run, to_rows
from fedqssl.lowbit.buffer_pool import POOL
from fedqssl.lowbit.functions import Convolve, Multiply, NormActivate, QuantizeRange
from fedqssl.lowbit.precision import HAT_STEPS, LowBitOptions, Precision
from fedqssl.lowbit.ready import Keeping, T
from fedqssl.lowbit.weight import LowBitWeight
from fedqssl.quant.kernels import ops
from fedqssl.quant.kernels.types import Norm, NormAct
from fedqssl.quant.packing import pack

INPUT_BITS = 8


class _WeightLayer(Keeping):
    """What convolutions and linear layers share."""

    def __init__(
        self,
        layer: nn.Conv2d | nn.Linear,
        precision: Precision,
        options: LowBitOptions,
        absorbed: bool,
        quantizes_gradient: bool,
    ) -> None:
        super().__init__()
        self.options, self.gradient_bits = options, precision.gradient
        self.weight = LowBitWeight(layer.weight.detach(), precision.weight, precision.gradient, options, absorbed)
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())
        self.quantizes_gradient = quantizes_gradient
        self.generator: torch.Generator | None = None
        if options.gradient_rounding == "stochastic":
            self.generator = torch.Generator()  # of the CPU, as the optimiser's

    def made(self, key: Hashable, make: Callable[[], T]) -> T:
        """Something made from the weights, for a kernel: made in every call, unless the layer keeps it (:func:`keep_ready`)."""
        return make() if self.ready is None else self.ready.get((self.weight.codes, self.weight.scale), key, make)

    def seed_gradient_rounding(self, seed: int, name: str) -> None:
        """Derive the draws of stochastic gradient rounding, if there are any, from a seed and the layer's name."""
        if self.generator is not None:
            digest = hashlib.sha256(f"gradient rounding {seed} {name}".encode()).digest()
            self.generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)


class LowBitConv2d(_WeightLayer):
    """``nn.Conv2d`` on codes.

    Args:
        layer: the convolution to take weights and shapes from.
        precision: bits of weights and gradients.
        options: how weights are read.
        absorbed: a batch norm behind absorbs the weight's scale.
        quantizes_gradient: this layer quantizes its output's gradient (else the batch norm behind it does).
    """

    def __init__(
        self,
        layer: nn.Conv2d,
        precision: Precision,
        options: LowBitOptions,
        absorbed: bool,
        quantizes_gradient: bool,
    ) -> None:
        super().__init__(layer, precision, options, absorbed, quantizes_gradient)
        padding = layer.padding
        if isinstance(padding, str):
            padding = tuple(
                d * (k - 1) // 2 if padding == "same" else 0
                for d, k in zip(layer.dilation, layer.kernel_size, strict=True)
            )
        self.kernel_size: tuple[int, int] = layer.kernel_size  # type: ignore[assignment]
        self.stride: tuple[int, int] = layer.stride  # type: ignore[assignment]
        self.padding: tuple[int, int] = padding  # type: ignore[assignment]
        self.dilation: tuple[int, int] = layer.dilation  # type: ignore[assignment]
        self.groups = layer.groups

    def forward(self, x: Activation) -> Tensor:
        """Codes (N, C, H, W) to floats (N, O, H', W')."""
        y = run(Convolve, x.grad_carrier, self.weight.anchor, self, x)
        return y if self.bias is None else y + self.bias.view(-1, 1, 1)


class LowBitLinear(_WeightLayer):
    """``nn.Linear`` on codes; arguments as for :class:`LowBitConv2d`."""

    def forward(self, x: Activation) -> Tensor:
        """Codes (N, C) to floats (N, O)."""
        y = run(Multiply, x.grad_carrier, self.weight.anchor, self, x)
        return y if self.bias is None else y + self.bias


class LowBitNorm(Keeping):
    """Batch norm and what follows it, fused: residual add, clipped ReLU, quantization (Algorithm 2, lines 3 to 5).

    Parameters and statistics carry torch's names. Without a batch norm (``norm=None``) it is the activation alone.

    Args:
        norm: the batch norm to take over, or None.
        precision: bits of the activation and of the gradient.
        options: clip and kept bits.
        activate: a clipped ReLU and quantization follow; else floats come out.
        quantizes_gradient: its input comes straight from a low-bit layer, whose gradient it quantizes.
    """

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        norm: nn.BatchNorm1d | nn.BatchNorm2d | None,
        precision: Precision,
        options: LowBitOptions,
        activate: bool,
        quantizes_gradient: bool,
    ) -> None:
        super().__init__()
        self.clip = options.activation_clip
        self.precision, self.options = precision, options
        self.activate, self.quantizes_gradient = activate, quantizes_gradient
        self.finite: bool | Tensor = True  # of a GPU a tensor, which is looked at in the optimiser's step
        self.normalizes = norm is not None
        self.eps = norm.eps if norm is not None else 0.0
        self.momentum = norm.momentum if norm is not None else 0.0
        weight, bias = (norm.weight, norm.bias) if norm is not None else (None, None)
        self.weight = None if weight is None else nn.Parameter(weight.detach().clone())
        self.bias = None if bias is None else nn.Parameter(bias.detach().clone())
        for name in ("running_mean", "running_var", "num_batches_tracked"):
            value = getattr(norm, name, None)
            self.register_buffer(name, None if value is None else value.detach().clone())

    def forward(self, y: Tensor, residual: Tensor | Activation | None = None) -> Tensor | Activation:
        """Floats (N, C, ...) to an :class:`Activation`, or to floats if there is no activation."""
        if residual is not None and residual.shape != y.shape:
            if isinstance(residual, Activation):
                residual = residual.to_tensor()
            y, residual = torch.broadcast_tensors(y, residual)  # type: ignore[no-untyped-call]
        y = y.float()
        codes = residual if isinstance(residual, Activation) else None
        joined = codes.grad_carrier if codes is not None else residual
        out: list[Activation] = []
        z = run(NormActivate, y, self.weight, self.bias, joined, self, codes, out)
        return out[0].carried_by(z) if out else z

    def plan(self, rows: Tensor, save: bool, codes: Activation | None, residual: Tensor | None) -> NormAct:
        """What the kernel has to do for this call."""
        bits = self.precision.activation if self.activate else 0
        top = 2**bits - 1
        hat_bits = self.options.hat_bits(self.precision.activation) if self.normalizes else 0
        residual_codes = residual_values = None
        if codes is not None and codes.codes is not None and codes.low == 0:
            residual_codes = to_rows(codes.codes)
        elif codes is not None:
            residual_values = to_rows(codes.floats())
        elif residual is not None:
            residual_values = to_rows(residual)
        return NormAct(
            bits=bits,
            scale=top / self.clip,
            step=self.clip / top if bits else 0.0,
            hat_bits=hat_bits,
            hat_step=HAT_STEPS.get(hat_bits, 1.0),
            save=save,
            want_codes=bits <= 8,
            want_values=bits > 8
            and not save,  # while packed codes are there, the next layer unpacks them chunk by chunk
            residual_codes=residual_codes,
            residual_values=residual_values,
            residual_step=codes.step if codes is not None else 0.0,
            values_out=None if 0 < bits <= 8 or (bits and save) else POOL.take_like(rows),
        )

    def coefficients(self, rows: Tensor, gamma: Tensor | None, beta: Tensor | None) -> tuple[Norm, Tensor, bool]:
        """Per-channel maps of the kernel, 1/std in float64, and whether the statistics are the batch's own."""
        if self.ready is None or self.training:
            return self._coefficients(rows, gamma, beta)
        if self.normalizes and (self.running_mean is None or self.running_var is None):
            return self._coefficients(rows, gamma, beta)
        made_of = self.running_mean, self.running_var, gamma, beta
        return self.ready.get(made_of, rows.shape[1], lambda: self._coefficients(rows, gamma, beta))

    def _coefficients(self, rows: Tensor, gamma: Tensor | None, beta: Tensor | None) -> tuple[Norm, Tensor, bool]:
        channels = rows.shape[1]
        ones = torch.ones(channels, device=rows.device)
        zeros = torch.zeros(channels, device=rows.device)
        if not self.normalizes:
            return Norm(ones, zeros, ones, zeros), ones.double(), False
        own = self.training or self.running_mean is None or self.running_var is None
        if own:
            mean, var = ops(rows).norm_stats(rows)
            if self.training:
                self._track(mean, var, rows.shape[0])
        else:
            assert self.running_mean is not None and self.running_var is not None
            mean, var = self.running_mean.double(), self.running_var.double()
        inverse_std = (var + self.eps).rsqrt()
        hat = inverse_std.float(), (-mean * inverse_std).float()
        affine = (ones if gamma is None else gamma.detach()), (zeros if beta is None else beta.detach())
        return Norm(*hat, *affine), inverse_std, own

    @torch.no_grad()
    def _track(self, mean: Tensor, var: Tensor, count: int) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        # A step that is not finite will be skipped; the statistics must survive it. Nobody waits for a GPU to find out.
        fine = torch.isfinite(mean).all() & torch.isfinite(var).all()
        momentum = self.momentum
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += fine
            if momentum is None:
                momentum = 1.0 / max(float(self.num_batches_tracked), 1.0)
        unbiased = var * (count / max(count - 1, 1))
        for kept, found in ((self.running_mean, mean), (self.running_var, unbiased)):
            kept.lerp_(torch.where(fine, found.float(), kept), momentum or 0.0)

    def gradient_bits_for(self, n: int) -> int | None:
        """Bits to quantize the outgoing gradient of n entries to; None if it is kept exactly."""
        bits = self.precision.gradient
        return bits if self.quantizes_gradient and n > 2**bits else None


class InputCodes(nn.Module):
    """The model's input: images in [0, 1] as 8-bit codes (PAPER-TO-CODE, section 4).

    Every batch is checked on the CPU. On a GPU the first one alone is: a look at the others would make the host wait.
    """

    seen = False

    def _check(self, x: Tensor) -> None:
        low, high = x.aminmax() if x.numel() else (x.new_zeros(()), x.new_zeros(()))
        if not bool((low >= -1e-3) & (high <= 1 + 1e-3)):
            raise ValueError(
                f"a low-bit model takes images in [0, 1] as 8-bit codes, but this batch spans [{float(low):.3g}, "
                f"{float(high):.3g}]; divide by 255, and leave normalization to batch norm"
                " (or quantize_input=False)"
            )
        self.seen = True

    def forward(self, x: Tensor) -> Activation:
        """Floats in [0, 1] to 8-bit codes."""
        top = 2**INPUT_BITS - 1
        x = x.detach()
        if x.device.type == "cpu" or not self.seen:
            self._check(x)
        fmt = torch.channels_last if x.dim() == 4 else torch.contiguous_format
        codes = (x * top).round().clamp(0, top).to(torch.uint8).contiguous(memory_format=fmt)
        packed = None
        if torch.is_grad_enabled():  # only the backward pass reads it
            rows = codes.permute(0, 2, 3, 1) if x.dim() == 4 else codes
            packed = pack(rows.contiguous().flatten(), INPUT_BITS)
        return Activation(grad_carrier(x.shape, x.device), INPUT_BITS, 1.0 / top, packed, codes, None)


def _coded(x: Tensor, bits: int, extent: tuple[float, float]) -> Activation:
    """Codes of floats on the uniform grid of ``extent``, tied into autograd's graph."""
    out: list[Activation] = []
    carrier = run(QuantizeRange, x, bits, extent, out)
    return out[0].carried_by(carrier)


class RangeCodes(nn.Module):
    """Codes for a float tensor that enters a low-bit layer without an activation function before it (pooled features).

    The grid spans the running range of the data (an exponential average of each batch's extremes, starting with the first);
    ranges that never go below zero start at zero. With ``top`` it is ``[0, top]`` for good: behind operators that only pick or
    reshape activations (flatten, max-pool), whose codes it then finds again without loss.
    """

    low: Tensor
    high: Tensor

    def __init__(self, precision: Precision, momentum: float = 0.1, top: float | None = None) -> None:
        super().__init__()
        self.bits, self.momentum, self.fixed = precision.activation, momentum, top is not None
        self._kept: tuple[tuple[Tensor, Tensor], tuple[int, int], tuple[float, float]] | None = None
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.tensor(top or 0.0))

    def forward(self, x: Tensor) -> Activation:
        """Floats to codes."""
        if self.training and not self.fixed:
            self._track(x.detach().float())
        return _coded(x, self.bits, self.extent())

    def extent(self) -> tuple[float, float]:
        """Both ends as numbers, which are kept: reading them from a GPU would make the host wait."""
        tensors = self.low, self.high
        versions = self.low._version, self.high._version
        kept = self._kept
        if kept is None or kept[0][0] is not self.low or kept[0][1] is not self.high or kept[1] != versions:
            self._kept = kept = tensors, versions, (float(self.low), float(self.high))
        return kept[2]

    def _track(self, x: Tensor) -> None:
        device = self.low.device
        low, high = torch.stack(x.aminmax()).cpu()  # what follows is arithmetic of four numbers
        if not bool(torch.isfinite(low) & torch.isfinite(high)):
            return
        low = low.clamp(max=0)
        before = self.extent()
        if before[0] != before[1]:
            low, high = (
                torch.lerp(torch.tensor(old, dtype=torch.float32, device="cpu"), new, self.momentum)
                for old, new in zip(before, (low, high), strict=True)
            )
        self.low, self.high = low.clone().to(device), high.clone().to(device)
        self._kept = (self.low, self.high), (self.low._version, self.high._version), (float(low), float(high))


class TanhCodes(nn.Module):
    """The ``activation_quantizer="tanh"`` reading: ``h(z) = tanh(relu(z))`` in [0, 1), then quantize_s."""

    def __init__(self, precision: Precision) -> None:
        super().__init__()
        self.bits = precision.activation

    def forward(self, z: Tensor, residual: Tensor | Activation | None = None) -> Activation:
        """Floats to codes."""
        if residual is not None:
            z = z + (residual.to_tensor() if isinstance(residual, Activation) else residual)
        return _coded(torch.tanh(torch.relu(z)), self.bits, (0.0, 1.0))
