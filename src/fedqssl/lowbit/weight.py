"""A layer's weights as packed s-bit codes with one scale: the only copy a client keeps (PAPER-TO-CODE, sections 1 and 3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedqssl.lowbit.precision import LowBitOptions
from fedqssl.quant import compand_pack, compand_scale, compand_values, quantile_quantize
from fedqssl.quant.compand import COMPANDERS, finer_scale, levels
from fedqssl.quant.kernels import ops
from fedqssl.quant.kernels.reference import code_dtype
from fedqssl.quant.kernels.types import ends_finite
from fedqssl.quant.packing import pack_own, packed_size, unpack


@dataclass(frozen=True, eq=False)
class PackedGradient:
    """A weight gradient as packed codes of s + 2 bits and its quantile centres."""

    packed: Tensor
    codebook: Tensor
    bits: int
    shape: torch.Size

    def unpack(self) -> Tensor:
        """The float view."""
        table: Tensor = ops(self.packed).unpack_table(self.packed, self.bits, self.shape.numel(), self.codebook)
        return table.view(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes held: codes and centres."""
        return self.packed.numel() + 4 * self.codebook.numel()


@dataclass(frozen=True, eq=False)
class PackedWeight:
    """A snapshot of a layer's weights: packed codes with the values that they stand for, by code."""

    codes: Tensor
    table: Tensor
    bits: int
    shape: torch.Size

    def parameters(self) -> Tensor:
        """X in float64."""
        return self.table[unpack(self.codes, self.bits, self.shape).to(torch.int64)]


def _packed(codes: Tensor, bits: int) -> Tensor:
    return pack_own(codes.to(code_dtype(bits)), bits)


class LowBitWeight(nn.Module):
    """Codes k (packed), scale m, and the gradient between backward pass and step (packed codes of its own).

    What the layer computes with, by ``options.weights`` and by whether a batch norm behind it absorbs the scale:
    ``level``: ``l = 2k/(2^s - 1) - 1``, or ``m l`` without batch norm; ``value``: ``c^-1(m l)``; ``literal``: ``l``.
    What the optimiser moves is the parameter x: ``c^-1(m l)``, for ``literal`` the level itself.
    """

    codes: Tensor
    scale: Tensor

    def __init__(self, x: Tensor, bits: int, gradient_bits: int, options: LowBitOptions, absorbed: bool) -> None:
        super().__init__()
        self.bits, self.gradient_bits, self.options = bits, gradient_bits, options
        self.shape = x.shape
        self.absorbed = absorbed
        self.compander = COMPANDERS[options.compander]
        self.anchor = nn.Parameter(torch.empty(0, device=x.device))  # ties the codes into autograd's graph
        self.register_buffer("codes", torch.empty(0, dtype=torch.uint8, device=x.device))
        self.register_buffer("scale", torch.zeros((), device=x.device))
        self.gradient: PackedGradient | None = None
        self.finite: bool | Tensor = True  # of a GPU a tensor, which is looked at in the optimiser's step
        self._m: tuple[Tensor, int, float] | None = None
        self.assign(x)

    def assign(self, x: Tensor) -> None:
        """Quantize float parameters x to the nearest codes with ``m = max|c(x)|``."""
        m = compand_scale(x, self.compander)
        self.store(compand_pack(x, self.bits, m, self.compander), m)

    def store(self, packed: Tensor, scale: float) -> None:
        """Replace codes, packed, and scale."""
        self.codes = packed
        if self._m is not None and self.scale.device == packed.device and scale == self.m:
            return  # as in most steps: nothing to move
        number = torch.tensor(scale, dtype=torch.float32, device="cpu")
        self.scale = number.to(packed.device)
        self._m = self.scale, self.scale._version, float(number)

    @property
    def m(self) -> float:
        """The scale as a number, which is kept: reading it from a GPU would make the host wait in every layer."""
        if self._m is None or self._m[0] is not self.scale or self._m[1] != self.scale._version:
            self._m = self.scale, self.scale._version, float(self.scale)
        return self._m[2]

    @property
    def nbytes(self) -> int:
        """Bytes of the packed codes: ``ceil(n * s / 8)``."""
        return packed_size(self.shape.numel(), self.bits)

    def unpacked(self) -> Tensor:
        """The codes, one per element, in the weight's shape."""
        return unpack(self.codes, self.bits, self.shape)

    def _look_up(self, table: Tensor) -> Tensor:
        flat: Tensor = ops(self.codes).unpack_table(self.codes, self.bits, self.shape.numel(), table.float())
        return flat.view(self.shape)

    def _parameter_table(self) -> Tensor:
        if self.options.weights == "literal":
            return levels(self.bits, self.codes.device)
        return compand_values(self.bits, self.m, self.compander, self.codes.device)

    def packed(self) -> PackedWeight:
        """The weights as they are now; codes are replaced, never written to, so nothing is copied."""
        return PackedWeight(self.codes, self._parameter_table(), self.bits, self.shape)

    def parameters_of_codes(self) -> Tensor:
        """X in float64: what each code stands for, ``c^-1(m l)``."""
        return self.packed().parameters()

    def store_finer(self, packed: Tensor, scale: float, extra: int) -> Tensor:
        """Take the upper s bits of packed codes of ``s + extra`` bits as codes; returns the lower ones, packed."""
        finer = unpack(packed, self.bits + extra, self.shape).to(torch.int32)
        self.store(_packed(finer >> extra, self.bits), scale)
        return _packed(finer & (2**extra - 1), extra)

    def finer_parameters(self, lower: Tensor, extra: int) -> Tensor:
        """X in float64, of the codes and the lower bits that :meth:`store_finer` returned."""
        finer = self.unpacked().to(torch.int64) << extra | unpack(lower, extra, self.shape).to(torch.int64)
        bits, device = self.bits + extra, finer.device
        if self.options.weights == "literal":
            return finer_scale(1.0, self.bits, extra) * levels(bits, device)[finer]
        return compand_values(bits, finer_scale(self.m, self.bits, extra), self.compander, device)[finer]

    def moved(self, rate: float) -> Tensor:
        """``x - a g`` in float64, g being the gradient that the weight holds."""
        assert self.gradient is not None
        table, g = self._parameter_table(), self.gradient
        moves = g.packed, g.bits, g.codebook, rate
        flat: Tensor = ops(self.codes, g.packed).step_target(self.codes, self.bits, self.shape.numel(), table, *moves)
        return flat.view(self.shape)

    def _weight_table(self) -> Tensor:
        """Per code, the weight that the layer computes with."""
        if self.options.weights == "value":
            return self._parameter_table()
        table = levels(self.bits, self.codes.device)
        return table if self.absorbed and self.m > 0 else table * self.m

    def effective(self) -> Tensor:
        """The float weight that enters the convolution: a view for one layer at a time, never kept."""
        return self._look_up(self._weight_table())

    def odd(self) -> tuple[Tensor, float]:
        """For uniform grids: odd integers ``2k - (2^s - 1)`` as int16 and their scale, ``effective = odd * scale``."""
        return self.unpacked().to(torch.int16) * 2 - (2**self.bits - 1), self.odd_scale()

    def odd_scale(self) -> float:
        """The scale of :meth:`odd`."""
        top = 2**self.bits - 1
        scale: float = 1.0 / top if self.absorbed and self.m > 0 else self.m / top
        return scale

    def integers(self) -> tuple[Tensor, float]:
        """The odd integers of :meth:`odd` as int8, for up to 7 bits."""
        codes = self.unpacked().view(torch.int8)
        return (codes - (2**self.bits - 1)).add_(codes), self.odd_scale()

    @property
    def integral(self) -> bool:
        """Whether the weights lie on a uniform grid, so that integer convolution applies."""
        return self.options.weights != "value"

    def chain(self, g: Tensor) -> Tensor:
        """Turn dL/d(weight) into dL/dx: ``dL/dl * c'(x) / m`` for ``level``, m held constant; identity for ``value``."""
        if self.options.weights != "level":
            return g
        m = self.m
        if m == 0:
            return torch.zeros_like(g)
        slope = self.compander.slope_at(m * levels(self.bits, self.codes.device))  # c'(x_k) as a function of c(x_k)
        return self._look_up(slope / m if self.absorbed else slope) * g  # in this order it has the codes' own layout

    def receive(self, g: Tensor, generator: torch.Generator | None = None) -> None:
        """Take dL/d(weight) from the backward pass: chain to x, add to what is there, quantile-quantize, keep the codes."""
        g = self.chain(g)
        if self.gradient is not None:
            g = g + self.gradient.unpack()
        rounding, centres = self.options.gradient_rounding, self.options.gradient_centres
        try:
            q = quantile_quantize(g, self.gradient_bits, "auto", rounding, generator, wait=False, centres=centres)
        except ValueError:  # NaN or infinity: the optimiser skips the step and names this layer
            self.finite = False
            return
        if g.device.type != "cpu" and g.numel():
            self.finite = self.finite & ends_finite(q.codebook)
        self.gradient = PackedGradient(pack_own(q.codes, q.bits), q.codebook, q.bits, self.shape)

    def clear_gradient(self) -> None:
        """Forget the gradient and whether it was finite."""
        self.gradient, self.finite = None, True

    def extra_repr(self) -> str:
        """Bits and shape, for ``print(model)``."""
        return f"{self.bits}-bit {self.options.weights}, shape={tuple(self.shape)}"
