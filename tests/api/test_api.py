"""``import fedqssl``: the functions and objects that a user's program sees."""

import importlib
import inspect
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import fedqssl
from fedqssl.config import ConfigError
from fedqssl.runs import RunError
from tiny_run import FOUR

SILENT = {"say": lambda line: None}


def test_dir_shows_the_api_and_nothing_else():
    assert [n for n in dir(fedqssl) if not n.startswith("_")] == sorted(fedqssl.__all__)
    importlib.import_module("fedqssl.reporting.page")  # a package of ours must not hide a function
    assert all(callable(getattr(fedqssl, name)) for name in fedqssl.__all__)


@pytest.mark.parametrize("name", fedqssl.__all__)
def test_every_name_is_documented_with_an_example(name):
    found = getattr(fedqssl, name)
    text = inspect.getdoc(found)
    assert all(word in text for word in ("Args:", "Raises:", "Example:", ">>> ")), name
    assert inspect.isclass(found) or "Returns:" in text
    for argument in inspect.signature(found).parameters:
        assert re.search(rf"^ +{argument}: ", text, re.M), f"{name} does not document {argument}"


def test_importing_is_cheap_and_loads_no_torch():
    code = "import sys, time; t = time.process_time(); import fedqssl; print(time.process_time() - t, 'torch' in sys.modules)"
    spent, torch_loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert float(spent) < 0.3 and torch_loaded == "False"


def test_a_run_has_its_figures_tables_and_clients(home):
    run = fedqssl.Run("runs/smoke-1")
    assert run.global_accuracy == run.result.global_accuracy and run.rounds == 2 == len(run.metrics())
    assert list(run.clients) == [f"client-0{i}" for i in range(4)] and len(run.clients) == 4
    client = run.clients["client-01"]
    assert (client.bits, client.samples) == (6, client.result.samples) and client.local_accuracy is not None
    assert repr(run).startswith("<Run runs/smoke-1: fed_qssl on scenes, 2 rounds") and "\n" not in repr(run)
    assert repr(client).startswith("<Client client-01: 6 bits") and "\n" not in repr(client)
    assert {"global_accuracy", "clients", "plot", "report"} <= set(dir(run)) and "bits" in dir(client)
    page = run._repr_html_()
    assert page.count("<tr>") == 5 and "client-03" in page
    with pytest.raises(AttributeError, match="a run has no 'acuracy'"):
        _ = run.acuracy
    with pytest.raises(KeyError, match="no client 'client-1'; did you mean 'client-01'"):
        run.clients["client-1"]


def test_a_clients_model_predicts_the_same_from_memory_and_from_its_file(home):
    client = fedqssl.Run("runs/smoke-1").clients["client-00"]
    pictures = np.random.default_rng(0).integers(0, 256, (5, 40, 30, 3), dtype=np.uint8)
    ours = client.predict(list(pictures), top=2)
    assert ours == fedqssl.predict("phone.fqssl", list(pictures), top=2)
    assert ours == fedqssl.predict(fedqssl.load("phone.fqssl"), list(pictures), top=2)
    with pytest.raises(ValueError, match=r"phone\.fqssl exists"):
        client.export("phone.fqssl")
    assert client.export("phone.fqssl", overwrite=True).is_file()
    with pytest.raises(ValueError, match="must be one of fedqssl, onnx, c, not 'pdf'"):
        fedqssl.export("runs/smoke-1", "client-00", format="pdf")


def test_folders_are_numbered_and_refused_before_data_are_read(home):
    with pytest.raises(RunError, match="runs/smoke-1 exists"):
        fedqssl.run("smoke", out="runs/smoke-1", data=object())  # type: ignore[arg-type]
    run = fedqssl.run("smoke", **{**FOUR, "rounds": 1}, **SILENT)
    assert str(run.folder) == "runs/smoke-2"


def test_data_from_memory_can_be_resumed_and_reported(home):
    images = torch.randint(0, 256, (80, 3, 16, 16), dtype=torch.uint8)
    labels = torch.arange(80) % 4
    seen = []

    def stop(line):
        seen.append(line["round"])
        return False

    settings = {**FOUR, "images": None, "image_size": 16, "rounds": 2}
    run = fedqssl.run("smoke", data=(images, labels), out="runs/mine", on_round=stop, **settings, **SILENT)
    assert seen == [1] and run.rounds == 1 and run.config.data.startswith("arrays:")
    assert sum(c.samples for c in run.clients.values()) <= 64  # a fifth is held out
    more = fedqssl.resume("runs/mine", rounds=2, **SILENT)
    assert more.rounds == 2 and more.report().is_file()
    assert more.clients["client-00"].probe().bits == 4


def test_a_folder_of_pictures_may_be_named_by_its_path_alone(home):
    from PIL import Image

    for kind in ("cat", "dog"):
        (home / "photos" / kind).mkdir(parents=True)
        for i in range(20):
            shade = np.full((20, 24, 3), 12 * i, dtype=np.uint8)
            Image.fromarray(shade).save(home / "photos" / kind / f"{i}.png")
    settings = {**FOUR, "rounds": 1, "clients": 2, "bits": [4, 8]}
    del settings["images"]
    run = fedqssl.run("smoke", data="photos", out="runs/photos", **settings, **SILENT)
    assert (
        run.config.data == f"folder:{home / 'photos'}" and run.config.images is None
    )  # the preset's limit is for its own


def test_on_round_may_watch_without_stopping(home):
    seen = []
    run = fedqssl.run("smoke", out="runs/watched", on_round=lambda line: seen.append(line["round"]), **FOUR, **SILENT)
    assert seen == [1, 2] and run.rounds == 2


def test_data_of_any_kind_for_plans_and_classifiers(home):
    """What ``run`` takes, the others take; planning leaves no files."""
    images, labels = np.random.default_rng(0).integers(0, 256, (60, 32, 32, 3)), np.arange(60) % 3  # 64-bit numbers
    before = sorted(home.rglob("*"))
    costs = fedqssl.plan("smoke", data=(images, labels), **{**FOUR, "images": None})
    assert sum(c.images for c in costs.clients.values()) < 60 and sorted(home.rglob("*")) == before
    assert repr(costs).startswith("<Plan: 4 clients, 2 rounds of ")
    found = fedqssl.probe("runs/smoke-1", "client-00", data=(images, labels))
    assert found.train_images == 48 and len(found.class_names) == 3
    assert repr(found) == f"<Probe of client-00: 4 bits, {found.outcome.accuracy:.1%} of 12 test images, 48 labels>"
    path = fedqssl.export("runs/smoke-1", "client-00", "three.fqssl", data={"train": (images, labels)})
    assert len(fedqssl.load(path).manifest.class_names) == 3
    with pytest.raises(ValueError, match=r"whole numbers must lie in 0 to 255, not \[-1, 254\]"):
        fedqssl.plan("smoke", data=(images.clip(max=255) - 1, labels))


def test_a_finished_run_has_its_report(home):
    said = []
    run = fedqssl.run("smoke", out="runs/told", say=said.append, **{**FOUR, "rounds": 1})
    page = run.folder / "report.html"
    assert said[-1] == f"the report is {page}" and page.is_file()
    page.unlink()
    fedqssl.resume(run.folder, say=said.append)
    assert not page.exists()  # only read
    fedqssl.resume(run.folder, rounds=2, say=said.append)
    assert page.is_file()


def test_objects_show_themselves_in_a_few_lines(home):
    found = fedqssl.compare("runs/smoke-1")
    assert repr(found) == found.text("markdown") and repr(found).startswith("## 1 run on scenes")


def test_errors_are_one_line(home):
    with pytest.raises(ConfigError, match=r"^lr should be a valid number, not a value of type ndarray$"):
        fedqssl.run("smoke", lr=np.zeros((50, 50)))
    with pytest.raises(ConfigError, match=r"^rounds should be a valid integer, not 'x{70,79}\.\.\.$"):
        fedqssl.run("smoke", rounds="x" * 999)
    with pytest.raises(ValueError, match=r"^no client 'phone' .clients: client-00 to client-03.$"):
        fedqssl.export("runs/smoke-1", "phone")

    with pytest.raises(ConfigError, match="rounds"):
        fedqssl.run("smoke", rounds=0)
    with pytest.raises(RunError, match="is not a run"):
        fedqssl.Run("nowhere")
    with pytest.raises(ValueError, match="several values"):
        fedqssl.sweep("smoke", grid={})
    assert not (home / "runs" / "smoke-2").exists()
