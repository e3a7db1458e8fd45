"""Settings: defaults, limits, names, and errors that say what to do."""

import inspect

import pytest
from pydantic import ValidationError

from fedqssl.config import ConfigError, RunConfig
from fedqssl.config.keys import INSTEAD, flat
from fedqssl.config.schema import known_keys, make_config, parse_bits
from fedqssl.config.sections import ServerConfig
from fedqssl.lowbit import LowBitOptions, LowBitSGD

KEYS = """data data_dir on_bad devices clients bits partition beta classes_per_client minority images rounds local_epochs
batch_size lr lr_schedule fraction min_clients buffer_ratio model width objective algorithm seed threads workers engine track
device workers_per_gpu client_gpus
clock availability clusters clusters_check
client_cpus deadline local_steps server.steps distill.temperature image_size image_contrast evaluation.holdout group
buffer buffer_images buffer_draw privacy.client_epsilon privacy.delta privacy.clip
ssl.temperature ssl.momentum
server.dequantize_epochs server.requantize_epochs server.requantize_start server.lr server.threads
server.optimizer server.momentum server.optimizer_lr
server.ema aggregation.temperature aggregation.weights aggregation.robust aggregation.max_share aggregation.batch_norm
lowbit.weights lowbit.rule
lowbit.scale
lowbit.rounding lowbit.gradient_centres lowbit.activation_clip lowbit.skip fedprox.mu evaluation.knn_every evaluation.probe_images
evaluation.clients evaluation.controls evaluation.classifier evaluation.probe
views.preset views.scale views.ratio views.flip views.brightness views.contrast views.saturation views.hue views.jitter
views.grayscale views.size features"""


def fails(**values) -> str:
    with pytest.raises(ConfigError) as caught:
        make_config(values)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_the_names_that_everything_shares():
    assert sorted(known_keys()) == sorted(KEYS.split())


def test_a_configuration_cannot_be_changed():
    config = RunConfig()
    with pytest.raises(ValidationError):
        config.rounds = 3
    with pytest.raises(ValidationError):
        config.server.lr = 3
    assert hash(config) == hash(RunConfig()) and config == RunConfig()


def test_low_bit_defaults_are_the_library_s():
    config = RunConfig().lowbit
    options, sgd = LowBitOptions(), inspect.signature(LowBitSGD).parameters
    assert (config.weights, config.activation_clip) == (options.weights, options.activation_clip)
    for name in ("rule", "scale", "rounding"):
        assert getattr(config, name) == sgd[name].default


@pytest.mark.parametrize(
    "text, bits",
    [("4,4, 6", (4, 4, 6)), ("[2,32]", (2, 32)), ("8", (8,)), (8, (8,)), ([1, 16], (1, 16)), (("3",), (3,))],
)
def test_bits_are_read(text, bits):
    assert parse_bits(text) == bits


@pytest.mark.parametrize("bits", ["0", "17", "four", 0, 17, 33, -1, 4.5, [4, "x"], "4,,y", None])
def test_wrong_bits_say_what_is_allowed(bits):
    message = fails(bits=bits)
    assert message.startswith("bits takes whole numbers from 1 to 16, or 32") and "not " in message


@pytest.mark.parametrize("bits", ["", [], "[]"])
def test_no_bits(bits):
    assert "found none" in fails(bits=bits)


def test_one_bitwidth_for_all_or_one_each():
    assert RunConfig(clients=3, bits=4).bits == (4, 4, 4)
    assert RunConfig(clients=3, bits=[4, 6, 8]).bits == (4, 6, 8)
    assert len(RunConfig().bits) == RunConfig().clients
    assert fails(clients=3, bits=[4, 6]) == "bits lists 2 bitwidths for 3 clients; give 1 for all or 3"


def test_bits_by_client_name():
    config = RunConfig(bits=[4, 6])
    assert config.bits_for(["b", "a"]) == {"b": 4, "a": 6}
    with pytest.raises(ConfigError, match="have 3 clients, but bits lists 2; give 1 or 3"):
        config.bits_for(["a", "b", "c"])
    assert RunConfig(bits=8).bits_for(["a", "b", "c"]) == {"a": 8, "b": 8, "c": 8}  # natural clients: any number


def test_a_list_of_bits_alone_sets_the_number_of_clients():
    assert RunConfig(bits=[4, 6]).clients == 2
    assert RunConfig(bits=4).clients == RunConfig().clients


@pytest.mark.parametrize(
    "wrong, right",
    [
        ("round", "rounds"),
        ("batchsize", "batch_size"),
        ("ssl.temprature", "ssl.temperature"),
        ("servr.lr", "server.lr"),
        ("requantize_epochs", "server.requantize_epochs"),
        ("evaluation.knn", "evaluation.knn_every"),
    ],
)
def test_unknown_names_suggest_the_nearest(wrong, right):
    assert fails(**{wrong: 1}) == f"unknown setting {wrong!r}; did you mean {right!r}?"


def test_unknown_names_in_tables_and_far_from_all():
    assert "did you mean 'ssl.temperature'?" in fails(ssl={"temprature": 1})
    assert fails(zzz=1) == "unknown setting 'zzz'"
    with pytest.raises(ValidationError, match="did you mean 'rounds'"):
        RunConfig(rond=3)


def test_a_table_is_not_a_value():
    assert "server.dequantize_epochs, server.steps, server.requantize_epochs" in fails(server=3)


@pytest.mark.parametrize(
    "values, says",
    [
        ({"rounds": 0}, "rounds should be greater than or equal to 1, not 0"),
        ({"rounds": "x"}, "rounds should be a valid integer, not 'x'"),
        ({"rounds": True}, "rounds takes a number"),
        ({"beta": 0}, "beta should be greater than 0"),
        ({"lr": "nan"}, "lr should be a finite number"),
        ({"fraction": 1.5}, "fraction should be less than or equal to 1"),
        ({"buffer_ratio": 1}, "buffer_ratio should be less than 1"),
        ({"evaluation.holdout": 0.6}, "evaluation.holdout should be less than or equal to 0.5, not 0.6"),
        ({"image_size": 4}, "image_size should be greater than or equal to 8, not 4"),
        ({"clients": 2, "min_clients": 3}, "min_clients = 3 is more than the number of clients, 2"),
        ({"lr_schedule": "cos"}, "lr_schedule should be 'constant', 'cosine' or 'step', not 'cos'"),
        ({"partition": "x"}, "partition should be 'iid'"),
        ({"lowbit.rule": "x"}, "lowbit.rule should be 'stored', 'residual' or 'latent', not 'x'"),
        ({"data": ""}, "data should have at least 1 character"),
        ({"server.lr": -1}, "server.lr should be greater than 0"),
        ({"rounds": 0, "lr": -1}, "; lr should be"),
    ],
)
def test_wrong_values_are_named(values, says):
    assert says in fails(**values)


def test_none_takes_a_limit_away():
    config = make_config({"images": "none", "server.lr": "None", "data_dir": "none"})
    assert config.images is None and config.server.lr is None and config.data_dir is None


@pytest.mark.parametrize(("new", "old"), [pair for pair in INSTEAD.items() if "buffer" not in pair])
def test_epochs_or_steps_but_not_both(new, old):
    def both(config):
        values = flat(config.model_dump())
        return values[new], values[old]

    assert both(make_config({})) == both(make_config({new: "none", old: None})) == (None, 1)
    assert both(make_config({old: 3})) == both(make_config({old: "3", new: "none"})) == (None, 3)
    assert both(make_config({new: 40})) == both(make_config({new: "40", old: "none"})) == (40, None)
    assert fails(**{new: 40, old: 3}) == f"{new} and {old} exclude each other; remove one of them"
    again = make_config({new: 40})
    assert make_config(again.model_dump()) == again
    assert "greater than or equal to 1" in fails(**{new: 0})


def test_a_share_of_the_images_or_data_of_the_servers_own():
    def both(values):
        config = make_config(values)
        return config.buffer_ratio, config.buffer, config.buffer_images

    assert both({}) == both({"buffer": "none"}) == (0.1, None, 500)
    assert both({"buffer": "digits", "buffer_images": 7}) == (None, "digits", 7)
    assert both({"buffer_ratio": 0.3}) == (0.3, None, 500)
    assert fails(buffer="digits", buffer_ratio=0.1) == "buffer and buffer_ratio exclude each other; remove one of them"
    assert "buffer_images is for buffer=DATA" in fails(buffer_images=100)
    again = make_config({"buffer": "digits"})
    assert make_config(again.model_dump()) == again


def test_a_table_of_the_server_may_be_given_as_an_object():
    config = RunConfig(server=ServerConfig(steps=7))
    assert (config.server.steps, config.server.dequantize_epochs) == (7, None)
    assert RunConfig(server=config.server) == config


def test_local_work_in_words():
    words = [
        make_config(values).local_work for values in ({}, {"local_epochs": 2}, {"local_steps": 1}, {"local_steps": 40})
    ]
    assert words == ["1 epoch", "2 epochs", "1 step", "40 steps"]
