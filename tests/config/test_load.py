"""Presets, files, words and keywords give the same configurations; TOML keeps everything."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedqssl.config import PRESETS, ConfigError, RunConfig, load_config, to_toml
from fedqssl.config.load import RETIRED
from fedqssl.config.schema import known_keys, make_config


def reread(config: RunConfig, folder: Path) -> RunConfig:
    path = folder / "config.toml"
    path.write_text(to_toml(config), encoding="utf-8")
    return load_config(path)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_described_and_survive_toml(name, tmp_path):
    config = load_config(name)
    assert 10 < len(PRESETS[name].description) < 100
    assert reread(config, tmp_path) == config


def test_every_preset_file_is_listed():
    folder = Path(__file__).parents[2] / "src/fedqssl/config/presets"
    assert {p.stem for p in folder.glob("*.toml")} == set(PRESETS)


def test_the_paper_s_presets():
    table1, table3 = (4, 4, 6, 6, 6, 8, 8, 8, 12, 12), (6,) * 5 + (12,) * 5
    for name, epochs, bits in (("cifar10-paper", 20, table1), ("cifar100-paper", 5, table3)):
        config = load_config(name)
        assert config.bits == bits
        assert (config.rounds, config.local_epochs, config.width, config.batch_size) == (100, epochs, 64, 256)
        assert (config.partition, config.beta, config.lr_schedule) == ("dirichlet", 0.1, "step")
        assert config.data == name.removesuffix("-paper")
    assert load_config("quickstart").bits == load_config("cifar10-small").bits == table1


def test_words_and_keywords_say_the_same():
    words = load_config("smoke", ["rounds=7", "bits=2,3", "ssl.temperature=0.2", "images=none"])
    keywords = load_config("smoke", {"rounds": 7, "bits": [2, 3], "ssl": {"temperature": 0.2}, "images": None})
    assert (
        words == keywords == load_config("smoke", {"rounds": 7, "bits": (2, 3), "ssl.temperature": 0.2, "images": None})
    )
    assert (words.rounds, words.clients, words.bits, words.ssl.temperature) == (7, 2, (2, 3), 0.2)
    assert words.server == load_config("smoke").server


def test_one_bitwidth_keeps_the_preset_s_clients():
    assert load_config("smoke", ["bits=32"]).bits == (32,) * 4
    assert load_config("smoke", {"bits": [32]}).bits == (32,) * 4
    with pytest.raises(ConfigError, match="bits lists 4 bitwidths for 3 clients"):
        load_config("smoke", ["clients=3"])


def test_a_file_may_use_tables_or_dots(tmp_path):
    (tmp_path / "a.toml").write_text("rounds = 3\nbits = '4,6'\n[server]\nlr = 0.1\n")
    (tmp_path / "b.toml").write_text("server.lr = 0.1\nbits = [4, 6]\nrounds = 3\n")
    assert load_config(tmp_path / "a.toml") == load_config(str(tmp_path / "b.toml"))


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "a.toml"
    path.write_text("rond = 3\n")
    with pytest.raises(ConfigError, match=r"a\.toml: unknown setting 'rond'; did you mean 'rounds'\?"):
        load_config(path)
    path.write_text("rounds = \n")
    with pytest.raises(ConfigError, match=r"a\.toml is not a TOML file"):
        load_config(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"a\.toml is not a TOML file"):
        load_config(path)
    with pytest.raises(ConfigError, match="is a folder; to resume"):
        load_config(tmp_path)


def test_unknown_sources_and_words():
    with pytest.raises(ConfigError, match="did you mean 'quickstart'"):
        load_config("quikstart")
    for word in ("rounds", "=3"):
        with pytest.raises(ConfigError, match="key=value"):
            load_config("smoke", [word])


text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=50, deadline=None)
@given(
    data=text,
    lr=st.floats(min_value=1e-300, max_value=1e300),
    bits=st.lists(st.sampled_from([*range(1, 17), 32]), min_size=1, max_size=12),
    images=st.none() | st.integers(1, 2**40),
    server_lr=st.none() | st.floats(min_value=1e-12, max_value=1e12),
    seed=st.integers(0, 2**63 - 1),
)
def test_toml_keeps_everything(tmp_path_factory, data, lr, bits, images, server_lr, seed):
    values = {"data": data, "lr": lr, "bits": bits, "images": images, "server.lr": server_lr, "seed": seed}
    config = make_config({**values, "data_dir": "a b/é"})
    assert config.data == data and config.lr == lr
    assert reread(config, tmp_path_factory.getbasetemp()) == config


def test_the_configuration_does_not_import_torch():
    import subprocess
    import sys

    code = "import sys, fedqssl.config; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_a_retired_setting_of_an_older_run(tmp_path, monkeypatch):
    """An older config.toml lists every setting there was: at its default it is ignored, otherwise it is an error."""
    assert not set(RETIRED) & set(known_keys())
    monkeypatch.setitem(RETIRED, "client_tpus", 0.0)
    path = tmp_path / "config.toml"
    path.write_text("client_tpus = 0.0\nrounds = 3\n")
    assert load_config(path) == load_config(path, {"rounds": 3}) and load_config(path).rounds == 3
    assert "client_tpus" not in to_toml(load_config(path))
    path.write_text("client_tpus = 0.5\n")
    with pytest.raises(
        ConfigError, match=r"config\.toml: the setting 'client_tpus' no longer exists, and 0\.5 was not"
    ):
        load_config(path)
    with pytest.raises(ConfigError, match="unknown setting 'client_tpus'"):
        load_config("smoke", ["client_tpus=0"])
    assert not set(RETIRED) & set(known_keys())


def test_a_later_layer_that_names_steps_or_epochs_replaces_the_other(tmp_path):
    def lengths(config):
        return config.local_epochs, config.local_steps, config.server.dequantize_epochs, config.server.steps

    assert lengths(load_config("smoke")) == (1, None, 1, None)
    steps = load_config("smoke", ["local_steps=40", "server.steps=100"])
    assert lengths(steps) == (None, 40, None, 100) and reread(steps, tmp_path) == steps
    saved = tmp_path / "config.toml"
    assert "local_epochs" not in saved.read_text() and "dequantize_epochs" not in saved.read_text()
    assert lengths(load_config(saved, ["local_epochs=3"])) == (3, None, None, 100)
    assert lengths(load_config(saved, {"server": {"dequantize_epochs": 0}})) == (None, 40, 0, None)
    assert lengths(load_config(saved, ["local_steps=none"])) == (1, None, None, 100)
    assert lengths(load_config("smoke", ["local_steps=none"])) == (1, None, 1, None)
    assert lengths(load_config("quickstart", ["local_epochs=2"])) == (2, None, None, 1)
    with pytest.raises(ConfigError, match="local_steps and local_epochs exclude each other; remove one"):
        load_config("quickstart", ["local_steps=4", "local_epochs=1"])
    saved.write_text("[server]\nsteps = 3\ndequantize_epochs = 1\n")
    with pytest.raises(ConfigError, match=r"config\.toml: server\.steps and server\.dequantize_epochs exclude"):
        load_config(saved)
    assert lengths(load_config(saved, ["server.steps=5"])) == (1, None, None, 5)
