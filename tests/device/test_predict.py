"""Predicting: any picture, any size, clear errors."""

import csv
import dataclasses
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image

import fedqssl
from commands import cli
from fedqssl.cli.main import main
from fedqssl.data.images import DataError


@pytest.fixture
def photos(tmp_path):
    """Pictures of every kind."""
    folder = tmp_path / "photos"
    (folder / "deep").mkdir(parents=True)
    noise = np.random.default_rng(0).integers(0, 256, (50, 70, 4), dtype=np.uint8)
    Image.fromarray(noise[..., :3]).save(folder / "rgb.jpg")
    Image.fromarray(noise).save(folder / "rgba.png")
    Image.fromarray(noise[..., 0]).save(folder / "grey.png")
    Image.fromarray(noise[..., :3]).convert("CMYK").save(folder / "cmyk.jpg")
    Image.fromarray(noise[..., 0].astype(np.uint16) * 257).save(folder / "sixteen.png")
    frames = [Image.fromarray(noise[..., :3]), Image.new("RGB", (70, 50), "red")]
    frames[0].save(folder / "animated.gif", save_all=True, append_images=frames[1:])
    Image.fromarray(noise[..., :3]).resize((1, 900)).save(folder / "deep" / "thin.webp")
    Image.fromarray(noise[..., :3]).convert("P").save(folder / "palette.png")
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def test_every_kind_of_picture(device_file, photos, capsys):
    lines = [
        json.loads(line) for line in cli(capsys, "predict", device_file, photos, "--json", "--top", "2").splitlines()
    ]
    assert [line["image"].rpartition("/")[2] for line in lines] == sorted(
        ["animated.gif", "cmyk.jpg", "grey.png", "palette.png", "rgb.jpg", "rgba.png", "sixteen.png", "thin.webp"],
        key=lambda n: f"deep/{n}" if n == "thin.webp" else n,
    )
    assert all(
        len(line["top"]) == 2 and line["top"][0]["probability"] >= line["top"][1]["probability"] for line in lines
    )
    rows = list(csv.reader(io.StringIO(cli(capsys, "predict", device_file, photos, "--csv", "--batch-size", "3"))))
    assert rows[0] == ["image", "class_1", "probability_1", "class_2", "probability_2", "class_3", "probability_3"]
    assert [r[1] for r in rows[1:]] == [line["top"][0]["name"] for line in lines]
    assert "%" in cli(capsys, "predict", device_file, photos / "rgb.jpg")


def test_python_api(device_file, photos, finished):
    model = fedqssl.load(device_file)
    by_path = model.predict(photos / "rgb.jpg", top=10)[0]
    assert sum(p for _, p in by_path.top) == pytest.approx(1, abs=1e-5) and len(by_path.top) == 10
    assert by_path.file == str(photos / "rgb.jpg")
    assert model.predict((photos / "rgb.jpg").read_bytes(), top=10)[0] == dataclasses.replace(by_path, file=None)
    assert len(model.predict(photos)) == 8
    test = finished.own("client-01").test
    batch = model.predict(test, batch_size=3)
    assert [a.name for a in batch] == [model.manifest.class_names[k] for k in model.logits(test).argmax(1).tolist()]
    array = test[0].permute(1, 2, 0).numpy()
    assert model.predict(array)[0] == model.predict(test[0])[0] == model.predict(Image.fromarray(array))[0]
    assert model.predict(array)[0].probability == pytest.approx(
        batch[0].probability, abs=1e-5
    )  # other batch, other sums
    assert model.predict([]) == []
    with pytest.raises(DataError, match="uint8"):
        model.predict(torch.rand(2, 3, 32, 32))
    with pytest.raises(ValueError, match="top"):
        model.predict(test, top=0)


def test_bad_pictures(device_file, photos, tmp_path, capsys, monkeypatch):
    (tmp_path / "empty").mkdir()
    assert "no images here" in cli(capsys, "predict", device_file, tmp_path / "empty", code=2)
    assert "no such file" in cli(capsys, "predict", device_file, tmp_path / "nothing.png", code=2)
    assert "corrupt image" in cli(capsys, "predict", device_file, photos / "notes.txt", code=2)
    assert "none of the 1 images" in cli(capsys, "predict", device_file, photos / "notes.txt", "--skip-bad", code=2)
    good = cli(capsys, "predict", device_file, photos / "notes.txt", photos / "rgb.jpg", "--skip-bad")
    assert "rgb.jpg" in good
    Image.new("1", (9000, 9000)).save(photos / "bomb.png")
    found = cli(capsys, "predict", device_file, photos / "bomb.png", code=2)
    assert "9000x9000 pixels are more than 64,000,000" in found
    assert "not both" in cli(capsys, "predict", device_file, photos, "--json", "--csv", code=2)
    assert "not a device file" in cli(capsys, "predict", photos / "rgb.jpg", photos, code=2)


def test_classes_without_labels_are_named(device_file, photos, tmp_path, capsys):
    model = fedqssl.load(device_file)
    names, path = model.manifest.class_names, tmp_path / "few.fqssl"

    def with_card(card):
        return dataclasses.replace(model, manifest=model.manifest.model_copy(update={"card": card}))

    counts = [0, 0, *range(2, len(names))]
    few = with_card({**model.manifest.card, "data": {**model.manifest.card["data"], "labels by class": counts}})
    assert few.manifest.without_labels == tuple(names[:2])
    path.write_bytes(few.to_bytes())
    with pytest.raises(SystemExit, match="0"):
        main(["predict", str(path), str(photos / "rgb.jpg")])
    assert (
        capsys.readouterr().err
        == f"note: client-01 has labels of 8 of 10 classes, and none of {names[0]}, {names[1]}\n"
    )
    with pytest.raises(SystemExit, match="0"):
        main(["predict", str(path), str(photos / "rgb.jpg"), "--json"])
    assert capsys.readouterr().err == ""
    for strange in ({}, {"data": 3}, {"data": {"labels by class": "many"}}, {"data": {"labels by class": [0]}}):
        assert with_card(strange).manifest.without_labels == ()
