"""Probing and predicting: any picture, any size, clear errors."""

import csv
import io
import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image

import fedqssl
from fedqssl.cli.main import main
from fedqssl.data.images import DataError
from fedqssl.lowbit import to_bytes
from fedqssl.maker.finished_run import few
from fedqssl.maker.probing import ProbeSettings, probe_client


def cli(capsys, *words, code=0):
    try:
        main([str(w) for w in words])
    except SystemExit as ended:
        assert (ended.code or 0) == code, capsys.readouterr().err
    out = capsys.readouterr()
    assert "Traceback" not in out.err
    if code:
        assert out.err.splitlines()[-1].startswith("error: ")
    return out.out if not code else out.err


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
    assert model.predict((photos / "rgb.jpg").read_bytes(), top=10)[0] == by_path
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


def test_probe_all_and_one(run_folder, capsys):
    out = cli(capsys, "probe", run_folder, "--all")
    assert "4 clients in" in out and "client-03  32 bits" in out
    assert "wrote" in cli(capsys, "probe", run_folder, "--client", "client-02", "--method", "knn")
    kept = json.loads((run_folder / "clients" / "client-01" / "probe.json").read_text())
    assert kept["bits"] == 4 and len(kept["confusion"]) == 10 and 0 <= kept["calibration_error"] <= 1
    (plot,) = (run_folder / "clients" / "client-02").glob("confusion-knn-*.png")
    assert plot.stat().st_size > 5000
    assert "--client NAME, or" in cli(capsys, "probe", run_folder, code=2)
    assert "did you mean" in cli(capsys, "probe", run_folder, "--client", "client-1", code=2)
    assert "share like 10%" in cli(capsys, "probe", run_folder, "--all", "--labels", "10", code=2)
    assert "linear or knn" in cli(capsys, "probe", run_folder, "--all", "--method", "svm", code=2)


def test_new_classes_and_few_labels(finished, tmp_path, capsys):
    draws = np.random.default_rng(1)
    for name, base in (("dark", 40), ("bright", 200), ("mid", 120)):
        (tmp_path / "new" / name).mkdir(parents=True)
        for i in range(30):
            pixels = np.clip(draws.normal(base, 20, (40, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "new" / name / f"{i}.png")
    words = "--client", "client-02", "--data", f"folder:{tmp_path / 'new'}", "--labels", "10%"
    assert "bright" in cli(capsys, "probe", finished.folder.path, *words)
    settings = ProbeSettings(f"folder:{tmp_path / 'new'}", "10%")
    found = probe_client(finished, "client-02", settings)
    assert found.train_images == 6 and found.class_names == ("bright", "dark", "mid")
    assert found.outcome.accuracy > 0.5  # chance is 0.33; over seeds 0.72 to 1
    out = tmp_path / "new.fqssl"
    cli(capsys, "export", finished.folder.path, *words, "--out", out)
    assert [p.name for p in fedqssl.load(out).predict(tmp_path / "new" / "dark")].count("dark") > 15  # of 30
    assert "exists; choose another" in cli(capsys, "export", finished.folder.path, *words, "--out", out, code=2)
    assert (tmp_path / "new.fqssl.md").read_text().startswith("# small_cnn, 8 bits")
    generator = torch.Generator().manual_seed(0)
    assert few(torch.tensor([0] * 99 + [5]), 0.01, generator).tolist()[-1] == 99


def test_the_same_pictures_elsewhere_give_the_same_classifier(finished, tmp_path):
    """Draws derive from the seed, the client and the kind of data: a folder may move, and tests run in any folder."""
    for name, color in (("red", "red"), ("blue", "blue")):
        (tmp_path / "here" / name).mkdir(parents=True)
        for i in range(20):
            Image.new("RGB", (32, 32 + i), color).save(tmp_path / "here" / name / f"{i}.png")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    here, there = (
        probe_client(finished, "client-02", ProbeSettings(f"folder:{tmp_path / place}", "20%"))
        for place in ("here", "there")
    )
    assert to_bytes(here.classifier.model) == to_bytes(there.classifier.model)
    assert here.outcome.to_json() == there.outcome.to_json()


def test_unfinished_run(tmp_path, run_folder, capsys):
    shutil.copytree(run_folder, tmp_path / "half")
    (tmp_path / "half" / "result.json").unlink()
    assert "fedqssl run --resume" in cli(capsys, "export", tmp_path / "half", "--client", "client-00", code=2)
    assert "not a run" in cli(capsys, "probe", tmp_path, "--all", code=2)
