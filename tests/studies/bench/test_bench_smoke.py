"""Every bench at a tiny size: the numbers mean little here, but their schema and bookkeeping must hold."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedqssl.data.parquet import ImageSet
from fedqssl.data.scenes import scenes
from fedqssl.lowbit import LowBitOptions
from fedqssl.studies.bench import codec, memory, step, views
from fedqssl.studies.bench.learning import Recipe, run_cells, summary
from fedqssl.studies.bench.peers import FAMILIES, Variant, build, training_step
from fedqssl.studies.bench.records import PeerUnavailableError, Record

HAS = {name: importlib.util.find_spec(name) is not None for name in ("brevitas", "kornia")}


def schema(record: Record, tmp_path) -> dict:
    """Write the record into a new folder, twice, and read it back."""
    path = tmp_path / "new" / "folder" / "out.json"
    record.write(path)
    record.write(path)
    assert [p.name for p in path.parent.iterdir()] == ["out.json"]
    data = json.loads(path.read_text())
    assert set(data) == {"bench", "results", "skipped", "settings"}
    assert data["results"] and all(set(row) == set(data["results"][0]) for row in data["results"])
    assert data["settings"]["machine"]["torch"] == torch.__version__
    assert data["settings"]["machine"]["kernels"]["backend"] in ("native", "torch")
    return data


def test_step(tmp_path):
    data = schema(step.run(width=8, images=4, bits=(4,), repeats=1), tmp_path)
    rows = {(row["variant"], row["bits"]): row for row in data["results"]}
    assert rows["fp32", 32]["cpu_ratio"] == 1.0
    assert rows["fedqssl", 4]["cpu_ratio"] > 0
    assert rows["fedqssl", 4]["cpu_seconds"] > rows["fedqssl", 4]["system_seconds"] >= 0
    assert rows["fp32", 32]["user_ratio"] == 1.0
    assert ("brevitas", 4) in rows or not HAS["brevitas"]
    named = set(rows) | {tuple(s["variant"].rsplit("-", 1)) for s in data["skipped"]}
    assert len(named) == 2 + len(step.PEERS)  # measured or skipped by name, never lost


def test_absent_peers_are_skipped_by_name(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "brevitas.nn", None)
    monkeypatch.setitem(sys.modules, "kornia", None)
    steps = schema(step.run(width=8, images=2, bits=(4,), repeats=1), tmp_path)
    assert {"brevitas-4", "brevitas-8"} <= {s["variant"] for s in steps["skipped"]}
    assert all("fedqssl[bench]" in s["reason"] for s in steps["skipped"])
    record = views.run(images=4, repeats=1)
    assert [s.variant for s in record.skipped] == ["kornia"]
    assert [row["variant"] for row in record.results] == ["fedqssl"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory(tmp_path):
    data = schema(memory.run(width=8, images=32, bits=(4,), peers=False), tmp_path)
    fp32, ours = data["results"]
    assert fp32["peak_ratio"] == fp32["saved_ratio"] == 1.0
    assert ours["saved_ratio"] > 2
    assert fp32["peak_bytes"] > fp32["saved_bytes"] / 2


def test_saved_bytes_counts_each_storage_once_and_no_parameters():
    w = torch.nn.Linear(8, 8, bias=False)
    x = torch.randn(16, 8)

    class Step:
        model = w

        def loss(self):
            y = w(x)  # saves x (16*8 floats); the weight is a parameter
            return (y * y).sum()  # saves y once, although twice as an operand

    assert memory.saved_bytes(Step()) == 2 * 16 * 8 * 4


def test_codec(tmp_path):
    data = schema(codec.run(elements=50_000, quantile_bits=(6,), pack_bits=(4, 6), repeats=1), tmp_path)
    rows = {(row["operation"], row["bits"]): row for row in data["results"]}
    assert set(rows) == {("quantile", 6), ("pack", 4), ("pack", 6), ("unpack", 4), ("unpack", 6)}
    assert all(row["vs_memcpy"] > 0 for row in rows.values())
    assert rows["quantile", 6]["mse_ratio"] == pytest.approx(1, abs=0.05)
    assert rows["quantile", 6]["vs_sort"] > 0


def test_sort_quantizer_maps_to_the_nearest_centre():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    rounded = codec.sort_quantile_round(x, 3)
    centres = rounded.unique()
    assert len(centres) == 8
    assert {float(x.min()), float(x.max())} <= set(centres.tolist())
    nearest = (x[:, None] - centres).abs().amin(1)
    assert torch.allclose((x - rounded).abs(), nearest)


@pytest.mark.skipif(not HAS["kornia"], reason="kornia is not installed")
def test_views_against_kornia(tmp_path):
    data = schema(views.run(images=8, repeats=1), tmp_path)
    rows = {row["variant"]: row for row in data["results"]}
    assert rows["kornia"]["vs_kornia"] == 1.0
    assert rows["fedqssl"]["images_per_s"] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_variants_train_the_same_architecture(family):
    try:
        one = training_step(Variant(family, 32 if family == "fp32" else 4), width=8, images=4)
    except PeerUnavailableError as error:
        pytest.skip(str(error))
    z = one.model(one.views)
    assert z.shape == (8, 128)
    first, second = float(one()), float(one())
    assert first != second and all(map(torch.isfinite, map(torch.tensor, (first, second))))


def test_step_of_another_backbone_on_smaller_images(tmp_path):
    data = schema(step.run(width=8, images=2, bits=(4,), repeats=1, model="resnet9", size=16), tmp_path)
    assert {row["variant"] for row in data["results"]} == {"fp32", "fedqssl"} and not data["skipped"]
    assert (data["settings"]["model"], data["settings"]["size"]) == ("resnet9+projector", 16)
    with pytest.raises(ValueError, match="resnet9"):
        build(Variant("fp32", 32), width=8, model="resnet99")


def test_unknown_variant_and_narrow_width():
    with pytest.raises(ValueError, match="fedqssl"):
        build(Variant("nope", 4), width=8)
    with pytest.raises(ValueError, match="width"):
        build(Variant("fp32", 32), width=7)


def test_learning_cells_are_paired_resumed_and_refuse_another_recipe(tmp_path):
    data = scenes(64, "train", 0)
    recipe, options = Recipe(width=8, epochs=1, batch_size=32), LowBitOptions()
    cells = [(32, 0), (4, 0)]
    first = run_cells(cells, data, data, tmp_path, recipe, options, lambda line: None)
    said = []
    assert run_cells(cells, data, data, tmp_path, recipe, options, said.append) == first and said == []
    (tmp_path / "bits04-seed0.json").unlink()
    again = run_cells(cells, data, data, tmp_path, recipe, options, said.append)
    assert said and again[1].accuracy == first[1].accuracy and again[1].loss == first[1].loss
    rows = summary(again)
    assert [row[0] for row in rows] == ["4", "fp32"] and rows[1][3] == "-"
    with pytest.raises(ValueError, match="another recipe"):
        run_cells(cells, data, data, tmp_path, Recipe(width=8, epochs=2), options, said.append)
    other = replace(recipe, model="resnet9", features="stages", views_size=16)
    with pytest.raises(ValueError, match="another recipe"):
        run_cells(cells, data, data, tmp_path, other, options, said.append)
    (cell,) = run_cells([(8, 0)], data, data, tmp_path, other, options, said.append)
    assert cell.recipe["views_size"] == 16 and cell.recipe["model"] == "resnet9"
    unlabeled = ImageSet(data.images, None, None)
    with pytest.raises(ValueError, match="labels"):
        run_cells(cells, unlabeled, data, tmp_path, recipe, options, said.append)


def test_committed_cells_are_those_of_the_default_recipe():
    committed = Path(__file__).parents[3] / "docs" / "bench" / "learning"
    data = scenes(10, "train", 0)
    (cell,) = run_cells([(8, 0)], data, data, committed, Recipe(width=16), LowBitOptions(), pytest.fail)
    assert cell.accuracy == pytest.approx(0.4725, abs=1e-6)
