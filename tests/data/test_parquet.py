import io
import json
import sys
import time
from pathlib import Path

import pytest
import torch

from fedqssl.data import DataError, DataWarning, read_parquet
from fedqssl.data.images import at_most, drawn
from fedqssl.data.registry import is_labeled, load_dataset

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
Image = pytest.importorskip("PIL.Image")

REAL = Path(__file__).parents[3] / "shared" / "data"


def pixels(n: int, size: int = 4, seed: int = 0) -> torch.Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, 3, size, size), dtype=torch.uint8, generator=g)


def png(image: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(buffer, "PNG")
    return buffer.getvalue()


def write(path: Path, cells: list, image: str = "img", names: dict | None = None, **columns: list) -> None:
    """Write one shard in the Hugging Face layout; a cell is an image tensor or raw bytes."""
    data = [c if isinstance(c, bytes | None) else png(c) for c in cells]
    struct = pa.array(
        [None if d is None else {"bytes": d, "path": None} for d in data],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({**columns, image: struct})
    if names:
        features = {key: {"names": value, "_type": "ClassLabel"} for key, value in names.items()}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path)


@pytest.mark.parametrize("image", ["img", "image"])
def test_round_trip_over_shards_in_order(tmp_path, image):
    images, labels = pixels(7), [3, 1, 0, 2, 1, 1, 0]
    names = {"label": ["a", "b", "c", "d"]}
    write(tmp_path / "train-00001-of-00002.parquet", list(images[4:]), image, names, label=labels[4:])
    write(tmp_path / "train-00000-of-00002.parquet", list(images[:4]), image, names, label=labels[:4])
    data = read_parquet(tmp_path)
    assert torch.equal(data.images, images) and data.images.is_contiguous() and len(data) == 7
    assert data.labels.tolist() == labels and data.labels.dtype == torch.int64
    assert data.class_names == ("a", "b", "c", "d")


@pytest.mark.parametrize("limit, expected", [(1, 1), (4, 4), (5, 5), (100, 7)])
def test_limit_crosses_shards(tmp_path, limit, expected):
    images = pixels(7)
    write(tmp_path / "train-0.parquet", list(images[:4]), label=[0] * 4)
    write(tmp_path / "train-1.parquet", list(images[4:]), label=[1] * 3)
    data = read_parquet(str(tmp_path), limit=limit)
    assert torch.equal(data.images, images[:expected]) and data.class_names is None


def test_only_the_images_that_are_drawn_are_decoded(tmp_path):
    """The same ones as of the decoded set; what the others hold does not matter."""
    images = list(pixels(9))
    write(tmp_path / "train-0.parquet", images[:5], label=list(range(5)))
    write(tmp_path / "train-1.parquet", images[5:], label=list(range(5, 9)))
    whole, some = read_parquet(tmp_path), read_parquet(tmp_path, images=4)
    assert torch.equal(some.images, at_most(whole, 4).images) and some.labels.tolist() == drawn(9, 4).tolist()
    assert len(read_parquet(tmp_path, images=9)) == len(read_parquet(tmp_path, images=100)) == 9
    assert len(read_parquet(tmp_path, limit=6, images=4)) == 4
    left_out = next(row for row in range(5) if row not in some.labels)
    images[left_out] = b"damaged"
    write(tmp_path / "train-0.parquet", images[:5], label=list(range(5)))
    assert torch.equal(read_parquet(tmp_path, images=4).images, some.images)
    with pytest.raises(DataError, match=f"row {left_out}"):
        read_parquet(tmp_path)
    with pytest.warns(DataWarning):
        assert len(load_dataset(f"parquet:{tmp_path}", "train", on_bad="skip", size=4, images=4)) == 4


def test_fine_and_coarse_labels(tmp_path):
    names = {"fine_label": ["rose", "trout"], "coarse_label": ["plant", "fish"]}
    columns = {"fine_label": [1, 0], "coarse_label": [0, 1]}
    write(tmp_path / "test-0.parquet", list(pixels(2)), names=names, **columns)
    fine, coarse = read_parquet(tmp_path, "test"), read_parquet(tmp_path, "test", label="coarse_label")
    assert fine.labels.tolist() == [1, 0] and fine.class_names == ("rose", "trout")
    assert coarse.labels.tolist() == [0, 1] and coarse.class_names == ("plant", "fish")


def test_unlabeled_set(tmp_path):
    write(tmp_path / "train-0.parquet", list(pixels(2)))
    data = read_parquet(tmp_path)
    assert data.labels is None and data.class_names is None
    assert not is_labeled(f"parquet:{tmp_path}")
    write(tmp_path / "train-0.parquet", list(pixels(2)), label=[0, 1])
    assert is_labeled(f"parquet:{tmp_path}")


def test_grey_and_palette_images_become_rgb(tmp_path):
    cells = []
    for mode in ("L", "P", "RGBA"):
        buffer = io.BytesIO()
        Image.new("RGB", (4, 4), (9, 9, 9)).convert(mode).save(buffer, "PNG")
        cells.append(buffer.getvalue())
    write(tmp_path / "train-0.parquet", cells)
    assert read_parquet(tmp_path).images.shape == (3, 3, 4, 4)


def test_odd_metadata_is_ignored(tmp_path):
    write(tmp_path / "train-0.parquet", list(pixels(1)), label=[0])
    table = pq.read_table(tmp_path / "train-0.parquet")
    for text in ("not json", "[]", '{"info": null}', '{"info": {"features": {"label": {"names": []}}}}'):
        pq.write_table(table.replace_schema_metadata({"huggingface": text}), tmp_path / "train-0.parquet")
        assert read_parquet(tmp_path).class_names is None


def failure(*args, **kwargs) -> str:
    with pytest.raises(DataError) as caught:
        read_parquet(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_folder_and_split(tmp_path):
    assert "no such folder" in failure(tmp_path / "nowhere")
    assert "no <split>-*.parquet files" in failure(tmp_path)
    write(tmp_path / "test-0.parquet", list(pixels(1)))
    assert "no split 'train'; splits here: test" in failure(tmp_path)


def test_missing_shard(tmp_path):
    write(tmp_path / "train-00000-of-00003.parquet", list(pixels(1)))
    assert "1 of 3 'train' shards" in failure(tmp_path)


def test_missing_columns(tmp_path):
    write(tmp_path / "train-0.parquet", list(pixels(1)), image="picture", label=[0])
    assert "no column 'img' or 'image' (it has: label, picture)" in failure(tmp_path)
    write(tmp_path / "train-0.parquet", list(pixels(1)), label=[0])
    assert "no column 'coarse_label'" in failure(tmp_path, label="coarse_label")
    write(tmp_path / "train-1.parquet", list(pixels(1)))
    assert "train-1.parquet: no column 'label'" in failure(tmp_path)
    pq.write_table(pa.table({"img": ["a.png"]}), tmp_path / "test-0.parquet")
    assert "must hold 'bytes', not string" in failure(tmp_path, "test")


@pytest.mark.parametrize("bad", [b"not an image", b"", None, "cut"])
def test_corrupt_image_names_file_and_row(tmp_path, bad):
    cells = list(pixels(3, size=16))
    bad = png(cells[2])[:100] if bad == "cut" else bad
    write(tmp_path / "train-0.parquet", [*cells[:2], bad])
    message = failure(tmp_path)
    assert "train-0.parquet, row 2:" in message and "image" in message


def test_images_of_different_sizes(tmp_path):
    write(tmp_path / "train-0.parquet", [pixels(1, 4)[0], pixels(1, 5)[0]])
    assert "row 1: image is 5x5 but the first is 4x4" in failure(tmp_path)


def test_empty_label_and_empty_split(tmp_path):
    write(tmp_path / "train-0.parquet", list(pixels(2)), label=[0, None])
    assert "row 1: 'label' is empty" in failure(tmp_path)
    write(tmp_path / "test-0.parquet", [])
    assert "no rows" in failure(tmp_path, "test")


def test_file_that_is_not_parquet(tmp_path):
    (tmp_path / "train-0.parquet").write_bytes(b"hello")
    assert "not a readable parquet file" in failure(tmp_path)


def test_limit_must_be_positive(tmp_path):
    assert "limit" in failure(tmp_path, limit=0)


@pytest.mark.parametrize("module", ["pyarrow.parquet", "PIL.Image"])
def test_missing_extra_names_the_command(tmp_path, monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=r"pip install 'fedqssl\[data\]'"):
        read_parquet(tmp_path)


@pytest.mark.data
@pytest.mark.parametrize("name, classes", [("cifar10-small", 10), ("cifar100-small", 100)])
def test_real_data(name, classes):
    if not (REAL / name).is_dir():
        pytest.skip(f"real data not found at {REAL / name}")
    start = time.process_time()
    data = read_parquet(REAL / name, "test", limit=500)
    assert data.images.shape == (500, 3, 32, 32) and len(data.class_names) == classes
    assert int(data.labels.max()) < classes and 90 < data.images.float().mean() < 150
    assert time.process_time() - start < 5


def test_corrupt_images_are_skipped_by_choice(tmp_path):
    images = pixels(4)
    cells = [images[0], b"broken", None, images[3]]
    write(tmp_path / "train-0.parquet", cells, label=[0, 1, 2, 3], client=["x", "y", "x", "z"])
    with pytest.raises(DataError, match="row 1: corrupt image"):
        read_parquet(tmp_path)
    with pytest.warns(DataWarning, match="skipped 2: .*row 1.*row 2"):
        data = read_parquet(tmp_path, on_bad="skip")
    assert torch.equal(data.images, images[[0, 3]]) and data.labels.tolist() == [0, 3]
    assert data.groups == ("x", "z")


def test_groups_by_any_column(tmp_path):
    write(tmp_path / "train-0.parquet", list(pixels(3)), label=[0, 1, 0], camera=[7, 8, 7])
    assert read_parquet(tmp_path).groups is None
    assert read_parquet(tmp_path, group="camera").groups == ("7", "8", "7")
    assert read_parquet(tmp_path, group="label").groups == ("0", "1", "0")
    with pytest.raises(DataError, match="no column 'place'"):
        read_parquet(tmp_path, group="place")


def test_size_makes_different_images_equal(tmp_path):
    write(tmp_path / "train-0.parquet", [*pixels(2, 4), *pixels(2, 9)], label=[0, 1, 0, 1])
    assert read_parquet(tmp_path, size=6).images.shape == (4, 3, 6, 6)


@pytest.mark.parametrize("labels, message", [([0.5, 1.0], "integers"), ([-1, 0], "negative")])
def test_labels_that_are_none(tmp_path, labels, message):
    write(tmp_path / "train-0.parquet", list(pixels(2)), label=labels)
    with pytest.raises(DataError, match=message):
        read_parquet(tmp_path)
