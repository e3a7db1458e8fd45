"""Wrong input of ``fedqssl run``: exit code 2 and one line that says what to do, no traceback, nothing written.

And input that looks odd but must work: one client, no labels, natural clients, clients smaller than a batch.
"""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from fedqssl.cli.main import main

Image = pytest.importorskip("PIL.Image")
SMALL = [
    "model=small_cnn",
    "width=4",
    "rounds=1",
    "batch_size=16",
    "workers=1",
    "partition=iid",
    "bits=4,8",
    "evaluation.knn_every=0",
]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDQSSL_DEBUG", raising=False)


def pictures(folder: Path, count: int = 50, seed: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed)
    for i in range(count):
        Image.fromarray(noise.integers(0, 256, (12, 12, 3), dtype=np.uint8)).save(folder / f"{i:03d}.png")
    return folder


def everything() -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in Path().rglob("*")}


def refused(capsys, *words: str) -> str:
    """The line on stderr of a command that writes nothing and fails."""
    before = everything()
    with pytest.raises(SystemExit) as ended:
        main(["run", *words])
    said = capsys.readouterr()
    assert ended.value.code == 2, said
    assert said.err.startswith("error: ") and said.err.count("\n") == 1 and "Traceback" not in said.err + said.out
    assert everything() == before
    return said.err


def works(*words: str) -> dict:
    """``result.json`` of a run in ``out``."""
    try:
        main(["run", "smoke", *SMALL, *words, "--out", "out"])
    except SystemExit as ended:
        assert not ended.code
    return json.loads(Path("out/result.json").read_text())


def test_a_missing_folder(capsys):
    error = refused(capsys, "smoke", *SMALL, "data=folder:/nope", "--out", "out")
    assert "/nope: no such folder; give a folder of images" in error


def test_a_folder_without_images(capsys):
    Path("photos").mkdir()
    Path("photos/notes.txt").write_text("no image")
    assert "no images here; supported are" in refused(capsys, "smoke", *SMALL, "data=folder:photos", "--out", "out")


def test_a_corrupt_image_is_named(capsys):
    pictures(Path("photos"))
    Path("photos/007.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    error = refused(capsys, "smoke", *SMALL, "data=folder:photos", "--out", "out")
    assert "photos/007.png: corrupt image" in error and "fetch the file again or remove it" in error


def test_a_corrupt_image_is_left_out_by_choice(capsys):
    """With a line that names it, on the terminal and in the log."""
    pictures(Path("photos"))
    Path("photos/007.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    assert works("data=folder:photos", "on_bad=skip")["rounds"] >= 1
    assert "007.png" in capsys.readouterr().out and "007.png" in Path("out/log.txt").read_text()


def test_too_few_images(capsys):
    pictures(Path("photos"), 10)
    error = refused(capsys, "smoke", *SMALL, "data=folder:photos", "--out", "out")
    assert "too few" in error or "use a larger ratio or more images" in error


def test_more_clients_than_samples(capsys):
    error = refused(capsys, "smoke", *SMALL, "images=60", "clients=61", "bits=8", "--out", "out")
    assert "too few for 61 clients" in error and "use at most 5 clients" in error


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("beta=0", "beta should be greater than 0"),
        ("beta=-1", "beta should be greater than 0"),
        ("beta=nan", "beta should be a finite number"),
        ("bits=0", "1 to 16, or 32"),
        ("bits=17", "1 to 16, or 32"),
        ("bits=four", "1 to 16, or 32"),
        ("bits=", "found none"),
        ("bits=4,8,12", "give 1 for all or 2"),
        ("clients=0", "clients should be greater than or equal to 1"),
        ("rounds=0", "rounds should be greater than or equal to 1"),
        ("min_clients=3", "min_clients = 3 is more than the number of clients, 2"),
        ("partition=dirichlte", "'dirichlet'"),
        ("objective=simclrr", "'simclr'"),
        ("algorithm=fed_qsll", "did you mean 'fed_qssl'?"),
        ("algorithm=zzz", "algorithms: fed_qssl, "),
        ("engine=in_proces", "did you mean 'in_process'?"),
        ("model=small_cn", "did you mean 'small_cnn'?"),
        ("model=no.such:Thing", "is its folder on PYTHONPATH?"),
        ("data=scene", "did you mean 'scenes'?"),
        ("data=folder:", "write folder:PATH"),
        ("fedprox.mu=-1", "fedprox.mu should be greater than or equal to 0"),
        ("rond=3", "did you mean 'rounds'?"),
    ],
)
def test_wrong_settings(capsys, word, says):
    settings = [w for w in SMALL if not word.startswith("bits=") or not w.startswith("bits=")] + ["clients=2"]
    settings = [w for w in settings if w.partition("=")[0] != word.partition("=")[0]]
    assert says in refused(capsys, "smoke", *settings, word, "--out", "out")


@pytest.mark.parametrize("algorithm", ["fed_avg", "fed_prox", "fed_paq"])
def test_supervised_algorithms_need_labels(capsys, algorithm):
    pictures(Path("photos"))
    error = refused(capsys, "smoke", *SMALL, "data=folder:photos", f"algorithm={algorithm}", "--out", "out")
    assert f"{algorithm} trains with labels, but folder:{Path.cwd()}/photos has none; use fed_qssl" in error


def test_partitions_by_label_become_iid_without_labels(capsys):
    pictures(Path("photos"))
    assert len(works("data=folder:photos", "partition=dirichlet", "algorithm=untrained")["clients"]) == 2
    said = capsys.readouterr().out
    assert "folder:photos has no labels, so all of its images are used for training and partition is iid" in said
    assert 'partition = "iid"' in Path("out/config.toml").read_text()


def test_an_existing_folder(capsys):
    Path("out").mkdir()
    Path("out/thesis.tex").write_text("mine")
    for overwrite in ([], ["--overwrite"]):
        assert "choose another --out" in refused(capsys, "smoke", *SMALL, "--out", "out", *overwrite)
    Path("file").write_text("mine")
    assert "choose another --out" in refused(capsys, "smoke", *SMALL, "--out", "file")


def test_an_unwritable_place(capsys):
    Path("file").write_text("")
    assert "choose another --out" in refused(capsys, "smoke", *SMALL, "images=60", "--out", "file/out")
    assert "choose another --out" in refused(capsys, "smoke", *SMALL, "images=60", "--out", "/proc/out")
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    Path("closed").mkdir(mode=0o500)
    assert "choose another --out" in refused(capsys, "smoke", *SMALL, "images=60", "--out", "closed/out")


def test_resuming_what_is_no_run(capsys):
    Path("photos").mkdir()
    for folder in ("photos", "nothing"):
        error = refused(capsys, "--resume", folder)
        assert f"{folder} is not a run: it has no config.toml; start one with fedqssl run --out {folder}" in error


@pytest.fixture(scope="module")
def half_done(tmp_path_factory):
    """A folder with images and a run on them that has its checkpoint, but no result."""
    home = tmp_path_factory.mktemp("half")
    pictures(home / "photos")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedqssl.runs.lifecycle.finalize", lambda *arguments: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.chdir(home)
        with pytest.raises(SystemExit) as ended:
            main(["run", "smoke", *SMALL, "data=folder:photos", "--out", "out"])
    assert ended.value.code == 130 and (home / "out" / "checkpoints" / "round-00001").exists()
    return home


@pytest.fixture
def stopped(half_done, tmp_path):
    """A copy that somebody moved: the path of the images is corrected, as one does."""
    shutil.copytree(half_done, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "out" / "config.toml"
    config.write_text(config.read_text().replace(str(half_done), str(tmp_path)))


def test_resuming_without_labels_works_and_ends_in_nulls(stopped):
    """The control of the tests below: as it is, the run goes on."""
    with pytest.raises(SystemExit) as ended:
        main(["run", "--resume", "out"])
    assert not ended.value.code
    result = json.loads(Path("out/result.json").read_text())
    assert result["global_accuracy"] is result["local_accuracy"] is None


def test_resuming_with_one_more_image(capsys, stopped):
    pictures(Path("more"), 1, seed=1).joinpath("000.png").rename("photos/new.png")
    assert "the data behind out have changed: restore them" in refused(capsys, "--resume", "out")


def test_resuming_with_one_other_image(capsys, stopped):
    """The partition is the same; the pixels are not."""
    Image.new("RGB", (12, 12), (1, 2, 3)).save("photos/011.png")
    assert "the data behind out have changed: restore them" in refused(capsys, "--resume", "out")


@pytest.mark.parametrize("name", ["model-*.fqssl", "aggregated.fqssl", "state.json"])
def test_resuming_from_a_tampered_checkpoint(capsys, stopped, name):
    target = sorted(Path("out/checkpoints/round-00001").glob(name))[0]
    data = bytearray(target.read_bytes())
    place = data.index(b"rounds_done") + 14 if name == "state.json" else len(data) // 2
    data[place] ^= 1
    target.write_bytes(data)
    assert f"{target} was modified; delete out/checkpoints/round-00001" in refused(capsys, "--resume", "out")


@pytest.mark.parametrize(
    ("name", "says"),
    [("partition.json", "cannot be resumed"), ("config.toml", "config.toml"), ("result.json", "create it again")],
)
def test_resuming_a_run_with_a_broken_file(capsys, stopped, name, says):
    Path("out", name).write_text("{broken")
    assert says in refused(capsys, "--resume", "out")


def test_no_labels_and_plain_lines(capsys):
    """A folder of loose images runs to the end; accuracies are null and the summary says why. Smaller than a batch, too."""
    pictures(Path("photos"))
    result = works("data=folder:photos", "batch_size=64")
    assert result["global_accuracy"] is None and result["local_accuracy"] is None
    assert all(c["local_accuracy"] is None and 8 <= c["samples"] < 64 for c in result["clients"].values())
    summary = Path("out/summary.md").read_text()
    assert "global accuracy not measured" in summary and summary.count("| not measured |") == 2
    assert "The data have no labels, so accuracy cannot be measured." in summary
    said = capsys.readouterr().out
    assert "the data have no labels, so accuracy cannot be measured" in said
    assert "folder:photos has no labels, so all of its images are used for training" in said
    assert "\x1b" not in said and "\r" not in said
    losses = json.loads(Path("out/metrics.jsonl").read_text())["client_loss"]
    assert all(np.isfinite(v).all() and len(v) == 1 for v in losses.values())


def test_a_client_smaller_than_a_batch_changes_its_model():
    from fedqssl.config import load_config
    from fedqssl.federated.client import local_update
    from fedqssl.federated.context import build_simulation
    from fedqssl.federated.state import read_payload
    from fedqssl.lowbit import to_bytes

    pictures(Path("photos"))
    context = build_simulation(load_config("smoke", [*SMALL, "data=folder:photos", "batch_size=64"]))
    before = to_bytes(context.task.converted(8))
    after, metrics = local_update(before, context.job(0, 0.3), context.client("client-01"))
    assert metrics.samples < 64 and metrics.skipped_steps == 0
    states = [read_payload(p, 8, context.task) for p in (before, after)]
    assert any(not torch.equal(states[0][k], states[1][k]) for k in states[0] if k.endswith("weight"))


def test_one_client():
    result = works("clients=1", "bits=4", "images=60", "algorithm=fed_simclr")
    assert list(result["clients"]) == ["client-00"] and result["global_accuracy"] is not None


def test_natural_clients_are_folders_with_bits_in_the_order_of_their_names(capsys):
    for i, name in enumerate(("tablet", "car", "phone")):
        pictures(Path("devices", name), 20, seed=i)
    natural = ("data=folder:devices", "partition=natural")
    result = works(*natural, "bits=4,8,32")
    assert {n: c["bits"] for n, c in result["clients"].items()} == {"car": 4, "phone": 8, "tablet": 32}
    assert sorted(p.name for p in Path("out/clients").iterdir()) == ["car", "phone", "tablet"]
    shutil.rmtree("out")
    error = refused(capsys, "smoke", *SMALL, *natural, "bits=4,8", "--out", "out")
    assert "the data have 3 clients, but bits lists 2; give 1 or 3" in error
    error = refused(capsys, "smoke", *SMALL, *natural, "bits=8", "min_clients=4", "clients=9", "--out", "out")
    assert "min_clients = 4 is more than the number of clients, 3" in error


def test_one_bitwidth_serves_any_number_of_natural_clients():
    for i, name in enumerate(("tablet", "car", "phone")):
        pictures(Path("devices", name), 20, seed=i)
    result = works("data=folder:devices", "partition=natural", "bits=8", "clients=7", "algorithm=untrained")
    assert {n: c["bits"] for n, c in result["clients"].items()} == {"car": 8, "phone": 8, "tablet": 8}
