import pytest
import torch
from torch import nn

from fedqssl.data.images import DataError
from fedqssl.data.scenes import CLASSES, scenes
from fedqssl.evaluation.probe import linear_probe


def test_shape_balance_and_names():
    data = scenes(250)
    assert data.images.shape == (250, 3, 32, 32) and data.class_names == CLASSES and len(CLASSES) == 10
    assert torch.bincount(data.labels).tolist() == [25] * 10


def test_deterministic_in_split_and_seed_and_a_longer_set_starts_with_the_shorter():
    data = scenes(150, "train", 3)
    assert torch.equal(data.images, scenes(150, "train", 3).images)
    assert torch.equal(data.images[:37], scenes(37, "train", 3).images)
    others = [scenes(150, "test", 3), scenes(150, "train", 4)]
    assert all(not torch.equal(data.images[i], other.images[i]) for other in others for i in range(150))


@pytest.mark.parametrize("count, split", [(0, "train"), (5, "val")])
def test_bad_requests(count, split):
    with pytest.raises(DataError):
        scenes(count, split)


@pytest.mark.parametrize("l2", [0.1, 1.0])
def test_a_linear_classifier_on_pixels_fails(l2):
    train, test = scenes(1500, "train"), scenes(1000, "test")
    x, y = (
        data.images[:, :, ::2, ::2].flatten(1).float() for data in (train, test)
    )  # every other pixel: 4 times faster
    assert linear_probe(x, train.labels, y, test.labels, 10, l2=l2, max_iterations=30).accuracy < 0.4


def test_a_small_network_with_labels_succeeds():
    train, test = scenes(1200, "train"), scenes(500, "test")
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for c_in, c_out in ((3, 12), (12, 24), (24, 48)):
        layers += [nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(), nn.MaxPool2d(2)]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(48, 10))
    optimizer = torch.optim.Adam(net.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=120)
    for _ in range(3):
        for batch in torch.randperm(1200).split(30):
            loss = nn.functional.cross_entropy(net(train.images[batch] / 255), train.labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    net.eval()
    with torch.no_grad():
        accuracy = (net(test.images / 255).argmax(1) == test.labels).float().mean().item()
    assert accuracy > 0.85
