"""Model cards travel with a file: they name data sets, and nothing of the machine that they were made on."""

import pytest

from fedqssl.maker.card import data_name


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("scenes", "scenes"),
        ("folder:/home/me/birds", "birds (folder)"),
        ("folder:birds/", "birds (folder)"),
        ("hf:someone/birds", "birds (hf)"),
        ("parquet:/data/cifar10", "cifar10 (parquet)"),
    ],
)
def test_a_data_set_is_named_without_its_path(spec, name):
    assert data_name(spec) == name
