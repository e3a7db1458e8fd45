"""Scale ``small`` keeps the recipe of its committed cells, whatever the presets are tuned to."""

from pathlib import Path

import pytest

from fedqssl.config import load_config, load_run_config
from fedqssl.federated.protocol import protocol
from fedqssl.studies.paper.plan import AS_IN_THE_PAPER
from fedqssl.studies.paper.scales import SMALL

CELLS = Path(__file__).parents[3] / "docs" / "bench" / "small" / "cells"


@pytest.mark.parametrize("dataset, bits", [("cifar10", "config1"), ("cifar100", "config2")])
def test_small_is_what_its_cells_were_run_with(dataset, bits):
    cell = load_run_config(CELLS / f"{dataset}-{bits}-fed_qssl-seed0")
    base = SMALL.bases[dataset]
    where = {"data": cell.data, "images": cell.images}
    config = load_config(base.preset, {**base.changes, **AS_IN_THE_PAPER, "bits": SMALL.bits[bits], **where})
    assert protocol(config) == protocol(cell)
