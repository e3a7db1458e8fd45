"""Probing a client's frozen model: every client, other classes, few labels, clear errors."""

import json
import shutil

import numpy as np
import torch
from PIL import Image

import fedqssl
from commands import cli
from fedqssl.lowbit import to_bytes
from fedqssl.maker.finished_run import few
from fedqssl.maker.probing import ProbeSettings, probe_client


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
    assert found.outcome.accuracy > 0.8
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
