"""Settings in words: comments that are still TOML, a page that is up to date, differences, and remarks."""

from pathlib import Path

import pytest

from commands import cli
from fedqssl.config import load_config
from fedqssl.config.describe import allowed, differences, every_setting, page, sentence, with_comments
from fedqssl.config.load import remarks, to_toml
from fedqssl.config.presets import PRESETS
from fedqssl.config.schema import known_keys

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("preset", PRESETS)
def test_comments_change_nothing(preset, tmp_path):
    wanted = load_config(preset)
    (tmp_path / "mine.toml").write_text(with_comments(wanted))
    assert load_config(tmp_path / "mine.toml") == wanted


def test_every_setting_has_a_sentence_and_its_values():
    found = list(every_setting())
    assert sorted(key for key, _, _ in found) == sorted(known_keys())
    for key, field, _ in found:
        assert sentence(field).endswith("."), key
        assert allowed(field), key
    fields = {key: field for key, field, _ in found}
    assert allowed(fields["partition"]) == "`iid`, `dirichlet`, `classes`, `skew`, `natural`"
    assert allowed(fields["image_size"]) == "whole number, at least 8, at most 512"
    assert allowed(fields["images"]) == "whole number, at least 1 or none"


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "settings.md").read_text() == page(), (
        "run python -m fedqssl.config.describe > docs/settings.md"
    )


def test_the_command_prints_sentences_or_bare_settings(capsys):
    found = cli(capsys, "config", "smoke", "rounds=7")
    assert "# Number of clients; if only `bits` is given, the length of that list.\nclients = 4\n" in found
    assert "rounds = 7" in found
    assert "#" not in cli(capsys, "config", "smoke", "--bare")


def test_differences(capsys):
    one, two = load_config("smoke"), load_config("smoke", {"rounds": 3, "ssl.temperature": 0.2, "images": None})
    assert differences(one, two) == [
        ("images", "400", "none"),
        ("rounds", "2", "3"),
        ("ssl.temperature", "0.5", "0.2"),
    ]
    assert differences(one, one) == []
    assert "resnet18" in cli(capsys, "config", "--diff", "quickstart", "smoke")
    assert cli(capsys, "config", "--diff", "smoke", "smoke") == "smoke and smoke have the same settings\n"
    assert "nothing else" in cli(capsys, "config", "smoke", "--diff", "smoke", "smoke", code=2)


def test_differences_from_a_run(capsys, tmp_path):
    (tmp_path / "config.toml").write_text(to_toml(load_config("smoke", ["rounds=7"])))
    said = cli(capsys, "config", "--diff", "smoke", str(tmp_path))
    assert [line.split() for line in said.splitlines()[1:]] == [["rounds", "2", "7"]]


def test_remarks():
    assert remarks("smoke", ["rounds=3", "lr=1"]) == []
    assert remarks("smoke", ["rounds=3", "lr=1", "rounds=5"]) == ["rounds is given 2 times; 5 is used"]
    assert remarks("smoke", ["bits=4,8"]) == ["bits has 2 entries, so there are 2 clients; smoke has 4"]
    assert remarks("smoke", ["bits=4,8", "clients=2"]) == remarks("smoke", ["bits=8"]) == []
