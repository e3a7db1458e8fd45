"""Autograd of the low-bit layers: where PAPER-TO-CODE (sections 4 and 5) says that something is quantized, kept or clipped.

Everything kept for the backward pass goes through ``save_for_backward`` as packed codes, so that torch's saved-tensor hooks
see every byte. Who owns which buffer, and who may overwrite it, is in docs/lowbit-internals.md.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedqssl.lowbit.activation import (
    Activation,
    Code,
    Sink,
    from_rows,
    grad_carrier,
    pack_values,
    to_rows,
    unpack_images,
    unpack_values,
    zeros,
)
from fedqssl.lowbit.buffer_pool import POOL
from fedqssl.lowbit.chunks import chunk_images, in_chunks, untouched
from fedqssl.quant import bit_conv2d, quantile_round
from fedqssl.quant.kernels import intconv, native, ops, tensorcores
from fedqssl.quant.kernels.types import Hat, NormAct
from fedqssl.quant.packing import pack_own

if TYPE_CHECKING:
    from fedqssl.lowbit.layers import LowBitConv2d, LowBitLinear, LowBitNorm

BIT_CHANNELS = range(32, 128)
"""Input channels for which the bit kernel beats integer convolution at 1 bit (see docs/performance.md)."""

Grads = tuple[Tensor | None, ...]


def quantize_gradient(g: Tensor, layer: LowBitConv2d | LowBitLinear) -> Tensor:
    """``g^(Q)``: the activation gradient in s + 2 bits; left alone (and reported at the step) if it is not finite."""
    if g.numel() <= 2**layer.gradient_bits:
        return g  # fewer entries than centres: kept exactly
    try:
        how = layer.options.gradient_rounding, layer.generator
        centres = layer.options.gradient_centres
        rounded = quantile_round(g, layer.gradient_bits, "auto", *how, wait=False, centres=centres)
    except ValueError:
        layer.weight.finite = False
        return g
    if g.device.type != "cpu":  # where it has not been looked at
        layer.weight.finite = layer.weight.finite & torch.isfinite(g).all()
    return rounded


def integer_path(x_bits: int, layer: LowBitConv2d) -> bool:
    """Whether this convolution of codes can run in integers, exactly."""
    fits = intconv.fits(2**x_bits - 1, 2**layer.weight.bits - 1) or _odd_path(x_bits, layer)
    return layer.weight.integral and fits and intconv.available()


def _odd_path(x_bits: int, layer: LowBitConv2d) -> bool:
    """Whether the weights are of 8 bits, whose odd integers go in two parts."""
    return layer.weight.bits == 8 and x_bits <= 8 and layer.groups == 1


def bit_path(x: Activation, layer: LowBitConv2d) -> bool:
    """Whether AND and bit count is the fastest way: one bit by one bit, enough channels to fill words."""
    one = x.bits == 1 and layer.weight.bits == 1
    return one and layer.groups == 1 and x.shape[1] in BIT_CHANNELS and ops() is native


def tensor_core_path(x: Activation, layer: LowBitConv2d) -> bool:
    """Whether TF32 gives this convolution of codes exactly, by proof and by the probe of this GPU."""
    terms = layer.weight.shape[1:].numel()  # of a group
    assert x.codes is not None
    return tensorcores.exact(x.bits, layer.weight.bits, terms) and tensorcores.available(x.codes.device)


def convolve(x: Activation, layer: LowBitConv2d) -> Tensor:
    """Forward convolution of codes by the fastest exact path: bit counts at 1 bit, integers up to 7, else floats.

    On a GPU: sums of integers in TF32 where they are exact, else floats.
    """
    steps = layer.stride, layer.padding, layer.dilation
    if x.codes is not None and layer.weight.integral and x.codes.device.type == "cuda":
        if x.low == 0 and tensor_core_path(x, layer):
            w, scale = layer.made("tensor cores", layer.weight.odd)
            how = scale * x.step, (*steps, layer.groups), (x.bits, layer.weight.bits)
            codes = x.codes
            return in_chunks(x.shape, codes.device, lambda i, n: tensorcores.conv2d(codes[i : i + n], w, *how))
    elif x.codes is not None and layer.weight.integral and x.codes.device.type == "cpu":
        if bit_path(x, layer):
            scale = layer.weight.integers()[1] * x.step
            return bit_conv2d(x.codes, layer.weight.unpacked(), 1, 1, *steps, scale)
        if integer_path(x.bits, layer):
            return (_in_odd_integers if _odd_path(x.bits, layer) else _in_integers)(x.codes, x, layer)
    floats = layer.made("floats", lambda: layer.weight.effective().contiguous(memory_format=torch.channels_last))
    return in_chunks(x.shape, floats.device, lambda i, n: F.conv2d(x.images(i, n), floats, None, *steps, layer.groups))


def _in_integers(codes: Tensor, x: Activation, layer: LowBitConv2d) -> Tensor:
    shape = layer.stride, layer.padding, layer.dilation, layer.groups

    def prepacked() -> intconv.Packed:
        w, scale = layer.weight.integers()
        return intconv.prepack(w, *shape, scale * x.step, codes.shape)

    packed = layer.made(("integers", codes.shape[1:], x.step), prepacked)  # alike for any number of images
    return in_chunks(codes.shape, codes.device, lambda i, n: intconv.conv2d(codes[i : i + n], packed, *shape))


def _in_odd_integers(codes: Tensor, x: Activation, layer: LowBitConv2d) -> Tensor:
    shape = layer.stride, layer.padding, layer.dilation

    def prepacked() -> intconv.OddPacked:
        return intconv.prepack_odd(
            layer.weight.unpacked(), *shape, 2**x.bits - 1, layer.weight.odd_scale() * x.step, codes.shape
        )

    packed = layer.made(("odd integers", codes.shape[1:], x.bits, x.step), prepacked)
    count, out = chunk_images(codes.shape, codes.device), None
    for start in range(0, max(codes.shape[0], 1), count):
        sums = intconv.conv2d(codes[start : start + count], packed.weights, *shape, 1)
        if out is None:
            whole = torch.Size((codes.shape[0], packed.channels, *sums.shape[2:]))
            out = from_rows(POOL.take(whole.numel(), codes.device), whole)
        rows = to_rows(sums)
        ops(rows).odd_sums(rows, packed.factor, packed.scale, to_rows(out[start : start + count]))
    assert out is not None
    return out


def _keep_input(ctx: Any, layer: LowBitConv2d | LowBitLinear, codes: Activation) -> None:
    """Keep the packed input codes, how to read them, and where their gradient goes."""
    if any(ctx.needs_input_grad):
        ctx.save_for_backward(codes.for_backward())
    ctx.layer, ctx.code, ctx.sink = layer, codes.code, codes.sink


class Convolve(torch.autograd.Function):
    """``y = conv(x^(Q), w^(Q))``; backward quantizes the gradient once and uses it in both products."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: LowBitConv2d, codes: Activation) -> Tensor:
        """Keeps the packed input codes."""
        _keep_input(ctx, layer, codes)
        return convolve(codes, layer)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Grads:
        """dL/dw goes to the weight; dL/dx is passed on."""
        layer: LowBitConv2d = ctx.layer
        g = g.contiguous(memory_format=torch.channels_last)
        if layer.quantizes_gradient:
            g = from_rows(quantize_gradient(to_rows(g), layer), g.shape)
        if ctx.needs_input_grad[1]:
            layer.weight.receive(_weight_gradient(g, ctx.saved_tensors[0], ctx.code, layer), layer.generator)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        if ctx.sink is None:
            return _input_gradient(g, ctx.code.shape, layer, None), None, None, None
        if _strided_pointwise(layer):
            ctx.sink.add_strided(_pointwise_gradient(g, ctx.code.shape, layer), layer.stride, ctx.code.shape)
        else:
            total = ctx.sink.take_dense()
            ctx.sink.add(_input_gradient(g, ctx.code.shape, layer, total))
        return None, None, None, None


def _conv_backward(g: Tensor, x: Tensor, w: Tensor, layer: LowBitConv2d, stride: tuple[int, int], which: int) -> Tensor:
    mask = [which == 0, which == 1, False]
    steps = list(stride), list(layer.padding), list(layer.dilation), False, [0, 0], layer.groups
    result: Tensor = torch.ops.aten.convolution_backward(g, x, w, None, *steps, mask)[which]
    return result


def _strided_pointwise(layer: LowBitConv2d) -> bool:
    """1x1 convolutions with a stride only see a sub-grid; oneDNN's backward is far slower on them than on that grid."""
    return layer.kernel_size == (1, 1) and layer.padding == (0, 0) and layer.stride != (1, 1)


def _weight_gradient(g: Tensor, packed: Tensor, code: Code, layer: LowBitConv2d) -> Tensor:
    """dL/dw with the input unpacked a chunk of images at a time: its float view never exists as a whole."""
    w = untouched(layer.weight.shape, g.device)
    count = chunk_images(code.shape, packed.device)
    total: Tensor | None = None
    for start in range(0, code.shape[0], count):
        x = unpack_images(packed, code, start, count)
        stride = layer.stride
        if _strided_pointwise(layer):
            x = x[:, :, :: stride[0], :: stride[1]].contiguous(memory_format=torch.channels_last)
            stride = (1, 1)
        part_g = _conv_backward(g[start : start + count], x, w, layer, stride, 1)
        total = part_g if total is None else total + part_g
    assert total is not None
    return total


def _input_gradient(g: Tensor, shape: torch.Size, layer: LowBitConv2d, into: Tensor | None) -> Tensor:
    """dL/dx, added to ``into`` if given."""
    if _strided_pointwise(layer):
        out = zeros(shape, g.device)
        out[:, :, :: layer.stride[0], :: layer.stride[1]] = _pointwise_gradient(g, shape, layer)
        return out
    w = layer.weight.effective().contiguous(memory_format=torch.channels_last)

    def backward(part: Tensor) -> Tensor:
        x = untouched(torch.Size((part.shape[0], *shape[1:])), g.device)
        return _conv_backward(part, x, w, layer, layer.stride, 0)

    # Behind a batch norm, g is that layer's own output and nobody reads it again.
    ours = into is None and not layer.quantizes_gradient and g.shape == shape
    larger = max(g.shape, shape, key=torch.Size.numel)
    return in_chunks(larger, g.device, lambda i, n: backward(g[i : i + n]), into, over=g if ours else None)


def _pointwise_gradient(g: Tensor, shape: torch.Size, layer: LowBitConv2d) -> Tensor:
    """dL/dx of a strided 1x1 convolution, on the sub-grid that it sees."""
    w = layer.weight.effective().contiguous(memory_format=torch.channels_last)
    x = untouched(torch.Size((shape[0], shape[1], *g.shape[2:])), g.device)
    return _conv_backward(g, x, w, layer, (1, 1), 0)


class Multiply(torch.autograd.Function):
    """``y = x^(Q) w^(Q)T`` of a linear layer, with the same rules as :class:`Convolve`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor, layer: LowBitLinear, codes: Activation) -> Tensor:
        """Keeps the packed input codes."""
        _keep_input(ctx, layer, codes)
        return codes.floats() @ layer.made("floats", layer.weight.effective).T

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Grads:
        """dL/dw goes to the weight; dL/dx is passed on."""
        layer: LowBitLinear = ctx.layer
        if layer.quantizes_gradient:
            g = quantize_gradient(g.contiguous(), layer)
        if ctx.needs_input_grad[1]:
            x = unpack_values(ctx.saved_tensors[0], ctx.code)
            layer.weight.receive(g.T @ x, layer.generator)
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        gx = g @ layer.weight.effective()
        if ctx.sink is None:
            return gx, None, None, None
        ctx.sink.add(gx)
        return None, None, None, None


class NormActivate(torch.autograd.Function):
    """Batch norm, residual add, clipped ReLU and quantize_s in one pass (any of them may be absent).

    ``x_hat = (y - mean) / std``, ``z = gamma x_hat + beta + residual``, ``h = clip(z/c, 0, 1)``, ``code = round((2^s - 1) h)``.
    Backward: the clip mask is exact (1 bit each); batch norm's backward uses x_hat in ``bn_saved_bits`` bits; the result is
    quantile-quantized here when it enters a convolution directly, because the histogram then costs no extra pass.
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        residual: Tensor | None,
        layer: LowBitNorm,
        codes: Activation | None,
        out: list[Activation],
    ) -> Tensor:
        """Returns z, or the gradient carrier of an activation, which is appended to ``out``."""
        ctx.set_materialize_grads(False)
        rows = to_rows(y)
        norm, ctx.inverse_std, ctx.batch_statistics = layer.coefficients(rows, gamma, beta)
        save = any(ctx.needs_input_grad)
        act = layer.plan(rows, save, codes, residual)
        made = ops(rows).norm_act(rows, norm, act)
        ctx.sink = Sink()
        if save:
            ctx.save_for_backward(made.mask, made.hat, gamma)
            kept = dataclasses.replace(act, residual_codes=None, residual_values=None, values_out=None)
            ctx.layer, ctx.act = layer, kept
            ctx.residual_sink = codes.sink if codes is not None else None
        if not act.bits:
            assert made.values is not None
            return from_rows(made.values, y.shape)
        result = grad_carrier(y.shape, y.device)
        codes8, values = (None if v is None else from_rows(v, y.shape) for v in (made.codes, made.values))
        out.append(Activation(result, act.bits, act.step, made.packed, codes8, values, sink=ctx.sink))
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> Grads:
        """Gradients of y, gamma, beta and the residual. The sink's buffer is ours to overwrite; autograd's is not."""
        total = ctx.sink.take()
        if total is not None:
            g = total if g is None else total.add_(g)
        if g is None:
            return (None,) * 7
        layer: LowBitNorm = ctx.layer
        act: NormAct = ctx.act
        mask, hat, gamma = ctx.saved_tensors
        shape = g.shape
        rows = to_rows(g)
        backend = ops(rows)
        kept = Hat(hat, act.hat_bits, act.hat_step)
        needs_residual = ctx.needs_input_grad[3]
        masked = None
        if needs_residual:
            masked = rows if total is not None else POOL.take_like(rows)
        sum_g, sum_gx = backend.norm_backward_sums(rows, mask, kept, masked)
        if masked is not None:
            rows, mask = masked, None
        dx = rows if total is not None and not needs_residual else POOL.take_like(rows)
        finite = backend.norm_backward_apply(
            rows,
            mask,
            kept,
            _backward_coefficients(ctx, gamma, sum_g, sum_gx, rows.shape[0]),
            layer.gradient_bits_for(rows.numel()),
            dx,
            layer.options.gradient_centres,
        )
        layer.finite = layer.finite & finite
        g_residual = from_rows(rows, shape) if needs_residual else None
        if g_residual is not None and ctx.residual_sink is not None:
            ctx.residual_sink.add(g_residual)
            g_residual = None
        g_gamma = sum_gx.float() if ctx.needs_input_grad[1] else None
        g_beta = sum_g.float() if ctx.needs_input_grad[2] else None
        return from_rows(dx, shape), g_gamma, g_beta, g_residual, None, None, None


def _backward_coefficients(
    ctx: Any, gamma: Tensor | None, sum_g: Tensor, sum_gx: Tensor, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Batch norm's backward, ``dx = gamma/std (g - mean(g) - x_hat mean(g x_hat))``, as ``g mul + x_hat hat_mul + add``."""
    mul = ctx.inverse_std if gamma is None else ctx.inverse_std * gamma.double()
    if not ctx.batch_statistics:
        return mul.float(), torch.zeros_like(mul).float(), torch.zeros_like(mul).float()
    # A constant channel has x_hat = 0, which the kept grid does not have; 1/std would blow its rounding up.
    varies = ctx.inverse_std.square() * ctx.layer.eps < 0.5
    return mul.float(), torch.where(varies, -mul * sum_gx / count, 0.0).float(), (-mul * sum_g / count).float()


class QuantizeRange(torch.autograd.Function):
    """Codes of a float tensor on the uniform grid of ``[low, high]``; straight-through inside, zero where clipped."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int, extent: tuple[float, float], out: list[Activation]) -> Tensor:
        """Returns the gradient carrier of the activation, which is appended to ``out``."""
        low, high = extent
        x = x.detach().float()
        step = (high - low) / (2**bits - 1) if high > low else 1.0
        code = Code(bits, step, low, x.shape)
        packed = pack_values(x, code)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(pack_own(((x >= low) & (x <= high)).to(torch.uint8), 1))
        result = grad_carrier(x.shape, x.device)
        out.append(Activation(result, bits, step, packed, None, unpack_values(packed, code), low))
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Grads:
        """Masked by the clip."""
        (mask,) = ctx.saved_tensors
        inside: Tensor = ops(mask).unpack(mask, 1, g.numel())
        return g * inside.view(g.shape), None, None, None


__all__ = ["Convolve", "Multiply", "NormActivate", "QuantizeRange", "integer_path"]
