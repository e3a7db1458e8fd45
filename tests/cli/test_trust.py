"""A run folder that names code runs it only if the user says so; and names in files do not reach the terminal as commands."""

import sys

import numpy as np
import pytest

from commands import cli
from fake_runs import fake_run, smoke
from fedqssl.config import to_toml

Image = pytest.importorskip("PIL.Image")


@pytest.mark.parametrize("setting", ["model", "algorithm"])
def test_code_that_a_folder_names_is_not_run_unasked(tmp_path, monkeypatch, capsys, setting):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "evil_module", raising=False)
    (tmp_path / "evil_module.py").write_text("open('trace', 'w').close()\nNet = None\n")
    run = fake_run(tmp_path / "run", smoke(clients=2, bits=[4, 8])).folder
    config = smoke(clients=2, bits=[4, 8]).model_copy(update={setting: "evil_module:Net"})
    (run / "config.toml").write_text(to_toml(config))
    for words in (
        ["export", run, "--client", "client-00"],
        ["probe", run, "--client", "client-00"],
        ["plan", run / "config.toml", "--no-measure"],
    ):
        assert "evil_module:Net" in (said := cli(capsys, *words, code=2)) and "--trust" in said
    cli(capsys, "report", run)
    assert "only with --trust" in (run / "report.html").read_text()
    cli(capsys, "compare", run)
    assert not (tmp_path / "trace").exists()
    cli(capsys, "export", run, "--client", "client-00", "--trust", code=2)  # it is no model; but it was imported
    cli(capsys, "plan", "smoke", f"{setting}=evil_module:Net", "--no-measure", code=2)  # named by the user
    assert (tmp_path / "trace").exists()


def test_class_names_are_not_commands_for_the_terminal(tmp_path, capsys):
    from torch import nn

    from fedqssl.device.model import pack_device
    from fedqssl.evaluation.local import LowBitClassifier, empty_classifier
    from fedqssl.lowbit import Precision, to_lowbit
    from fedqssl.models.features import features_of
    from fedqssl.models.network import SelfSupervisedNetwork
    from fedqssl.models.registry import build_model

    encoder, bits = build_model("small_cnn", 4), Precision.for_bits(4)
    extractor = features_of(to_lowbit(SelfSupervisedNetwork(encoder, nn.Identity()), bits).eval())
    classifier = LowBitClassifier(empty_classifier(encoder.feature_dim, 2, bits).eval(), 1.0)
    words = {"model": "small_cnn", "width": 4, "channels": 3, "size": 32, "objective": "simclr", "bits": 4}
    words |= {"feature_dim": encoder.feature_dim, "class_names": ["\x1b[31mcat", "dog\x1b]0;x\x07"], "protocol": "p"}
    path = tmp_path / "phone.fqssl"
    path.write_bytes(pack_device({**words, "client": "phone", "card": {}}, extractor, classifier))
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    for form in ([], ["--csv"], ["--json"]):
        said = cli(capsys, "predict", path, tmp_path / "a.png", *form)
        assert "cat" in said and "\x1b" not in said and "\x07" not in said


def test_errors_are_not_commands_for_the_terminal(tmp_path, capsys):
    assert "\x1b" not in cli(capsys, "report", tmp_path / "\x1b[31mrun", code=2)
