import pytest
import torch

from fedqssl.data import parquet
from fedqssl.data.images import DataError, ImageSet, resized


def images(n: int = 4, c: int = 3, h: int = 2, w: int = 2) -> torch.Tensor:
    return torch.arange(n * c * h * w).reshape(n, c, h, w).to(torch.uint8)


def test_old_import_path_is_the_same_class():
    assert parquet.ImageSet is ImageSet and parquet.DataError is DataError and issubclass(DataError, ValueError)


def test_subset_keeps_order_labels_and_groups():
    data = ImageSet(images(), torch.tensor([0, 1, 2, 1]), ("a", "b", "c"), ("x", "y", "x", "z"))
    part = data.subset([3, 0])
    assert torch.equal(part.images, data.images[[3, 0]]) and part.labels.tolist() == [1, 0]
    assert part.groups == ("z", "x") and part.class_names == ("a", "b", "c") and part.num_classes == 3
    assert len(data.subset(torch.tensor([], dtype=torch.int64))) == 0
    assert ImageSet(images()).subset([1]).labels is None and ImageSet(images()).num_classes is None
    for bad in ([4], [-1], [[0]]):
        with pytest.raises(DataError, match="position"):
            data.subset(bad)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((images().float(),), "uint8"),
        ((images()[0],), "N, 1 or 3"),
        ((images(c=2),), "N, 1 or 3"),
        ((images(), torch.zeros(4)), "int64"),
        ((images(), torch.zeros(3, dtype=torch.int64)), "one per image"),
        ((images(), torch.tensor([0, -1, 0, 0])), "negative"),
        ((images(), torch.tensor([0, 2, 0, 0]), ("a", "b")), "label 2 has no name"),
        ((images(), None, None, ("x",)), "one group per image"),
    ],
)
def test_validation(arguments, message):
    with pytest.raises(DataError, match=message) as caught:
        ImageSet(*arguments)
    assert "\n" not in str(caught.value)


def test_resized_takes_the_centre_square():
    data = ImageSet(torch.full((2, 1, 4, 8), 7, dtype=torch.uint8), torch.tensor([0, 1]))
    data.images[..., :2] = 255  # outside the centre square
    small = resized(data, 2)
    assert small.images.shape == (2, 1, 2, 2) and small.images.unique().tolist() == [7]
    assert torch.equal(small.labels, data.labels) and resized(small, 2) is small
    with pytest.raises(DataError, match="size"):
        resized(data, 0)
