"""Scale ``small`` keeps the recipe of its committed cells, whatever the presets are tuned to."""

from pathlib import Path

import pytest

from fedqssl.config import load_config, load_run_config
from fedqssl.federated.protocol import protocol
from fedqssl.studies.paper.catalogue import Row
from fedqssl.studies.paper.plan import AS_IN_THE_PAPER, Plan
from fedqssl.studies.paper.scales import PAPER, SMALL

CELLS = Path(__file__).parents[3] / "docs" / "bench" / "small" / "cells"


@pytest.mark.parametrize("dataset, bits", [("cifar10", "config1"), ("cifar100", "config2")])
def test_small_is_what_its_cells_were_run_with(dataset, bits):
    cell = load_run_config(CELLS / f"{dataset}-{bits}-fed_qssl-seed0")
    base = SMALL.bases[dataset]
    where = {"data": cell.data, "images": cell.images}
    config = load_config(base.preset, {**base.changes, **AS_IN_THE_PAPER, "bits": SMALL.bits[bits], **where})
    assert protocol(config) == protocol(cell)


@pytest.mark.parametrize("scale", [SMALL, PAPER], ids=lambda scale: scale.name)
@pytest.mark.parametrize("algorithm", ["fed_avg", "fed_prox", "fed_paq"])
def test_supervised_rows_have_their_own_rate_and_a_scale_that_grows(scale, algorithm):
    """At scale ``small`` all rows keep the scale of the committed cells, so that these still make its tables."""
    plan = Plan(scale, {})
    supervised, ours = (plan.cell("cifar10", Row(name, "config1"), 0).config for name in (algorithm, "fed_qssl"))
    assert supervised.lr == 0.1 != ours.lr
    assert supervised.lowbit.scale == ours.lowbit.scale == ("round" if scale is SMALL else "grow")


def test_the_papers_presets_have_the_bits_of_their_tables():
    """Table 1 is CIFAR-10 with 4 to 12 bits, Table 3 CIFAR-100 with half 6 and half 12."""
    assert load_config("cifar10-paper").bits == PAPER.bits["config1"] == (4, 4, 6, 6, 6, 8, 8, 8, 12, 12)
    assert load_config("cifar100-paper").bits == PAPER.bits["config2"] == (6,) * 5 + (12,) * 5
