"""Multinomial logistic regression that converges, with its weight decay and temperature chosen by cross-validation.

Legend: u (N, d) standardised features, y (N,) labels, F folds, C classes, e eigenvalues of the features' covariance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DECAYS = (1.0, 0.25, 0.06, 0.015, 4e-3, 1e-3, 2.5e-4)
"""Weight decays that are tried, strongest first."""
FOLDS = 4
FEW = 4
"""With fewer labels a class than this, held-out losses are noise: the strongest decay is taken, close to class means."""
MOST_ROWS = 1500
"""Rows that cross-validation looks at; the decay that suits them suits more rows when scaled by their number."""
LONG = 1000
"""With more features than this, and fewer rows, an eigenvalue problem of the rows replaces the SVD: 2.3 against 5.2 CPU seconds
for 2,001 rows of 2,688 features in float64. Shorter ones keep the SVD, and with it their bytes."""


@dataclass(frozen=True, eq=False)
class Rotated:
    """Features in the basis of their principal directions, where the loss is nearly round and L-BFGS needs few steps."""

    values: Tensor
    basis: Tensor
    spread: Tensor

    @classmethod
    def of(cls, u: Tensor) -> Rotated:
        """Rotate features (N, d) of mean 0; directions that nothing is seen of are left out."""
        n, d = u.shape
        if n >= d:
            spread, basis = torch.linalg.eigh(u.double().T @ u.double() / n)
        elif d <= LONG:
            _, s, vh = torch.linalg.svd(u, full_matrices=False)
            spread, basis = s.double().square() / n, vh.T
        else:
            spread, rows = torch.linalg.eigh(u.double() @ u.double().T / n)
            basis = u.double().T @ rows / (n * spread.clamp(min=1e-30)).sqrt()
        kept = spread > 1e-10 * spread.max().clamp(min=1e-20)
        basis = basis[:, kept].to(u.dtype).contiguous()  # (d, r)
        return cls(u @ basis, basis, spread[kept].to(u.dtype))


def fit_logistic(
    rotated: Rotated,
    y: Tensor,
    num_classes: int,
    decay: float,
    rows: Tensor,
    start: Tensor | None = None,
    steps: int = 200,
) -> Tensor:
    """Minimise ``1/|rows| sum_{i in rows} -log softmax(u_i W + b)[y_i] + decay/2 |W|^2`` once for each set of rows, all together.

    Args:
        rotated: features.
        y: labels (N,).
        num_classes: C.
        decay: weight decay.
        rows: (F, N), 1 where a fold trains on a row, else 0.
        start: a solution to start from, as returned.
        steps: a bound on L-BFGS, which stops by itself when converged.

    Returns:
        (F, r + 1, C): weights in the rotated basis, and the bias in the last row.
    """
    folds, n = rows.shape
    steep = (rotated.spread / 4 + decay).rsqrt()  # the loss in p = W / steep curves alike in all directions
    v = torch.cat([rotated.values * steep, rotated.values.new_ones(n, 1)], 1)  # (N, r + 1)
    share = (rows / rows.sum(1, keepdim=True)).T  # (N, F)
    target = v.new_zeros(n, num_classes).scatter_(1, y[:, None], 1.0)
    stretch = torch.cat([steep, steep.new_ones(1)])[:, None]  # (r + 1, 1)
    penalty = torch.cat([decay * steep.square(), steep.new_zeros(1)])[:, None]
    p = (v.new_zeros(folds, v.shape[1], num_classes) if start is None else start / stretch).contiguous()
    p.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [p], max_iter=steps, history_size=10, tolerance_grad=1e-5, tolerance_change=1e-8, line_search_fn="strong_wolfe"
    )

    @torch.no_grad()
    def objective() -> Tensor:
        flat = p.permute(1, 0, 2).reshape(v.shape[1], -1)  # (r + 1, F C)
        log_p = (v @ flat).view(n, folds, num_classes).log_softmax(2)
        loss = -(log_p * target[:, None]).sum(2).mul(share).sum() + (penalty * p.square()).sum() / 2
        error = (log_p.exp() - target[:, None]) * share[:, :, None]  # (N, F, C)
        gradient = (v.T @ error.view(n, -1)).view(-1, folds, num_classes).permute(1, 0, 2)
        p.grad = (gradient + penalty * p).contiguous()
        return loss

    optimizer.step(objective)  # type: ignore[no-untyped-call]
    return p.detach() * stretch


def logits_of(rotated: Rotated, solution: Tensor) -> Tensor:
    """Logits (F, N, C) of every row under every fold's solution."""
    return rotated.values @ solution[:, :-1] + solution[:, -1:]


def folds_of(y: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """The fold (N,) that each row is held out in: every class is spread over the folds as evenly as its size allows."""
    order = torch.randperm(len(y), generator=generator).to(y.device)
    order = order[y[order].argsort(stable=True)]  # by class, each in random order
    fold = torch.empty_like(y)
    fold[order] = torch.arange(len(y), device=y.device) % count
    return fold


def alike_folds(looks: Tensor, y: Tensor, count: int = FOLDS) -> Tensor:
    """The fold (N,) that each row is held out in, with what looks alike in one fold.

    Photos of one scene are nearly the same, and random folds put them on both sides: then the features that remember best seem to
    be the best ones. Every class is cut into equal parts along the direction in which its looks (N, d) differ most.
    """
    fold = torch.empty_like(y)
    for label in range(int(y.max()) + 1):
        index = (y == label).nonzero()[:, 0]
        if not len(index):
            continue
        own = looks[index] - looks[index].mean(0)
        along = own @ torch.linalg.svd(own, full_matrices=False)[2][0]
        parts = torch.arange(len(index), device=y.device) * count // len(index)
        # classes of a few rows begin at different folds, so that none of these stays empty
        fold[index[along.argsort()]] = (parts + label) % count
    return fold


@dataclass(frozen=True)
class Chosen:
    """What cross-validation chose: weight decay, and the factor on logits that makes held-out probabilities honest."""

    decay: float
    sharpness: float
    loss: float


RATIOS = (1.0, 0.5, 0.25)
"""How much the next finer level of the features may count, relative to the level before."""
UNJUDGED = Chosen(DECAYS[0], 1.0, float("inf"))
"""For one label per class."""


def choose(
    u: Tensor, y: Tensor, num_classes: int, generator: torch.Generator, held_out: Tensor | None = None
) -> Chosen:
    """Weight decay with the least held-out loss over folds, and the temperature that fits the held-out logits.

    ``held_out`` is the fold of each row; by default folds are random and stratified.

    The path starts at the strongest decay, each solution where the last one ended, and stops once the loss has risen twice. A
    class with a single label cannot be judged; if all are like that, the choice is :data:`UNJUDGED`.
    """
    n = len(u)
    if n > MOST_ROWS:
        kept = torch.randperm(n, generator=generator)[:MOST_ROWS].to(u.device)
        u, y, held_out = u[kept], y[kept], None if held_out is None else held_out[kept]
    judged = y.bincount(minlength=num_classes)[y] > 1
    if not bool(judged.any()):
        return UNJUDGED
    u = u.float()  # a choice needs no more
    held_out = folds_of(y, FOLDS, generator) if held_out is None else held_out
    rows = torch.stack([held_out != f for f in range(FOLDS)]).to(u.dtype)
    rotated = Rotated.of(u)
    best, solution, rises = UNJUDGED, None, 0
    for decay in DECAYS if len(y) >= FEW * num_classes else DECAYS[:1]:
        solution = fit_logistic(rotated, y, num_classes, decay, rows, solution, steps=15)
        out = logits_of(rotated, solution)[held_out, torch.arange(len(y), device=y.device)]  # (N, C)
        sharpness, loss = _sharpness(out[judged], y[judged])
        if loss < best.loss:
            best, rises = Chosen(decay * len(u) / n, sharpness, loss), 0
        else:
            rises += 1
        if rises == 2:
            break
    return best


def choose_levels(
    u: Tensor,
    y: Tensor,
    num_classes: int,
    generator: torch.Generator,
    levels: Sequence[int],
    held_out: Tensor | None = None,
) -> tuple[Chosen, Tensor]:
    """How much each finer level of the features counts, by the least held-out loss; with what :func:`choose` chooses there.

    Returns:
        The choice, and the factor of each feature (d,): ``r^i`` for those of level i.
    """
    if sum(levels) != u.shape[1]:
        raise ValueError(f"levels of {', '.join(map(str, levels))} features do not add up to {u.shape[1]}")
    level = torch.arange(len(levels)).repeat_interleave(torch.tensor(levels)).to(u.device, u.dtype)
    state, best, factor = generator.get_state(), UNJUDGED, torch.ones_like(level)
    for r in RATIOS:
        generator.set_state(state)  # the same folds for all
        found = choose(u * r**level, y, num_classes, generator, held_out)
        if found.loss < best.loss:
            best, factor = found, r**level
    return best, factor


def _sharpness(logits: Tensor, y: Tensor) -> tuple[float, float]:
    """The factor on logits with the least log-loss, and that loss."""
    factors = torch.logspace(-1.5, 1.0, 41, dtype=logits.dtype).to(logits.device)
    losses = torch.stack([torch.nn.functional.cross_entropy(f * logits, y) for f in factors])
    at = int(losses.argmin())
    return float(factors[at]), float(losses[at])


__all__ = ["Chosen", "Rotated", "alike_folds", "choose", "choose_levels", "fit_logistic", "folds_of", "logits_of"]
