"""The classifier of a device: how it compares with floats, what it stores, and every step by itself."""

import math

import pytest
import torch
import torch.nn.functional as F

from fedqssl.evaluation import knn_accuracy
from fedqssl.evaluation.classifier import (
    feature_range,
    fit_device_classifier,
    folded_logistic,
    held_out_loss,
    on_grid,
    round_weights,
)
from fedqssl.evaluation.local import LowBitClassifier, empty_classifier
from fedqssl.evaluation.logistic import (
    DECAYS,
    UNJUDGED,
    Rotated,
    alike_folds,
    choose,
    choose_levels,
    fit_logistic,
    folds_of,
    logits_of,
)
from fedqssl.evaluation.outcome import outcome
from fedqssl.evaluation.probe import linear_probe
from fedqssl.lowbit import Precision, load_bytes, to_bytes


def features(
    n: int, d: int = 48, classes: int = 5, seed: int = 0, noise: float = 1.3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Like those of a network: positive, correlated, of sizes that differ fourfold, overlapping classes."""
    fixed = torch.Generator().manual_seed(99)
    centres, mix = torch.rand(classes, d, generator=fixed), torch.randn(d, d, generator=fixed) / d**0.5
    sizes = torch.logspace(-0.6, 0, d)[torch.randperm(d, generator=fixed)]
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return (centres[y] + noise * torch.randn(n, d, generator=g) @ mix).relu() * sizes, y


@pytest.mark.parametrize(("bits", "behind"), [(3, 0.08), (4, 0.03), (8, 0.01), (12, 0.01), (16, 0.01), (32, 0.01)])
def test_close_to_the_best_regression_in_floats(bits, behind):
    (x, y), (a, b) = features(400), features(4000, seed=1)
    best = max(linear_probe(x, y, a, b, 5, l2=l2).accuracy for l2 in (1e-3, 1e-2, 1e-1))
    assert 0.6 < best < 0.95
    assert fit_device_classifier(x, y, 5, bits).accuracy(a, b) > best - behind


@pytest.mark.parametrize("bits", [1, 4, 8, 11, 16, 32])
def test_it_is_stored_as_classifiers_always_were(bits):
    """The same layers, container and scale: what loads a classifier of old loads this one."""
    x, y = features(120)
    fitted = fit_device_classifier(x, y, 5, bits)
    blank = empty_classifier(x.shape[1], 5, Precision.for_bits(bits))
    load_bytes(blank, to_bytes(fitted.model, exact=True))
    copy = LowBitClassifier(blank.eval(), fitted.scale)
    assert torch.equal(copy.logits(x), fitted.logits(x)) and fitted.scale > 0
    assert fitted.logits(x).shape == (120, 5)


def test_the_device_computes_what_was_fitted():
    """At 16 bits the device's logits are those of the regression, standardisation and temperature folded in."""
    x, y = features(300)
    weight, bias = folded_logistic(x.double(), y, 5, torch.Generator().manual_seed(0))
    found = fit_device_classifier(x, y, 5, 16).logits(x)
    assert torch.allclose(found.double(), x.double() @ weight + bias, atol=5e-3)


def test_same_input_same_codes():
    x, y = features(150)
    first, second = (to_bytes(fit_device_classifier(x, y, 5, 4, seed=3).model) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("bits", [4, 8])
def test_scale_and_shift_of_features_do_not_matter(bits):
    (x, y), (a, b) = features(300), features(2000, seed=1)
    plain = fit_device_classifier(x, y, 5, bits).accuracy(a, b)
    assert fit_device_classifier(1e4 * x, y, 5, bits).accuracy(1e4 * a, b) == pytest.approx(plain, abs=0.01)
    assert fit_device_classifier(x - 2, y, 5, bits).accuracy(a - 2, b) == pytest.approx(plain, abs=0.03)


def test_probabilities_can_be_believed():
    """Few labels and many features: plain regression is far too sure of itself."""
    (x, y), (a, b) = features(120, d=96), features(4000, d=96, seed=1)
    found = outcome(fit_device_classifier(x, y, 5, 8).logits(a).softmax(1), b)
    assert found.calibration_error is not None and found.calibration_error < 0.1


def test_classes_without_labels_are_never_the_answer():
    x, y = features(200)
    for bits in (2, 4, 8, 32):
        fitted = fit_device_classifier(x, 2 * y, 12, bits)
        answers = fitted.logits(x).argmax(1)
        assert set(answers.tolist()) <= {0, 2, 4, 6, 8}
        assert fitted.accuracy(x, 2 * y) > 0.4


@pytest.mark.parametrize("bits", [1, 4, 8, 32])
def test_a_single_class_is_always_the_answer(bits):
    x, y = features(30)
    fitted = fit_device_classifier(x, torch.full_like(y, 3), 5, bits)
    assert fitted.accuracy(x, torch.full_like(y, 3)) == 1.0
    assert fitted.logits(x).isfinite().all()


@pytest.mark.parametrize("shots", [1, 2, 5])
@pytest.mark.parametrize("bits", [4, 8])
def test_few_labels_are_not_worse_than_neighbours_or_means(shots, bits):
    a, b = features(2000, seed=1, noise=0.8)
    ours, neighbours, means = [], [], []
    for seed in range(8):
        x, y = features(400, seed=10 + seed, noise=0.8)
        kept = torch.cat([(y == c).nonzero()[:shots, 0] for c in range(5)])
        x, y = x[kept], y[kept]
        ours.append(fit_device_classifier(x, y, 5, bits).accuracy(a, b))
        neighbours.append(knn_accuracy(x, y, a, b, k=min(20, len(x))))
        centres = torch.stack([x[y == c].mean(0) for c in range(5)])
        means.append(float((torch.cdist(a, centres).argmin(1) == b).double().mean()))
    assert sum(ours) / 8 > max(sum(neighbours), sum(means)) / 8 - 0.02


def test_constant_features_are_harmless():
    x, y = features(100)
    padded = torch.cat([x, torch.full((100, 3), 2.0)], 1)
    assert fit_device_classifier(padded, y, 5, 8).accuracy(padded, y) > 0.8
    flat = fit_device_classifier(torch.ones(50, 4), y[:50], 5, 8)
    assert flat.accuracy(torch.ones(50, 4), y[:50]) == pytest.approx(y[:50].bincount().max().item() / 50)


def test_wrong_input_says_so():
    x, y = features(20)
    with pytest.raises(ValueError, match="diverged"):
        fit_device_classifier(x * math.nan, y, 5, 4)
    with pytest.raises(ValueError, match="5 classes"):
        fit_device_classifier(x, y + 3, 5, 4)
    with pytest.raises(ValueError, match="labels"):
        fit_device_classifier(x, y[:5], 5, 4)


def test_regression_reaches_the_minimum_of_its_objective():
    x, y = features(200)
    u = ((x - x.mean(0)) / x.std(0)).double()
    rows = torch.ones(2, 200, dtype=torch.float64)
    rows[1, :80] = 0
    rotated = Rotated.of(u)
    solutions = fit_logistic(rotated, y, 5, 0.02, rows)
    assert torch.allclose(logits_of(rotated, solutions)[1], u @ rotated.basis @ solutions[1, :-1] + solutions[1, -1])
    for solution, kept in zip(solutions, rows > 0, strict=True):
        weight = (rotated.basis @ solution[:-1]).requires_grad_()
        bias = solution[-1].clone().requires_grad_()
        loss = F.cross_entropy(u[kept] @ weight + bias, y[kept]) + 0.01 * weight.square().sum()
        assert max(float(g.abs().max()) for g in torch.autograd.grad(loss, (weight, bias))) < 1e-4


def bursts(scenes: int = 8, frames: int = 10) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Looks, labels and scenes of two classes: every scene is photographed several times."""
    draws = torch.Generator().manual_seed(5)
    scene = torch.arange(2 * scenes).repeat_interleave(frames)
    middle = torch.randn(2 * scenes, 12, generator=draws) * torch.linspace(3, 0.5, 12)
    looks = middle[scene] + 0.02 * torch.randn(len(scene), 12, generator=draws)
    order = torch.randperm(len(scene), generator=draws)
    return looks[order], (scene >= scenes).long()[order], scene[order]


def test_look_alikes_are_held_out_together():
    looks, y, scene = bursts()
    fold = alike_folds(looks, y)
    for label in (0, 1):
        assert fold[y == label].bincount().tolist() == [20] * 4
    whole = [len(fold[scene == s].unique()) == 1 for s in range(16)]
    assert sum(whole) >= 14
    assert alike_folds(looks[:1], y[:1] * 0).tolist() == [0]


def test_remembering_scenes_is_no_merit():
    """Features that know the scene, and nothing about the class, look perfect in random folds."""
    looks, y, scene = bursts()
    draws = torch.Generator().manual_seed(7)
    memory = torch.nn.functional.one_hot(scene).float() + 0.01 * torch.randn(len(y), 16, generator=draws)
    sense = torch.randn(len(y), 16, generator=draws) + 1.0 * y[:, None]
    assert choose(memory - memory.mean(0), y, 2, draws).loss < 0.2
    assert held_out_loss(memory, y, looks) > 0.5 > held_out_loss(sense, y, looks)


def test_folds_spread_every_class():
    y = torch.tensor([0] * 9 + [1] * 4 + [2] * 2)
    fold = folds_of(y, 4, torch.Generator().manual_seed(0))
    counts = torch.stack([y[fold == f].bincount(minlength=3) for f in range(4)])
    assert int(counts.sum()) == 15 and (counts.amax(0) - counts.amin(0)).max() <= 1


def test_noise_wants_more_decay_than_signal():
    draws = torch.Generator().manual_seed(0)
    noise, y = torch.randn(200, 30, generator=draws), torch.randint(0, 4, (200,), generator=draws)
    clear = torch.eye(4)[y].repeat(1, 6) + 0.3 * torch.randn(200, 24, generator=draws)
    assert choose(noise, y, 4, draws).decay == DECAYS[0]
    assert choose((clear - clear.mean(0)) / clear.std(0), y, 4, draws).decay < DECAYS[0]
    assert choose(clear[:12], y[:12], 4, draws).decay == DECAYS[0]  # too few to choose by
    assert choose(noise[:4], torch.arange(4), 4, draws) == UNJUDGED


def test_the_grid_cuts_off_a_tail_where_that_pays():
    x = torch.rand(1000, 20, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 50.0
    assert feature_range(x, 4)[1] < 2 and feature_range(x, 12)[1] == 50.0
    assert feature_range(x, 12)[0] == 0.0 and -0.5 <= feature_range(x - 0.5, 4)[0] < -0.4
    low, high = feature_range(x, 4)
    assert len(on_grid(x, 4, low, high).unique()) == 16


@pytest.mark.parametrize("bits", [2, 4, 6])
def test_rounding_in_turn_changes_logits_less_than_rounding_alone(bits):
    x, _ = features(400)
    weight = torch.randn(48, 5, generator=torch.Generator().manual_seed(0)).double()
    rounded, m = round_weights(weight, x.double(), bits)
    top = 2**bits - 1
    code = (rounded / m + 1) * top / 2
    assert torch.allclose(code, code.round(), atol=1e-6) and 0 < m <= float(weight.abs().max()) * (1 + 1e-6)
    largest = float(weight.abs().max())
    nearest = (2 * ((weight / largest + 1) * top / 2).round() / top - 1) * largest
    centred = x.double() - x.double().mean(0)
    errors = [float((centred @ (w - weight)).square().mean()) for w in (rounded, nearest)]
    assert errors[0] < 0.75 * errors[1]


def leveled(fine: bool, n: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two coarse features and sixty fine ones; what tells the classes apart is in one of the two levels."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 3, (n,), generator=g)
    signal, coarse, many = torch.eye(3)[y], torch.randn(n, 3, generator=g), torch.randn(n, 60, generator=g)
    if fine:
        return torch.cat([coarse, many + 0.8 * signal.repeat(1, 20)], 1), y
    return torch.cat([coarse + 2 * signal, many], 1), y


@pytest.mark.parametrize("fine", [False, True])
def test_labels_decide_how_much_the_finer_level_counts(fine):
    (x, y), levels = leveled(fine, 120, 0), (3, 60)
    chosen, factor = choose_levels((x - x.mean(0)) / x.std(0), y, 3, torch.Generator().manual_seed(0), levels)
    r = float(factor[-1])
    assert factor[:3].tolist() == [1.0] * 3 and factor[3:].unique().tolist() == [r] and chosen.loss < math.log(3)
    assert r == 1.0 if fine else r == 0.25


def test_levels_are_folded_into_the_weights():
    """The device computes nothing more, and the finer level has not cost what it would have cost unweighed."""
    (x, y), (a, b) = leveled(False, 120, 0), leveled(False, 3000, 1)
    weight, bias = folded_logistic(x.double(), y, 3, torch.Generator().manual_seed(0), (3, 60))
    weighed, plain = (float(((a.double() @ w + c).argmax(1) == b).double().mean()) for w, c in (
        (weight, bias), folded_logistic(x.double(), y, 3, torch.Generator().manual_seed(0))))  # fmt: skip
    assert weighed > plain + 0.02
    assert fit_device_classifier(x, y, 3, 8, levels=(3, 60)).accuracy(a, b) == pytest.approx(weighed, abs=0.02)
    with pytest.raises(ValueError, match="levels of 3, 50 features do not add up to 63"):
        fit_device_classifier(x, y, 3, 8, levels=(3, 50))


def test_more_features_than_rows_are_rotated_as_by_svd():
    u = torch.randn(40, 1100, generator=torch.Generator().manual_seed(0)).double()
    u = u - u.mean(0)
    found = Rotated.of(u)
    values = torch.linalg.svd(u)[1][:39].square() / 40
    assert torch.allclose(found.spread.sort(descending=True).values, values)
    assert torch.allclose(found.values @ found.basis.T, u) and found.basis.shape == (1100, 39)
