"""The example scripts run, at smoke size."""

import importlib
import io
import json
import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import fedqssl

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {"rounds": 1, "batch_size": 16, "workers": 1, "evaluation.probe_images": 50, "evaluation.knn_every": 0}
TINY = {**SMALL, "model": "small_cnn", "width": 4}


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def test_all_are_tested():
    known = {"own_photos", "own_backbone", "own_bits", "run_to_onnx", "rendered_signs", "traffic_signs", "two_kinds"}
    assert {p.stem for p in EXAMPLES.glob("*.py")} == known


def test_they_use_the_public_api_alone():
    for path in EXAMPLES.iterdir():
        if path.suffix in (".py", ".ipynb"):
            assert not re.search(r"(from|import) fedqssl\.", path.read_text()), path.name


def test_the_notebook_runs_from_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((EXAMPLES / "quickstart.ipynb").read_text())["cells"]
    names: dict[str, object] = {}
    for number, cell in enumerate(cell for cell in cells if cell["cell_type"] == "code"):
        assert cell["outputs"] == [], "a notebook is committed without its outputs"
        exec(compile(cell["source"], f"cell {number}", "exec"), names)
        if "settings" in names and number == 0:
            names["settings"] = {**TINY, "images": 300, "rounds": 1}
    assert names["run"].rounds == 1 and (names["run"].folder / "report.html").is_file()
    assert names["path"].is_file() and names["small"].config.data.startswith("arrays:")


def test_rendered_signs(example, tmp_path):
    """Always the same pictures, another one each, of all kinds."""
    for out in ("one", "two"):
        example("rendered_signs").main(str(tmp_path / out), 86, 43)
    made = {path.relative_to(tmp_path / "one"): path for path in (tmp_path / "one").rglob("*.png")}
    assert len(made) == 129 and len({path.parent for path in made.values()}) == 86
    assert all(path.read_bytes() == (tmp_path / "two" / name).read_bytes() for name, path in made.items())
    assert len({path.read_bytes() for path in made.values()}) == 129
    assert Image.open(next(iter(made.values()))).size == (40, 40)


@pytest.mark.parametrize("other", ["digits", "turned", "negatives", "night"])
def test_two_kinds(example, tmp_path, other):
    """Every client has one kind; no photo is at two clients, or of both kinds. Photos at night are dark and cannot be undone."""
    draws, rows = np.random.default_rng(0), []
    for i in range(200):
        data = io.BytesIO()
        Image.fromarray(draws.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(data, "PNG")
        rows.append({"img": {"bytes": data.getvalue()}, "label": i % 10})
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "train-00000.parquet")
    example("two_kinds").main(tmp_path, tmp_path / "out", other, clients=4, images=30, test=10)
    with np.load(tmp_path / "out" / "train.npz") as found:
        names, images, labels = found["clients"], found["images"], found["labels"]
    assert sorted(set(names)) == sorted(f"{kind}-{i:02d}" for kind in ("photos", other) for i in range(2))
    assert images.shape == (120, 3, 32, 32) and images.dtype == np.uint8
    first = np.array([name.startswith("photos") for name in names])
    assert ((labels < 10) == first).all()
    undone = {"turned": np.rot90(images, -1, axes=(2, 3)), "negatives": 255 - images}.get(other, images)
    photos = np.where(first[:, None, None, None], images, undone)
    assert len({image.tobytes() for image in photos}) == 120
    assert other != "night" or 6 * images[~first].mean() == pytest.approx(images[first].mean(), rel=0.1)


@pytest.fixture
def signs(tmp_path):
    for kind in range(2):
        (tmp_path / "gtsrb" / f"{kind:05d}").mkdir(parents=True)
        for track in range(4):
            for frame in range(3):
                name = f"{kind:05d}/{track:05d}_{frame:05d}.ppm"
                Image.new("RGB", (8, 8), (kind, track, frame)).save(tmp_path / "gtsrb" / name)
    return tmp_path / "gtsrb"


def test_traffic_signs(example, signs, tmp_path):
    """No sign is on both sides."""
    example("traffic_signs").main(signs, tmp_path / "out", 6, 4)
    parts = {part: sorted((tmp_path / "out" / part).rglob("*.png")) for part in ("train", "test")}
    assert {part: len(files) for part, files in parts.items()} == {"train": 6, "test": 4}
    sides = [{(file.parent.name, file.name.partition("_")[0]) for file in files} for files in parts.values()]
    assert not sides[0] & sides[1] and {file.parent.name for file in parts["test"]} == {"00", "01"}


@pytest.mark.parametrize("damage", [b"", b"P6 8 8 255 too short", b"P6 8 x 255 "])
def test_traffic_signs_that_cannot_be_read(damage, example, signs, tmp_path):
    """One line that names the file, and nothing is left that would be in the way of a second try."""
    made = example("traffic_signs").main
    for file in signs.rglob("*.ppm"):
        file.write_bytes(damage)
    with pytest.raises(SystemExit, match=r"_0000\d\.ppm cannot be read .*; fetch it again"):
        made(signs, tmp_path / "out", 6, 4)
    assert not (tmp_path / "out").exists()
    with pytest.raises(SystemExit, match="has no folders 0 to 42"):
        made(tmp_path / "nowhere", tmp_path / "out", 6, 4)
    with pytest.raises(SystemExit, match="exists; name a new folder"):
        made(signs, tmp_path, 6, 4)


def test_own_photos(example, tmp_path, capsys):
    draws = np.random.default_rng(0)
    for name in ("leaf", "stone"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(50):
            pixels = draws.integers(0, 256, (36, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name / f"{i}.png")
    example("own_photos").main(str(tmp_path / "photos"), str(tmp_path / "out"), **TINY)
    assert "%)" in capsys.readouterr().out and (tmp_path / "out" / "client-00.fqssl").is_file()


def test_own_backbone_then_onnx(example, tmp_path, capsys):
    small = {**SMALL, "images": 160, "clients": 2, "bits": [4, 8], "partition": "iid"}
    example("own_backbone").main(str(tmp_path / "run"), **small)
    assert "8 bits" in capsys.readouterr().out
    pytest.importorskip("onnxruntime")
    assert example("run_to_onnx").main(str(tmp_path / "run"), str(tmp_path / "x.onnx")) >= 0.9
    sys.modules.pop("own_backbone", None)


def test_own_bits(example, tmp_path, capsys):
    words = {**TINY, "images": 160, "partition": "iid"}
    example("own_bits").main(str(tmp_path), "smoke", 0.5, **words)
    out = capsys.readouterr().out
    assert "client-00" in out and "memory" in out
    if "bits=" in out.splitlines()[-2]:
        assert "global accuracy" in out


def test_the_pictures_that_come_with_it_can_be_predicted(device_file):
    found = fedqssl.predict(device_file, EXAMPLES / "pictures")
    assert len(found) == 4 and all(answer.file.endswith(".png") for answer in found)
