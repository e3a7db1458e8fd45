"""The classifier of a device: logistic regression on the codes that the device will see, then rounding that repairs its errors.

Nothing is added to what a device computes or stores: one scale for the features, s-bit codes on one grid, a bias.

Legend: x (N, d) features, q(x) the features as the device sees them, W (d, C) weights, b (C,) bias, s bits, m scale of the grid.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from fedqssl.evaluation.local import LowBitClassifier, empty_classifier, fit_lowbit_classifier
from fedqssl.evaluation.logistic import Rotated, alike_folds, choose, choose_levels, fit_logistic
from fedqssl.lowbit import Precision
from fedqssl.lowbit.layers import LowBitLinear, RangeCodes
from fedqssl.quant.compand import IDENTITY as UNIFORM
from fedqssl.quant.compand import compand_codes, compand_pack, compand_scale, compand_values

ClassifierKind = Literal["regression", "sgd"]
Levels = tuple[int, ...] | None
"""How many features each level has, coarse to fine (``features = "pyramid"``); None: all features count alike."""
FULL = 32
LARGEST = 0.5
"""Largest weight of a device's layer; what is missing or too much goes into the features' scale. The layer's limit is 1."""
FAR_BELOW = 10.0
"""How far the logit of a class without labels lies below all others seen in training."""
PRIOR_ROWS = 10
"""Rows that the features' common spread counts for: with few labels, each feature's own is a guess."""
_SHARES = (1.0, 0.85, 0.7, 0.55, 0.45)
_TAILS = (2e-4, 1e-3, 3e-3, 0.01, 0.02, 0.04)
_SAMPLE = 30_000


def fit_device_classifier(
    x: Tensor, y: Tensor, num_classes: int, bits: int, *, seed: int = 0, levels: Levels = None
) -> LowBitClassifier:
    """Fit a linear classifier with s-bit weights on s-bit features; deterministic.

    1. The range of the features' grid is chosen for the least rounding error.
    2. Logistic regression on the rounded, standardised features; weight decay, temperature and how much finer levels count by
       cross-validation.
    3. Standardisation, temperature and levels are folded into weights and bias.
    4. Weights are rounded one feature after the other; what rounding changes, the features that follow make up for.

    Args:
        x: features (N, d).
        y: labels (N,) in [0, num_classes); classes without labels are allowed, and are never the answer.
        num_classes: C.
        bits: s, 1..16, or 32 for no rounding.
        seed: of the folds of cross-validation.
        levels: see :data:`Levels`.

    Raises:
        ValueError: features that are not finite, or labels that are out of range.
    """
    _check(x, y, num_classes)
    low, high = (0.0, 0.0) if bits == FULL else feature_range(x, bits)
    seen = x.double() if bits == FULL else on_grid(x.double(), bits, low, high)
    weight, bias = folded_logistic(seen, y, num_classes, torch.Generator().manual_seed(seed), levels)
    largest = float(weight.abs().max())
    scale = LARGEST / largest if largest > 0 else 1.0
    model = empty_classifier(x.shape[1], num_classes, Precision.for_bits(bits))
    layer = model.get_submodule("0")
    if isinstance(layer, LowBitLinear):
        rounded, m = round_weights(weight * scale, seen, bits)
        layer.weight.store(compand_pack(rounded.T, bits, m, UNIFORM), m)
        bias = bias + (seen @ (weight - rounded / scale)).mean(0)
        grid = next(module for module in model.modules() if isinstance(module, RangeCodes))
        grid.low, grid.high = (torch.tensor(end / scale, dtype=torch.float32) for end in (low, high))
    else:
        assert isinstance(layer, nn.Linear)
        layer.weight.data.copy_((weight.T * scale).atanh())  # a layer at 32 bits computes with tanh of its parameters
    with torch.no_grad():
        layer.bias.copy_(bias)  # type: ignore[union-attr]
    model.eval()
    return LowBitClassifier(model, scale)


def fit_classifier(
    kind: ClassifierKind, x: Tensor, y: Tensor, num_classes: int, bits: int, seed: int, levels: Levels = None
) -> LowBitClassifier:
    """A client's classifier: ``regression`` (:func:`fit_device_classifier`), or by ``sgd`` in its bits as the paper trains it."""
    if kind == "regression":
        return fit_device_classifier(x, y, num_classes, bits, seed=seed, levels=levels)
    return fit_lowbit_classifier(x, y, num_classes, bits, seed=seed)


def _check(x: Tensor, y: Tensor, num_classes: int) -> None:
    if x.ndim != 2 or y.shape != x.shape[:1] or not len(x):
        raise ValueError(f"features must be (N > 0, d) and labels (N,), not {tuple(x.shape)} and {tuple(y.shape)}")
    if not bool(torch.isfinite(x).all()):
        raise ValueError("features hold NaN or infinity; the model diverged, lower its learning rate")
    if not 0 <= int(y.min()) <= int(y.max()) < num_classes:
        raise ValueError(f"labels span [{int(y.min())}, {int(y.max())}], but there are {num_classes} classes")


def on_grid(x: Tensor, bits: int, low: float, high: float) -> Tensor:
    """Features as a device sees them: the nearest of ``2^s`` values from ``low`` to ``high``."""
    top = 2**bits - 1
    step = (high - low) / top if high > low else 1.0
    return ((x - low) / step).round().clamp(0, top) * step + low


def feature_range(x: Tensor, bits: int) -> tuple[float, float]:
    """Ends of the grid with the least mean squared error, which may cut off both tails."""
    values = x.flatten().float()
    least, most = float(values.min()), float(values.max())
    if bits > 8:  # steps are so small that nothing is won by cutting off tails
        return min(least, 0.0), most
    some = values[:: max(1, len(values) // _SAMPLE)].contiguous()
    tails = torch.tensor(_TAILS)
    lows = [min(least, 0.0), *torch.quantile(some, tails).tolist()]
    highs = [most, *torch.quantile(some, 1 - tails).tolist()]
    pairs = [(low, high) for low in lows for high in highs if low < high] or [(least, most)]
    return min(pairs, key=lambda ends: float((on_grid(some, bits, *ends) - some).square().mean()))


def folded_logistic(
    x: Tensor, y: Tensor, num_classes: int, generator: torch.Generator, levels: Levels = None
) -> tuple[Tensor, Tensor]:
    """Calibrated logistic regression on standardised features, as weights (d, C) and bias (C,) for the features as they are.

    With ``u = a (x - mean) / std``, solution (V, c) and sharpness t: ``W = t a V / std``, ``b = t c - mean W``. Level i of the
    features has ``a = r^i``: a finer level gets larger weights only if it repays a decay that is ``r^-2`` times stronger.
    """
    weight, bias = x.new_zeros(x.shape[1], num_classes), x.new_zeros(num_classes)
    classes, label = torch.unique(y, return_inverse=True)
    if len(classes) > 1:
        mean, std = x.mean(0), _spread(x)
        u = (x - mean) / std
        if levels is None:
            chosen = choose(u, label, len(classes), generator)
        else:
            chosen, a = choose_levels(u, label, len(classes), generator, levels)
            u, std = a * u, std / a
        rotated = Rotated.of(u)
        everyone = u.new_ones(1, len(u))
        solution = chosen.sharpness * fit_logistic(rotated, label, len(classes), chosen.decay, everyone)[0]
        weight[:, classes] = rotated.basis @ solution[:-1] / std[:, None]
        bias[classes] = solution[-1] - mean @ weight[:, classes]
    lowest = float((x @ weight[:, classes] + bias[classes]).min())
    unseen = torch.ones(num_classes, dtype=torch.bool, device=x.device).index_fill_(0, classes, False)
    bias[unseen] = lowest - FAR_BELOW
    return weight, bias


def logistic_accuracy(
    x: Tensor, y: Tensor, test_x: Tensor, test_y: Tensor, num_classes: int, seed: int = 0, levels: Levels = None
) -> float:
    """Test accuracy of :func:`folded_logistic` where the features are; the test rows play no part in the fit."""
    y, test_y = y.to(x.device), test_y.to(test_x.device)
    weight, bias = folded_logistic(x, y, num_classes, torch.Generator().manual_seed(seed), levels)
    return float(((test_x @ weight + bias).argmax(1) == test_y).double().mean())


def held_out_loss(x: Tensor, y: Tensor, looks: Tensor, seed: int = 0, levels: Levels = None) -> float:
    """Log-loss of rows held out from :func:`folded_logistic` in cross-validation: how well features tell the labels apart.

    Rows that look alike by ``looks`` (N, d) are held out together (:func:`alike_folds`).
    """
    classes, label = torch.unique(y, return_inverse=True)
    u, generator = (x - x.mean(0)) / _spread(x), torch.Generator().manual_seed(seed)
    folds = alike_folds(looks, label)
    if levels is None:
        return choose(u, label, len(classes), generator, folds).loss
    return choose_levels(u, label, len(classes), generator, levels, folds)[0].loss


def _spread(x: Tensor) -> Tensor:
    """Standard deviation of each feature, (d,); as if a few more rows had been seen in which all features spread alike."""
    variance = x.var(0, unbiased=False)
    shared = variance.mean().clamp(min=1e-30)
    return ((len(x) * variance + PRIOR_ROWS * shared) / (len(x) + PRIOR_ROWS)).sqrt()


def round_weights(weight: Tensor, x: Tensor, bits: int) -> tuple[Tensor, float]:
    """Round weights (d, C) to a uniform grid over [-m, m] so that the logits of the features x (N, d) change least.

    Frantar et al., "GPTQ", ICLR 2023: features in order of their spread; the error of each is made up for by those that follow,
    through the inverse of ``H = Cov(x)``. Of several m, at most ``max|W|``, the best one is taken; the bias takes up the mean.

    Returns:
        The rounded weights, and m.
    """
    centred = x - x.mean(0)
    hessian = centred.T @ centred / len(x)
    damping = 0.01 * hessian.diagonal().mean().clamp(min=1e-12)
    order = hessian.diagonal().argsort(descending=True, stable=True)
    hessian = hessian[order][:, order] + damping * torch.eye(len(hessian), dtype=x.dtype)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor = torch.linalg.cholesky(inverse, upper=True)  # (d, d)
    largest = compand_scale(weight, UNIFORM)
    scales = [share * largest for share in (_SHARES if bits <= 8 else _SHARES[:1])]
    best, least = weight, float("inf")
    chosen = largest
    for m in map(float, torch.tensor(scales)):
        rounded = _in_turn(weight[order], factor, bits, m)[order.argsort()]
        error = float((centred @ (rounded - weight)).square().mean())
        if error < least:
            best, chosen, least = rounded, m, error
    return best, chosen


def _in_turn(weight: Tensor, factor: Tensor, bits: int, m: float) -> Tensor:
    """Round row by row; ``w_k -= U_jk / U_jj (w_j - q_j)`` for the rows k that follow row j."""
    weight, table = weight.clone(), compand_values(bits, m, UNIFORM)
    for j, row in enumerate(weight):
        rounded = table[compand_codes(row, bits, m, UNIFORM).long()]
        weight[j + 1 :] -= torch.outer(factor[j, j + 1 :], (row - rounded) / factor[j, j])
        weight[j] = rounded
    return weight


__all__ = [
    "ClassifierKind",
    "Levels",
    "feature_range",
    "fit_classifier",
    "fit_device_classifier",
    "folded_logistic",
    "held_out_loss",
    "logistic_accuracy",
    "on_grid",
    "round_weights",
]
