"""Per-class accuracy, confusion and calibration, by hand."""

import pytest
import torch

from fedqssl.evaluation.outcome import outcome


def test_by_hand():
    shares = torch.tensor([[0.9, 0.1, 0.0], [0.8, 0.2, 0.0], [0.3, 0.7, 0.0], [0.6, 0.4, 0.0]])
    found = outcome(shares, torch.tensor([0, 1, 1, 0]))
    assert found.accuracy == 0.75 and found.images == 4
    assert found.confusion.tolist() == [[2, 0, 0], [1, 1, 0], [0, 0, 0]]
    assert found.per_class() == [1.0, 0.5, None]
    # every answer in its own bin: |1 - .9|, |0 - .8|, |1 - .7|, |1 - .6|, each a quarter
    assert found.calibration_error == pytest.approx((0.1 + 0.8 + 0.3 + 0.4) / 4)


def test_perfect_certainty_is_calibrated():
    assert outcome(torch.eye(3), torch.arange(3)).calibration_error == 0


def test_without_test_images_nothing_is_known():
    found = outcome(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64))
    assert found.accuracy is None and found.calibration_error is None and found.images == 0
    assert found.per_class() == [None] * 3 and found.to_json()["confusion"] == [[0] * 3] * 3


def test_bad_shapes():
    with pytest.raises(ValueError, match="probabilities"):
        outcome(torch.eye(3), torch.arange(2))
    with pytest.raises(ValueError, match="classes"):
        outcome(torch.eye(3), torch.tensor([0, 1, 3]))
