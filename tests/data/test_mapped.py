"""Large arrays stay in their file, give the same images and digests, and are shared with workers as they are."""

import numpy as np
import pytest
import torch

from fedqssl.data import mapped
from fedqssl.data.images import ImageSet
from fedqssl.data.mapped import place_in_npz, place_of, raw
from fedqssl.data.registry import load_dataset
from fedqssl.engines.shared_images import SharedImages
from fedqssl.runs.images_digest import images_digest

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (4000, 3, 8, 8), dtype=np.uint8)
LABELS = RNG.integers(0, 5, 4000)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    np.savez(tmp_path / "train.npz", labels=LABELS, images=IMAGES)
    np.savez(tmp_path / "test.npz", images=IMAGES[:10], labels=LABELS[:10])
    monkeypatch.setattr(mapped, "LARGE", 100_000)
    return tmp_path


def test_a_large_array_is_mapped_and_a_small_one_is_read(folder):
    train, test = (load_dataset(f"arrays:{folder}", split, size=8) for split in ("train", "test"))
    assert place_of(train.images).path == str(folder / "train.npz") and place_of(test.images) is None
    assert np.array_equal(train.images.numpy(), IMAGES) and np.array_equal(train.labels.numpy(), LABELS)
    assert place_of(train.images[:10]) is None  # a part is not the whole file


def test_the_digest_is_that_of_images_in_memory(folder):
    train = load_dataset(f"arrays:{folder}", "train", size=8)
    memory = ImageSet(torch.from_numpy(IMAGES), torch.from_numpy(LABELS))
    assert images_digest(train, train, None) == images_digest(memory, memory, None)
    assert b"".join(raw(train.images)) == IMAGES.tobytes()


@pytest.mark.parametrize(
    "save", [np.savez_compressed, lambda path, **a: np.savez(path, images=np.asfortranarray(a["images"]))]
)
def test_what_cannot_be_mapped_is_read(folder, save):
    save(folder / "train.npz", images=IMAGES)
    train = load_dataset(f"arrays:{folder}", "train", size=8)
    assert place_of(train.images) is None and np.array_equal(train.images.numpy(), IMAGES)


def test_a_file_that_was_cut_off_is_not_mapped(folder):
    path = folder / "train.npz"
    path.write_bytes(path.read_bytes()[:-100_000])
    with pytest.raises(ValueError, match="cannot be read"):
        load_dataset(f"arrays:{folder}", "train", size=8)


def test_workers_map_the_same_file_and_get_whole_numbers_aligned(folder):
    train = load_dataset(f"arrays:{folder}", "train", size=8)
    odd, big = torch.from_numpy(IMAGES[:999].reshape(-1)[:100_001].copy()), torch.arange(20_000)
    with SharedImages((train, odd, big)) as shared:
        paths = [place.path for place in shared.places]
        assert str(folder / "train.npz") in paths and len(set(paths)) == 2
        again, odd_again, big_again = shared.open()
        assert torch.equal(again.images, train.images) and torch.equal(odd_again, odd) and torch.equal(big_again, big)
        assert big_again.data_ptr() % 8 == 0
    assert place_in_npz(folder / "test.npz", "images") is None
