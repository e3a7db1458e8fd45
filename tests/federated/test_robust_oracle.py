"""``aggregation.robust`` and the attacks against byzfl, the library of Allouche et al. (``pip install byzfl``), as an oracle."""

import importlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from fedqssl.federated.algorithms.base import Round
from fedqssl.federated.optimizers.clip import with_clip
from fedqssl.federated.optimizers.krum import with_krum
from fedqssl.federated.optimizers.median import with_median
from fedqssl.federated.optimizers.robust import hostile
from fedqssl.federated.optimizers.trimmed import with_trimmed_mean
from fedqssl.federated.server.aggregate import average
from fedqssl.studies.attacks import ATTACKS, Known
from fedqssl.studies.attacks.attacks import BEYOND, Z

SEEDS = range(20)
KEY = "a.weight"


@pytest.fixture(scope="module")
def byzfl():
    """Its aggregators and attacks alone: the package imports torchvision, which need not fit the torch that is installed."""
    found = importlib.util.find_spec("byzfl")
    if found is None:
        pytest.skip("byzfl is not installed: pip install 'fedqssl[oracle]'")
    package = ModuleType("byzfl")
    package.__path__ = list(found.submodule_search_locations or ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "byzfl", package)
        yield SimpleNamespace(**{part: importlib.import_module(f"byzfl.{part}") for part in ("aggregators", "attacks")})
        for name in [name for name in sys.modules if name.startswith("byzfl.")]:
            del sys.modules[name]


def drawn(seed: int) -> torch.Tensor:
    """Vectors (K, 7) of 3 to 15 clients, some of them with values in common, as low-bit models have; a few are far away."""
    draws = torch.Generator().manual_seed(seed)
    count = int(torch.randint(3, 16, (), generator=draws))
    vectors = torch.randn(count, 7, generator=draws, dtype=torch.float64)
    vectors = (4 * vectors).round() / 4 if seed % 2 else vectors
    vectors[: hostile(count)] *= 50.0
    return vectors[torch.randperm(count, generator=draws)].float()


def aggregated(wrap, vectors: torch.Tensor, before: torch.Tensor | None = None) -> torch.Tensor:
    """What a server part that averages these models makes of them, all with the same share."""
    parts = {f"client-{i:02}": {KEY: x} for i, x in enumerate(vectors)}
    p = dict.fromkeys(parts, 1 / len(parts))
    start = {KEY: torch.zeros(vectors.shape[1]) if before is None else before}

    def server(state, arrived, operators):
        return state, Round(average(parts, p), lambda w: {}, weights=p, parts=parts)

    _, found = wrap(server)({}, SimpleNamespace(), SimpleNamespace(before=lambda: start))
    return found.aggregate[KEY]


@pytest.mark.parametrize("seed", SEEDS)
def test_the_median_is_theirs(byzfl, seed):
    """Torch's median of an even number is the lower one, numpy's the mean of two; byzfl's of arrays is numpy's."""
    vectors = drawn(seed)
    theirs = torch.from_numpy(byzfl.aggregators.Median()(vectors.numpy()))
    assert torch.allclose(aggregated(with_median, vectors), theirs)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_trimmed_mean_is_theirs(byzfl, seed):
    vectors = drawn(seed)
    theirs = byzfl.aggregators.TrMean(f=hostile(len(vectors)))(vectors)
    assert torch.allclose(aggregated(with_trimmed_mean, vectors), theirs, atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_multi_krum_is_theirs_where_the_hostile_ones_are_far(byzfl, seed):
    """Ours counts the K - f - 2 nearest, as the paper does, theirs one more; who is far away is left out by both."""
    vectors = drawn(seed)
    theirs = byzfl.aggregators.MultiKrum(f=hostile(len(vectors)))(vectors)
    ours = aggregated(with_krum, vectors, torch.ones(7))
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_clipping_is_theirs_at_the_median_of_the_lengths(byzfl, seed):
    vectors, before = drawn(seed), torch.randn(7, generator=torch.Generator().manual_seed(seed))
    steps = (vectors - before).double()
    bound = float(steps.norm(dim=1).quantile(0.5))
    theirs = before + byzfl.aggregators.Clipping(c=bound)(steps.clone()).mean(0)
    assert torch.allclose(aggregated(with_clip, vectors, before), theirs.float(), atol=1e-5)


def known(steps: torch.Tensor, malicious: int = 2) -> Known:
    received, zero = {KEY: torch.zeros_like(steps[0])}, torch.zeros_like(steps[0])
    return Known(received, {KEY: zero}, {str(i): {KEY: x} for i, x in enumerate(steps)}, malicious, torch.Generator())


@pytest.mark.parametrize("seed", range(5))
def test_alie_and_ipm_are_theirs(byzfl, seed):
    """Their deviation is the sample's, ours that of all; they add tau deviations where ours takes them away."""
    steps = drawn(seed).reshape(-1, 7, 1)
    count = len(steps)
    tau = -Z * ((count - 1) / count) ** 0.5
    theirs = byzfl.attacks.ALittleIsEnough(tau=tau)(steps.numpy())
    assert torch.allclose(ATTACKS["alie"].model(known(steps))[KEY], torch.from_numpy(theirs), atol=1e-4)
    theirs = byzfl.attacks.InnerProductManipulation(tau=BEYOND * count / 2)(steps)
    assert torch.allclose(ATTACKS["ipm"].model(known(steps))[KEY], theirs, atol=1e-4)
