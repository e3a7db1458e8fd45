"""A slow reference of low-bit training, written from PAPER-TO-CODE in float64: what the layers' gradients are tested against.

It shares no code with fedqssl: it reads a converted layer's packed codes and scale as plain tensors, sorts to find quantiles, and
takes the rest from torch's double-precision operators with quantizers put between them as explicit forward and backward formulas.

A float32 value that lies on a rounding boundary may fall to either side, and everything after it changes. So the model under test
is run first and *watched*; the reference then recomputes every quantity, and wherever something is rounded it checks the
watched result and goes on with it. Thus each stage is compared given equal inputs:

* codes (activations, kept x_hat, clip masks) must be the reference's, unless its own value is within ``BOUNDARY`` of a
  rounding boundary (in units of the activation's range, of a standard deviation, of the range);
* float tensors before a gradient quantizer must agree to ``CLOSE`` of their largest entry;
* a gradient quantizer's output must be bit for bit what :func:`exact_quantiles` (sorting) or, for the fast method,
  :func:`key16_quantiles` makes of its float input.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

BOUNDARY = 1e-5
CLOSE = 1e-5
FAST_FROM = 8192  # gradients of at least this many entries may use the fast quantile method
HAT_STEPS = {1: 1.596, 2: 0.9957, 3: 0.5860, 4: 0.3352, 5: 0.1881, 6: 0.1041, 7: 0.0569, 8: 0.0308}  # Max 1960, table I


def unpack_bits(packed: Tensor, bits: int, n: int) -> Tensor:
    """Codes of a packed stream: code i is bits [i*s, (i+1)*s), least significant first."""
    stream = np.unpackbits(packed.numpy(), bitorder="little")
    assert packed.numel() == -(-n * bits // 8)
    assert not stream[n * bits :].any()
    return torch.from_numpy(stream[: n * bits].reshape(n, bits).astype(np.int64) @ (1 << np.arange(bits)))


def as_image(flat: Tensor, shape: torch.Size) -> Tensor:
    """A flat tensor in (N, H, W, C) order as (N, C, H, W); (N, C) as it is."""
    if len(shape) == 2:
        return flat.view(shape)
    n, c, h, w = shape
    return flat.view(n, h, w, c).permute(0, 3, 1, 2)


def exact_centres(g: np.ndarray, bits: int) -> np.ndarray:
    """Inverted CDF at i / (2^bits - 1): the smallest entry with at least that share of the entries up to it."""
    ordered, last = np.sort(g), 2**bits - 1
    ranks = [max(-(-i * len(g) // last), 1) for i in range(last + 1)]
    return ordered[np.array(ranks) - 1]


def nearest(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Index of the nearest centre by brute force; of two equally near ones, or of equal ones, the first."""
    index = np.empty(len(x), dtype=np.int64)
    block = max(1, 4_000_000 // len(centres))
    for i in range(0, len(x), block):
        index[i : i + block] = np.abs(x[i : i + block, None] - centres).argmin(1)
    return index


def exact_quantiles(g: Tensor, bits: int) -> Tensor:
    """Layer-wise quantile quantization by sorting; a tensor with no more entries than centres is kept."""
    flat = g.contiguous().flatten().numpy()
    if len(flat) <= 2**bits:
        return g
    centres = exact_centres(flat, bits)
    return torch.from_numpy(centres[nearest(flat, centres)]).view(g.shape)


def key16_quantiles(g: Tensor, bits: int) -> Tensor:
    """The fast method: floats with equal upper 16 bits (one key) are spread evenly over their key's interval.

    Every key is cut into 1 (up to 6 bits), 2, 4, 8 or 16 (from 10 bits on) equal parts; every float becomes the centre nearest to
    the middle of its part. Denormals count as zero. The smallest and largest entry are centres.
    """
    x = g.contiguous().flatten().numpy()
    n, last = len(x), 2**bits - 1
    if n <= last + 1:
        return g
    word = x.view(np.uint32).astype(np.int64)
    key = word >> 16

    def floats(pattern: Any) -> np.ndarray:
        return np.asarray(pattern, dtype=np.int64).astype(np.uint32).view(np.float32)

    occurring, count = np.unique(key, return_counts=True)
    order = np.lexsort((occurring >= 0x8000, floats(occurring << 16 | 0x8000)))  # ascending by value
    occurring, count = occurring[order], count[order]
    before = np.cumsum(count) - count
    low, high = x.min(), x.max()
    ranks = np.array([max(-(-i * n // last), 1) for i in range(last + 1)])
    at = np.searchsorted(before + count, ranks)  # the key that holds the entry of this rank
    k = occurring[at]
    share = (ranks - before[at] - 0.5) / count[at]
    share = np.where(k >= 0x8000, 1 - share, share)
    first, final = floats(k << 16).astype(np.float64), floats(k << 16 | 0xFFFF).astype(np.float64)
    centres = np.where(k & 0x7F80 == 0, 0.0, first + share * (final - first)).astype(np.float32).clip(low, high)
    centres[0], centres[last] = low, high
    cuts = {int(raw): min(max(bits - 6, 0), 4) for raw in occurring}
    keys, where = np.unique(key, return_inverse=True)
    shift = 16 - np.array([cuts[int(raw)] for raw in keys])[where]
    part, where = np.unique(word >> shift << shift, return_inverse=True)  # a part by its first pattern
    half = np.array([1 << (15 - cuts[int(pattern) >> 16]) for pattern in part])
    middle = np.where(part >> 16 & 0x7F80 == 0, np.float32(0), floats(part | half)).clip(low, high)
    up = np.searchsorted(centres, middle).clip(max=last)
    down = (up - 1).clip(min=0)
    chosen = np.where(middle - centres[down] <= centres[up] - middle, centres[down], centres[up])
    for end in (low, high):  # their parts stand for them
        chosen[where[x == end]] = end
    return torch.from_numpy(chosen[where]).view(g.shape)


def mean_cells(g: Tensor, bits: int) -> np.ndarray:
    """The cell of every entry where centres are means: cells of equal ``sqrt(entries * width)``, by keys cut as above."""
    x = g.contiguous().flatten().numpy()
    word = x.view(np.uint32).astype(np.int64)
    occurring, where, count = np.unique(word >> 16, return_inverse=True, return_counts=True)
    parts = 1 << min(max(bits - 6, 0), 4)

    def floats(pattern: np.ndarray) -> np.ndarray:
        return pattern.astype(np.uint32).view(np.float32).astype(np.float64)

    width = np.abs(floats(occurring << 16 | 0xFFFF) - floats(occurring << 16)) * (occurring & 0x7F80 != 0)
    weight = np.sqrt(count * width)
    units = np.rint(weight * (2.0**24 / max(weight.max(), 1e-300))).astype(np.int64)
    order = np.argsort(np.where(occurring >= 0x8000, 0x7FFF - occurring, occurring))  # ascending by value
    before = np.empty_like(units)
    before[order] = np.cumsum(units[order]) - units[order]
    part = (word & 0xFFFF) * parts >> 16
    part = np.where(word >> 16 >= 0x8000, parts - 1 - part, part)
    total = max(int(units.sum()), 1)
    light = units[where] << bits < total  # stays whole
    at = 2 * parts * before[where] + np.where(light, parts, 2 * part + 1) * units[where]
    return np.minimum((at << bits) // (2 * parts * total), 2**bits - 1)


def assert_means(before: Tensor, after: Tensor, bits: int, what: str) -> None:
    """Every entry of a cell has become one number between those of its neighbours: the mean of the cell's entries.

    To half of a key where a cell has many; where it has few, parts of keys count as if entries lay evenly in them.
    """
    cells = mean_cells(before, bits)
    x, y = (t.contiguous().flatten().double().numpy() for t in (before, after))
    many, last = len(x) >= 16 << bits, -np.inf
    for cell in np.unique(cells):
        members, found = x[cells == cell], np.unique(y[cells == cell])
        assert len(found) == 1 and found[0] >= last, (
            f"{what}: cell {cell} has more than one centre, or one out of order"
        )
        near = 2.0**-7 * np.abs(members).mean() + np.finfo(np.float32).tiny
        assert not many or abs(found[0] - members.mean()) <= near, f"{what}: cell {cell} is not its mean"
        last = found[0]
    assert np.linalg.norm(y - x) < (0.03 if bits > 6 else 0.5) * np.linalg.norm(x), what


def same_key(centre: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Whether two arrays of floats differ by less than one 16-bit key: 2^-7 of their size."""
    return np.abs(centre - other) <= 2.0**-7 * np.maximum(np.abs(centre), np.abs(other)) + np.finfo(np.float32).tiny


@dataclass
class Watched:
    """What the model under test did, in the order it did it."""

    input_codes: list[Tensor] = field(default_factory=list)
    ranges: list[tuple[Tensor, Tensor | None, float, float]] = field(default_factory=list)  # codes, mask, low, high
    activations: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # codes, mask
    hats: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))  # kept x_hat codes by layer
    fused: list[tuple[Tensor, Tensor]] = field(
        default_factory=list
    )  # batch-norm backward before and after quantization
    output_gradients: dict[str, list[tuple[Tensor, Tensor]]] = field(default_factory=lambda: defaultdict(list))
    weight_gradients: dict[str, list[tuple[Tensor, Tensor]]] = field(default_factory=lambda: defaultdict(list))


@contextmanager
def watching(model: nn.Module) -> Iterator[Watched]:
    """Record what a converted model rounds and quantizes; nothing that it computes is changed."""
    from fedqssl.lowbit import functions, layers, weight
    from fedqssl.quant.kernels import ops

    watched = Watched()
    backend = ops()
    names = {id(m): n for n, m in model.named_modules()}
    owners = {id(m.weight): n for n, m in model.named_modules() if isinstance(m, layers._WeightLayer)}
    apply, quantize = backend.norm_backward_apply, functions.quantize_gradient
    receive, quantile = weight.LowBitWeight.receive, weight.quantile_quantize
    receiving: list[str] = []

    def norm_backward_apply(g: Tensor, *rest: Any) -> bool:
        *args, bits, out, centres = rest
        before = torch.empty_like(out)
        apply(g.clone(), *args, None, before)
        finite = apply(g, *args, bits, out, centres)
        watched.fused.append((before, out.clone()))
        return finite

    def quantize_gradient(g: Tensor, layer: nn.Module) -> Tensor:
        q = quantize(g, layer)
        watched.output_gradients[names[id(layer)]].append((g.clone(), q.clone()))
        return q

    def spy_receive(self: Any, g: Tensor, generator: Any = None) -> None:
        receiving.append(owners[id(self)])
        receive(self, g, generator)
        receiving.pop()

    def spy_quantile(g: Tensor, bits: int, *rest: Any, **named: Any) -> Any:
        q = quantile(g, bits, *rest, **named)
        watched.weight_gradients[receiving[-1]].append((g.clone(), q.dequantize()))
        return q

    def saw_output_gradient(name: str, g: Tensor) -> None:
        rows = g if g.dim() == 2 else g.permute(0, 2, 3, 1).reshape(-1, g.shape[1])
        for before, after in reversed(watched.fused):
            if after.shape == rows.shape and torch.equal(after, rows):
                watched.output_gradients[name].append(
                    (as_image(before.flatten(), g.shape), as_image(after.flatten(), g.shape))
                )
                return
        raise AssertionError(f"{name}: its gradient did not come straight from a batch norm's backward")

    def after_forward(module: nn.Module, _: Any, out: Any) -> None:
        name = names[id(module)]
        if isinstance(module, layers.InputCodes):
            watched.input_codes.append(as_image(unpack_bits(out.packed, 8, out.shape.numel()), out.shape))
        elif isinstance(module, layers.RangeCodes):
            codes = as_image(unpack_bits(out.packed, out.bits, out.shape.numel()), out.shape)
            kept = out.grad_carrier.grad_fn.saved_tensors[0] if out.grad_carrier.grad_fn is not None else None
            mask = None if kept is None else unpack_bits(kept, 1, codes.numel()).view(codes.shape)
            watched.ranges.append((codes, mask, float(module.low), float(module.high)))
        elif isinstance(module, layers.LowBitNorm):
            carrier = out if isinstance(out, Tensor) else out.grad_carrier
            mask, hat, _ = carrier.grad_fn.saved_tensors
            n, shape = carrier.numel(), carrier.shape
            if hat is not None:
                bits = module.options.hat_bits(module.precision.activation)
                watched.hats[name].append(as_image(unpack_bits(hat, bits, n), shape))
            if not isinstance(out, Tensor):
                codes = as_image(unpack_bits(out.packed, out.bits, n), shape)
                assert torch.equal(out.floats(), codes.float() * out.step)
                watched.activations.append((codes, as_image(unpack_bits(mask, 1, n), shape)))
        elif isinstance(module, layers._WeightLayer) and not module.quantizes_gradient and out.requires_grad:
            out.register_hook(lambda g: saw_output_gradient(name, g))

    handles = [m.register_forward_hook(after_forward) for m in model.modules()]
    try:
        with (
            mock.patch.object(backend, "norm_backward_apply", norm_backward_apply),
            mock.patch.object(functions, "quantize_gradient", quantize_gradient),
            mock.patch.object(weight.LowBitWeight, "receive", spy_receive),
            mock.patch.object(weight, "quantile_quantize", spy_quantile),
        ):
            yield watched
    finally:
        for handle in handles:
            handle.remove()


def settle(value: Tensor, code: Tensor, levels: tuple[float, float, int], what: str) -> Tensor:
    """Check watched codes of a grid (lowest, step, top) against ``value``; differences only at boundaries."""
    low, step, top = levels
    t = (value.double() - low) / step
    own = t.round().clamp(0, top)
    wrong = own != code
    off = (t - (torch.minimum(own, code.double()) + 0.5)).abs() * step  # distance from the boundary between the two
    assert bool(((own - code).abs() <= 1).all()), f"{what}: a code is off by more than one"
    assert bool((off[wrong] <= BOUNDARY).all()), f"{what}: {int(wrong.sum())} codes differ, by up to {off[wrong].max()}"
    return low + code.double() * step


def settle_mask(inside: Tensor, distance: Tensor, mask: Tensor, what: str) -> Tensor:
    """Check a watched clip mask; it may differ where the value is within ``BOUNDARY`` of the clip."""
    wrong = inside != mask.bool()
    assert bool((distance[wrong] <= BOUNDARY).all()), f"{what}: clip mask wrong in {int(wrong.sum())} places"
    return mask.double()


def assert_close(got: Tensor, want: Tensor, what: str, tolerance: float = CLOSE, scale: float = 0.0) -> None:
    """Largest difference, relative to the largest wanted entry (or to ``scale``, if that is larger)."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, not {tuple(want.shape)}"
    size = max(float(want.abs().max()), scale, 1e-30)
    error = float((got.double() - want.double()).abs().max()) / size
    assert error <= tolerance, f"{what}: off by {error:.2e} of the largest entry"


class _StraightThrough(torch.autograd.Function):
    """Forward: the given value; backward: the gradient times the mask."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        ctx.save_for_backward(mask)
        return value.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return g * ctx.saved_tensors[0], None, None


class _Norm(torch.autograd.Function):
    """Batch norm whose backward only knows the rounded x_hat; shapes (N, C) or (N, C, H, W)."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, gamma: Tensor, beta: Tensor, mean: Tensor, std: Tensor, kept: Tensor, own: bool):
        ctx.save_for_backward(gamma, std, kept)
        ctx.own, ctx.axes, ctx.count = own, [d for d in range(y.dim()) if d != 1], y.numel() // y.shape[1]
        return (y - mean) / std * gamma + beta

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        gamma, std, kept = ctx.saved_tensors
        sum_g, sum_gx = (t.sum(ctx.axes, keepdim=True) for t in (g, g * kept))
        dx = g
        if ctx.own:
            dx = g - sum_g / ctx.count - kept * sum_gx / ctx.count
        return gamma / std * dx, sum_gx, sum_g, None, None, None, None


def _column(p: Tensor, dim: int) -> Tensor:
    return p.view(1, -1, *[1] * (dim - 2))


class Reference:
    """Runs a float model's own ``forward`` with its layers replaced by the reference's, in float64.

    Args:
        model: the float model (layers are nn.Conv2d, nn.Linear, nn.BatchNorm, nn.ReLU modules).
        lowbit: its converted twin, for codes, scales, float parameters and statistics as they are now.
        bits: s; gradients have ``min(s + 2, 16)``.
        absorbed: names of weight layers with a batch norm right behind them.
        ranged: names of layers that read floats on the running range (no activation before them).
        skipped: names of layers that stay full precision.
        weights: ``level`` or ``value``.
        clip: the c of ``h(z) = clip(z/c, 0, 1)``.
        hat_bits: ``bn_saved_bits``.
        quantize_input: the input is an image as 8-bit codes.
        centres: ``gradient_centres``.
    """

    def __init__(
        self,
        model: nn.Module,
        lowbit: nn.Module,
        bits: int,
        *,
        absorbed: set[str],
        ranged: set[str] = frozenset(),
        skipped: set[str] = frozenset(),
        weights: str = "level",
        clip: float = 4.0,
        hat_bits: int | None = None,
        quantize_input: bool = True,
        centres: str = "quantile",
    ) -> None:
        self.centres = centres
        self.bits, self.gradient_bits = bits, min(bits + 2, 16)
        self.hat_bits = hat_bits or min(max(bits - 1, 2), 8)
        self.absorbed, self.ranged, self.weights, self.clip = absorbed, ranged, weights, clip
        self.quantize_input, self.training = quantize_input, lowbit.training
        self.watched = Watched()
        self.lowbit = lowbit
        self.leaves: dict[str, Tensor] = {}  # name of a weight: effective weight; of a float parameter: its copy
        self.slopes: dict[str, Tensor] = {}
        self.accumulated: dict[str, Tensor] = {}
        self.statistics: dict[str, tuple[Tensor, Tensor]] = {}
        self.net = copy.deepcopy(model)
        for name, module in list(self.net.named_modules()):
            if any(name == s or name.startswith(f"{s}.") for s in skipped):
                for key, p in module.named_parameters():
                    self.leaves[f"{name}.{key}"] = p
                module.double()
                continue
            run: Callable[..., Tensor] | None = None
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                run = self._weight_layer(name, module)
            elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                run = self._norm(name, module)
            elif isinstance(module, nn.ReLU):
                run = self._activate
            if run is not None:
                module.forward = run  # type: ignore[method-assign]

    def __call__(self, x: Tensor, watched: Watched) -> Tensor:
        """The model's output, checked against what was watched in the same call of the converted model."""
        self.watched = copy.copy(watched)
        for name in ("input_codes", "ranges", "activations"):
            setattr(self.watched, name, list(getattr(watched, name)))
        x = x.double()
        if self.quantize_input:
            codes = self.watched.input_codes.pop(0)
            x = settle(x, codes, (0.0, 1 / 255, 255), "input")
        return self.net(x)

    def _leaf(self, name: str, value: Tensor) -> Tensor:
        self.leaves[name] = value.detach().double().requires_grad_()
        return self.leaves[name]

    def _weight_layer(self, name: str, module: nn.Conv2d | nn.Linear) -> Callable[[Tensor], Tensor]:
        layer = self.lowbit.get_submodule(name)
        k = unpack_bits(layer.weight.codes, self.bits, module.weight.numel()).view(module.weight.shape).double()
        m = float(layer.weight.scale)
        level = 2 * k / (2**self.bits - 1) - 1
        slope = 1 - (m * level) ** 2  # tanh'(x) where tanh(x) = m l
        if self.weights == "value":
            w, self.slopes[name] = torch.atanh(m * level), torch.ones_like(k)
        elif name in self.absorbed:
            w, self.slopes[name] = level, slope / m
        else:
            w, self.slopes[name] = m * level, slope
        weight = self._leaf(f"{name}.weight", w)
        bias = None if module.bias is None else self._leaf(f"{name}.bias", layer.bias)

        def run(x: Tensor) -> Tensor:
            if name in self.ranged:
                x = self._on_range(x)
            if isinstance(module, nn.Conv2d):
                y = F.conv2d(x, weight, None, module.stride, module.padding, module.dilation, module.groups)
            else:
                y = x @ weight.T
            if name not in self.absorbed:  # the products see the quantized gradient, the bias the float one
                y.register_hook(lambda g: self._quantized_gradient(name, g))
            if bias is not None:
                y = y + (bias.view(-1, 1, 1) if y.dim() == 4 else bias)
            if name in self.absorbed:
                y.register_hook(lambda g: self._quantized_gradient(name, g))
            return y

        return run

    def _quantized_gradient(self, name: str, g: Tensor) -> Tensor:
        """The once-per-layer quantizer on the tensor that enters both products."""
        assert len(self.watched.output_gradients[name]) == 1, f"{name}: gradient quantized more or less than once"
        before, after = self.watched.output_gradients[name].pop()
        if before.dim() == 2 and g.dim() == 4:
            before, after = (as_image(t.flatten(), g.shape) for t in (before, after))
        assert_close(before, g, f"{name}: gradient of its output")
        self._check_quantizer(before, after, f"{name}: gradient of its output", fused=name in self.absorbed)
        return after.double()

    def _check_quantizer(self, before: Tensor, after: Tensor, what: str, fused: bool = False) -> None:
        bits = self.gradient_bits
        if self.centres == "mean" and before.numel() > 2**bits:
            assert_means(before, after, bits, what)
            return
        fast = before.numel() > 2**bits and (fused or before.numel() >= FAST_FROM)
        want = (key16_quantiles if fast else exact_quantiles)(before, bits)
        assert torch.equal(after, want), f"{what}: not the {'fast' if fast else 'exact'} quantile quantizer's result"
        assert float(after.max()) == float(before.max()) and float(after.min()) == float(before.min()), what
        assert after.unique().numel() <= 2**bits, what

    def _norm(self, name: str, module: nn.BatchNorm1d | nn.BatchNorm2d) -> Callable[[Tensor], Tensor]:
        layer = self.lowbit.get_submodule(name)
        gamma, beta = (self._leaf(f"{name}.{key}", getattr(layer, key)) for key in ("weight", "bias"))
        running = layer.running_mean.double().clone(), layer.running_var.double().clone()

        def run(y: Tensor) -> Tensor:
            mean, var = running
            axes = [d for d in range(y.dim()) if d != 1]
            if self.training:
                data = y.detach()
                mean, var = data.mean(axes), data.var(axes, unbiased=False)
                count = y.numel() // y.shape[1]
                old_mean, old_var = self.statistics.get(name, running)
                unbiased = var * count / max(count - 1, 1)
                self.statistics[name] = (
                    old_mean + module.momentum * (mean - old_mean),
                    old_var + module.momentum * (unbiased - old_var),
                )
            mean, std, scale, shift = (_column(p, y.dim()) for p in (mean, (var + module.eps).sqrt(), gamma, beta))
            top, step = 2**self.hat_bits - 1, HAT_STEPS[self.hat_bits]
            codes = self.watched.hats[name].pop(0)
            kept = settle((y.detach() - mean) / std, codes, (-step * top / 2, step, top), f"{name}: kept x_hat")
            return _Norm.apply(y, scale, shift, mean, std, kept, self.training)

        return run

    def _activate(self, z: Tensor) -> Tensor:
        """``h(z) = clip(z/c, 0, 1)``, ``quantize_s``; the value is ``c h``."""
        codes, mask = self.watched.activations.pop(0)
        h, top = z.detach() / self.clip, 2**self.bits - 1
        value = settle(h, codes, (0.0, 1 / top, top), "activation")
        kept = settle_mask((h > 0) & (h < 1), torch.minimum(h.abs(), (h - 1).abs()), mask, "activation")
        return _StraightThrough.apply(z, self.clip * value, kept)

    def _on_range(self, x: Tensor) -> Tensor:
        """Uniform codes on the range [min(0, min x), max x] of the first batch, or on the watched running range."""
        codes, mask, low, high = self.watched.ranges.pop(0)
        data, top = x.detach(), 2**self.bits - 1
        if self.training:
            assert_close(torch.tensor([low, high]), torch.stack([data.min().clamp(max=0), data.max()]), "range")
        span = high - low
        value = settle((data - low) / span, codes, (0.0, 1 / top, top), "codes on a range")
        if mask is None:
            mask = torch.ones_like(codes)
        else:
            at = (data - low) / span
            mask = settle_mask((at >= 0) & (at <= 1), torch.minimum(at.abs(), (at - 1).abs()), mask, "range")
        return _StraightThrough.apply(x, low + span * value, mask.double())

    def check_gradients(self) -> None:
        """All gradients that the converted model holds after its backward pass; call once per backward pass."""
        parameters = dict(self.lowbit.named_parameters())
        for name, leaf in self.leaves.items():
            layer_name = name.rpartition(".")[0]
            assert leaf.grad is not None, name
            if layer_name in self.slopes and name.endswith("weight"):
                self._check_weight_gradient(layer_name, leaf.grad)
                leaf.grad = None  # accumulated in quantized form
                continue
            got = parameters[name].grad
            assert got is not None, name
            assert_close(got, leaf.grad, f"gradient of {name}", 2 * CLOSE)

    def _check_weight_gradient(self, name: str, grad: Tensor) -> None:
        """``Q(accumulated + dL/dl c'(x)/m)`` in s + 2 bits."""
        assert len(self.watched.weight_gradients[name]) == 1, f"{name}: weight gradient quantized more than once"
        before, after = self.watched.weight_gradients[name].pop()
        want = grad * self.slopes[name] + self.accumulated.get(name, torch.zeros(()))
        assert_close(before, want, f"{name}: weight gradient")
        self._check_quantizer(before, after, f"{name}: weight gradient")
        layer = self.lowbit.get_submodule(name)
        assert torch.equal(layer.weight.gradient.unpack(), after), f"{name}: weight gradient lost in packing"
        assert layer.weight.gradient.bits == self.gradient_bits
        self.accumulated[name] = after.double()

    def check_statistics(self) -> None:
        """Running mean and variance after training-mode forward passes."""
        for name, (mean, var) in self.statistics.items():
            layer = self.lowbit.get_submodule(name)
            assert_close(layer.running_mean, mean, f"{name}: running mean", scale=1.0)
            assert_close(layer.running_var, var, f"{name}: running variance", scale=1.0)

    def check_done(self) -> None:
        """Nothing that was watched was left unexplained."""
        left = [self.watched.input_codes, self.watched.ranges, self.watched.activations]
        left += [*self.watched.hats.values(), *self.watched.output_gradients.values()]
        assert not any(left), "the model rounded something that the reference does not"


def images(n: int, c: int, size: int, seed: int = 0) -> Tensor:
    """Images in [0, 1], off the 8-bit grid but clear of its rounding boundaries."""
    generator = torch.Generator().manual_seed(seed)
    k = torch.randint(0, 256, (n, c, size, size) if size else (n, c), generator=generator)
    return ((k + 0.8 * torch.rand(k.shape, generator=generator) - 0.4) / 255).clamp(0, 1)


def loss_of(y: Tensor, seed: int = 1) -> Tensor:
    """A scalar with a different, heavy-tailed gradient for every output."""
    generator = torch.Generator().manual_seed(seed)
    r = torch.randn(y.shape, generator=generator, dtype=torch.float32).to(y.dtype)
    return (y * r**3).sum() + 0.1 * (y**2 * r).sum()


def check_against_reference(
    model: nn.Module, lowbit: nn.Module, x: Tensor, bits: int, passes: int = 1, **reading: Any
) -> Reference:
    """Forward and backward of ``lowbit`` (converted from ``model``) against the reference; returns the reference."""
    reference = Reference(model, lowbit, bits, **reading)
    for i in range(passes):
        x_i = x.flip(0) if i else x
        with watching(lowbit) as watched:
            y = lowbit(x_i)
            loss_of(y, seed=i + 1).backward()
        want = reference(x_i, watched)
        assert_close(y.detach(), want.detach(), "output")
        y64 = want + (y.detach().double() - want).detach()  # the loss's own gradient at the same point
        loss_of(y64, seed=i + 1).backward()
        reference.check_gradients()
        reference.check_done()
    if reference.training:
        reference.check_statistics()
    return reference
