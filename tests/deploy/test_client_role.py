"""A client's own side of a fleet: its labels, as the fleet numbers its classes."""

import pytest
import torch

from fedqssl.data.images import DataError, ImageSet
from fedqssl.deploy.client_role import FleetClient

IMAGES, LABELS = torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1, 0])


def test_labels_follow_the_names_of_the_classes():
    """What is class 0 at a client may be class 2 of the fleet."""
    part = ImageSet(IMAGES, LABELS, ("cat", "dog"))
    assert FleetClient._labels(part, ("bird", "dog", "cat")).tolist() == [2, 1, 1, 2]
    assert FleetClient._labels(part, None).tolist() == [0, 1, 1, 0]
    with pytest.raises(DataError, match="the fleet has no class 'cat'; its classes: bird, dog"):
        FleetClient._labels(part, ("bird", "dog"))
    with pytest.raises(DataError, match="these images have none"):
        FleetClient._labels(ImageSet(IMAGES), None)
