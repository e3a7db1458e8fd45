"""SGD whose weights live in s bits: ``w^(Q)_{t+1} = Q(w^(Q)_t - a_t g^(Q)_t)`` (Algorithm 1, line 6)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from fedqssl.lowbit.buffer_pool import POOL
from fedqssl.lowbit.layers import LowBitConv2d, LowBitLinear, LowBitNorm
from fedqssl.lowbit.weight import LowBitWeight, PackedWeight
from fedqssl.quant import QuantizedTensor, compand_pack, compand_scale, quantile_quantize
from fedqssl.quant.compand import Domain, finer_scale, grown_scale
from fedqssl.quant.rounding import MAX_BITS, Rounding, check_bits, check_rounding

Rule = Literal["stored", "residual", "latent"]
RESIDUAL_BITS = 4
"""What the rule ``residual`` keeps beside s bits: noise of rounding falls with each bit, and 8 were not better than 4."""
ScalePolicy = Literal["max", "round", "grow", "ema"]


class NonFiniteError(ArithmeticError):
    """Losses or gradients were not finite for too many steps in a row; the message names the layer."""


def _domain(weight: LowBitWeight) -> Domain:
    """What stochastic rounding is unbiased for: what the layer computes with."""
    return "value" if weight.options.weights == "value" else "level"


class LowBitSGD(torch.optim.Optimizer):
    """Stochastic gradient descent on codes; works with torch's learning-rate schedules.

    Float parameters (batch norm, biases, skipped layers) get plain SGD with the same learning rate.

    Args:
        model: a model from ``to_lowbit``, at any precision.
        lr: learning rate.
        rule: what a client keeps per weight: ``stored``: s bits (the paper); ``residual``: s bits and an accumulator of
            ``residual_bits`` for what rounding dropped, its place within the code's cell; ``latent``: s bits and a float
            shadow copy.
        scale: what the layer's scale m does: ``round``: fixed as it was received, values beyond it clipped; ``grow``: fixed
            where a batch norm absorbs it, otherwise it follows the norm of the weights, so that they can leave their range;
            ``max``: ``max|c(x)|`` at every step (literal; inflates under noise); ``ema``: its exponential average.
        rounding: ``stochastic`` (unbiased; small steps survive on average) or ``nearest``.
        momentum: heavy-ball momentum; its buffer is kept in ``momentum_bits`` bits per weight, stochastically rounded.
        momentum_bits: see ``momentum``; counted by :meth:`state_bytes`.
        weight_decay: L2 penalty on x and on float parameters.
        proximal: mu of ``mu/2 |x - x_0|^2`` (FedProx), x_0 as at the first step; x_0 is kept as packed codes and counted.
        residual_bits: see ``rule``; together with s at most 16, so that wide codes get a smaller one.
        seed: for all stochastic rounding, that of gradients included: every layer draws on its own.
        max_skipped: steps with non-finite gradients are skipped and counted; this many in a row are an error.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        *,
        rule: Rule = "stored",
        scale: ScalePolicy = "grow",
        rounding: Rounding = "stochastic",
        momentum: float = 0.0,
        momentum_bits: int = 8,
        weight_decay: float = 0.0,
        proximal: float = 0.0,
        residual_bits: int = RESIDUAL_BITS,
        seed: int = 0,
        max_skipped: int = 10,
    ) -> None:
        if rule not in ("stored", "residual", "latent"):
            raise ValueError(f"rule must be 'stored', 'residual' or 'latent', not {rule!r}")
        if scale not in ("max", "round", "grow", "ema"):
            raise ValueError(f"scale must be 'max', 'round', 'grow' or 'ema', not {scale!r}")
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), not {momentum}")
        if not lr >= 0 or not proximal >= 0:
            raise ValueError(f"lr and proximal must not be negative, not {lr} and {proximal}")
        check_rounding(rounding)
        check_bits(momentum_bits)
        check_bits(residual_bits)
        self.weights = {n: m for n, m in model.named_modules() if isinstance(m, LowBitWeight)}
        self.norms = {n: m for n, m in model.named_modules() if isinstance(m, LowBitNorm)}
        anchors = [w.anchor for w in self.weights.values()]
        taken = {id(a) for a in anchors}
        self.floats = {n: p for n, p in model.named_parameters() if id(p) not in taken}
        if not anchors and not self.floats:
            raise ValueError("the model has no trainable parameters")
        groups: list[dict[str, Any]] = [{"params": anchors}, {"params": list(self.floats.values())}]
        super().__init__([g for g in groups if g["params"]], {"lr": lr, "weight_decay": weight_decay})
        self.rule, self.scale, self.rounding, self.proximal = rule, scale, rounding, proximal
        self.momentum, self.momentum_bits, self.residual_bits = momentum, momentum_bits, residual_bits
        self.max_skipped, self.skipped, self.skipped_in_a_row = max_skipped, 0, 0
        self.steps = 0
        self.generator = torch.Generator().manual_seed(seed)  # the CPU's: every device rounds by the same draws
        for name, layer in model.named_modules():
            if isinstance(layer, (LowBitConv2d, LowBitLinear)):
                layer.seed_gradient_rounding(seed, name)

    def start_at(self, floats: Mapping[str, Tensor]) -> None:
        """With the rule ``latent``: the float copies begin at these weights, by name, instead of at what their codes stand for.

        Raises:
            ValueError: the rule keeps no float copies.
        """
        if self.rule != "latent":
            raise ValueError(f"the rule {self.rule!r} keeps no float copies")
        for name, weight in self.weights.items():
            if name in floats:
                x = floats[name].detach().reshape(weight.shape)
                self.state[weight.anchor]["latent"] = x.to(weight.codes.device, torch.float32, copy=True)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients, those of codes included."""
        super().zero_grad(set_to_none)
        self._clear()

    def _clear(self) -> None:
        for weight in self.weights.values():
            weight.clear_gradient()
        for norm in self.norms.values():
            norm.finite = True

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step on every weight that has a gradient, then forget the gradients.

        Raises:
            NonFiniteError: after ``max_skipped`` steps in a row with gradients that are not finite.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        POOL.release()
        culprit = self._non_finite()
        if culprit is not None:
            self._skip(culprit)
            return loss
        self.skipped_in_a_row = 0
        self.steps += 1
        rate = {id(p): (g["lr"], g["weight_decay"]) for g in self.param_groups for p in g["params"]}
        for weight in self.weights.values():
            if weight.gradient is not None:
                self._step_codes(weight, *rate[id(weight.anchor)])
        for parameter in self.floats.values():
            if parameter.grad is not None:
                self._step_float(parameter, *rate[id(parameter)])
        self.zero_grad()
        return loss

    def _non_finite(self) -> str | None:
        """Name of a layer whose gradient is not finite; the last one in the model comes first in the backward pass."""
        found = [(n, layer.finite) for n, layer in (*self.weights.items(), *self.norms.items())]
        found += [(n, torch.isfinite(p.grad.sum())) for n, p in self.floats.items() if p.grad is not None]
        asked = [fine for _, fine in found if isinstance(fine, Tensor)]
        answers = iter(torch.stack(asked).tolist() if asked else ())  # one question to a GPU, not one for each
        bad = [n for n, fine in found if not (next(answers) if isinstance(fine, Tensor) else fine)]
        bad = [n for n in bad if not self._only_its_sum(n)]
        return bad[-1].removesuffix(".weight") if bad else None

    def _only_its_sum(self, name: str) -> bool:
        """Whether all entries of a float parameter's gradient are finite after all, though their sum overflowed."""
        p = self.floats.get(name)
        return p is not None and p.grad is not None and bool(torch.isfinite(p.grad).all())

    def _skip(self, culprit: str) -> None:
        self.skipped += 1
        self.skipped_in_a_row += 1
        self.zero_grad()
        if self.skipped_in_a_row >= self.max_skipped:
            raise NonFiniteError(
                f"{self.skipped_in_a_row} steps in a row had gradients that are not finite, last in layer "
                f"'{culprit}'; lower the learning rate or check the data"
            )

    def _step_codes(self, weight: LowBitWeight, lr: float, weight_decay: float) -> None:
        """``x' = x - a (g + decay x)``, ``k' = Q(x')`` on ``c(x')/m'``."""
        assert weight.gradient is not None
        state = self.state[weight.anchor]
        x: Tensor | None = None
        if self.rule == "stored" and not (weight_decay or self.proximal or self.momentum):
            target = weight.moved(lr)
        else:
            x = self._position(weight, state)
            target = x - lr * self._direction(weight, x, state, weight_decay)
        m = self._next_scale(weight, x, target)
        domain = _domain(weight)
        extra = self.extra_bits(weight)
        if extra and m:
            grid = weight.bits + extra, finer_scale(m, weight.bits, extra), weight.compander
            state["residual"] = weight.store_finer(
                compand_pack(target, *grid, self.rounding, domain, self.generator), m, extra
            )
            return
        rounding: Rounding = "nearest" if self.rule == "latent" else self.rounding
        weight.store(compand_pack(target, weight.bits, m, weight.compander, rounding, domain, self.generator), m)
        if self.rule == "latent":
            state["latent"] = target.float()

    @torch.no_grad()
    def draw_codes(self) -> None:
        """Before codes are sent: with the rule ``residual``, draw them so that on average they are where the weights are.

        The upper bits alone would be the nearest codes, and movements of less than half a cell would be lost to everybody else.
        What the rule keeps is forgotten.
        """
        for weight in self.weights.values():
            lower = self.state[weight.anchor].pop("residual", None)
            if lower is not None:
                x = weight.finer_parameters(lower, self.extra_bits(weight))
                how = weight.compander, self.rounding, _domain(weight), self.generator
                weight.store(compand_pack(x, weight.bits, weight.m, *how), weight.m)

    def extra_bits(self, weight: LowBitWeight) -> int:
        """Bits that the rule ``residual`` keeps for each of these weights."""
        return min(self.residual_bits, MAX_BITS - weight.bits) if self.rule == "residual" else 0

    def _direction(self, weight: LowBitWeight, x: Tensor, state: dict[str, Any], weight_decay: float) -> Tensor:
        """The gradient with weight decay, the proximal term and momentum."""
        assert weight.gradient is not None
        g = weight.gradient.unpack().to(x.dtype)
        if weight_decay:
            g = g + weight_decay * x
        if self.proximal:
            start = state.setdefault("start", weight.packed())
            g = g + self.proximal * (x - start.parameters())
        return self._with_momentum(g, state) if self.momentum else g

    def _position(self, weight: LowBitWeight, state: dict[str, Any]) -> Tensor:
        """Where the weight is in float64: what the codes stand for, plus what the rule keeps besides them."""
        if self.rule == "latent" and "latent" in state:
            latent: Tensor = state["latent"]
            return latent.double()
        if "residual" in state:
            return weight.finer_parameters(state["residual"], self.extra_bits(weight))
        return weight.parameters_of_codes()

    def _next_scale(self, weight: LowBitWeight, x: Tensor | None, target: Tensor) -> float:
        """The scale m' of the layer whose weights go from x (None: what its codes stand for) to the target."""
        m = weight.m
        if m == 0:
            return 0.0  # an all-zero layer stays zero
        if weight.options.weights == "literal" or self.scale == "max":
            return compand_scale(target, weight.compander)
        if self.scale == "ema":
            return 0.99 * m + 0.01 * compand_scale(target, weight.compander)
        if self.scale == "grow" and not weight.absorbed:
            x = weight.parameters_of_codes() if x is None else x
            return grown_scale(m, x, target, weight.compander)
        return m

    def _with_momentum(self, g: Tensor, state: dict[str, Any]) -> Tensor:
        """``v' = mu v + g``, kept as quantile codes of ``momentum_bits``."""
        if "momentum" in state:
            kept: QuantizedTensor = state["momentum"]
            g = self.momentum * kept.dequantize().to(g.dtype) + g
        q = quantile_quantize(g, self.momentum_bits, rounding="stochastic", generator=self.generator)
        state["momentum"] = q
        return q.dequantize().to(g.dtype)

    def _step_float(self, p: Tensor, lr: float, weight_decay: float) -> None:
        assert p.grad is not None
        g = p.grad if not weight_decay else p.grad + weight_decay * p
        state = self.state[p]
        if self.proximal:
            g = g + self.proximal * (p - state.setdefault("start", p.clone()))
        if self.momentum:
            v = state.get("velocity")
            g = g if v is None else self.momentum * v + g
            state["velocity"] = g.clone()
        p.sub_(g, alpha=lr)

    def state_bytes(self) -> int:
        """Bytes the optimiser keeps between steps beyond the weights' own codes: packed codes, centres, float copies."""
        total = 0
        for state in self.state.values():
            for value in state.values():
                if isinstance(value, QuantizedTensor):
                    total += (value.codes.numel() * value.bits + 7) // 8 + 4 * value.codebook.numel()
                elif isinstance(value, PackedWeight):
                    total += value.codes.numel() + 4  # the table follows from the scale
                elif isinstance(value, Tensor):
                    total += value.numel() * value.element_size()
                else:
                    total += 4
        return total
