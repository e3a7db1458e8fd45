"""Bits from budgets: the largest that fit, by the constraint that stops them; never more than a device's memory."""

import itertools
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedqssl.cli.main import app
from fedqssl.config import ConfigError, load_config
from fedqssl.cost import Device, Planner, Sizes, Targets, bits_line, read_devices, with_device_bits
from fedqssl.cost.planner import LADDER, needed
from fedqssl.federated.protocol import protocol

SMALL = {"model": "small_cnn", "width": 4, "clients": 2, "bits": [4, 4], "batch_size": 16, "partition": "iid"}
SIZES = Sizes({"client-00": 64, "client-01": 64}, 20)


@pytest.fixture(scope="module")
def planner():
    return Planner(load_config("smoke", SMALL), SIZES)


def with_targets(planner, **targets):
    found = Planner(planner.config, SIZES, Targets(**targets))
    found._widths = planner._widths
    return found


@pytest.mark.parametrize("bits", [2, 5, 11, 16, 32])
def test_the_largest_bits_that_fit(planner, bits):
    just = Device(memory=needed(planner.cost("client-00", bits).memory))
    found = planner.choose("client-00", just)
    assert found.bits == bits and found.needs <= just.memory
    assert found.binding == ("memory" if bits < 32 else "nothing")


def test_costs_grow_with_bits(planner):
    """What bisection rests on."""
    costs = [planner.cost("client-00", bits) for bits in LADDER]
    assert all(a.memory.peak <= b.memory.peak for a, b in itertools.pairwise(costs) if b.bits <= 16)
    assert all(a.bytes_up < b.bytes_up for a, b in itertools.pairwise(costs))
    assert all(a.operations.total < b.operations.total for a, b in itertools.pairwise(costs))


@pytest.mark.parametrize(("file", "width", "images"), [("memory.json", 16, 256), ("memory-width8.json", 8, 64)])
def test_never_more_than_a_measured_peak(file, width, images):
    """Against the peaks that ``fedqssl bench memory`` recorded (docs/bench): a device with less must not get those bits."""
    record = json.loads((Path(__file__).parents[2] / "docs" / "bench" / file).read_text())
    assert (record["settings"]["width"], record["settings"]["images"]) == (width, images)
    config = load_config("smoke", {**SMALL, "model": "resnet18", "width": width, "batch_size": images})
    large = Planner(config, Sizes({"client-00": images, "client-01": images}, 20))
    rows = [row for row in record["results"] if row["variant"] == "fedqssl"]
    assert len(rows) >= 5
    for row in rows:
        assert needed(large.cost("client-00", row["bits"]).memory) > row["peak_bytes"]


def test_targets_name_what_binds(planner):
    eight = planner.cost("client-00", 8)
    found = with_targets(planner, round_bytes=2 * eight.bytes_up).choose("client-00", Device())
    assert (found.bits, found.binding) == (8, "bytes of a round")
    uplink = Device(uplink=8 * eight.bytes_up / 10.0)
    found = with_targets(planner, round_seconds=10.001).choose("client-00", uplink)
    assert (found.bits, found.binding) == (8, "upload")
    slow = Device(operations_per_second=eight.operations.total / 10.0)
    found = with_targets(planner, round_seconds=10.001).choose("client-00", slow)
    assert (found.bits, found.binding) == (8, "training time")


def test_impossible_devices_and_the_nearest_change(planner):
    two = planner.cost("client-00", 2)
    found = planner.choose("client-00", Device(memory=needed(two.memory) - 1))
    batch = int(found.advice.split("batch_size=")[1].split()[0])
    width = planner.study(2)
    assert (
        found.bits is None and needed(width.memory(batch)) < needed(two.memory) <= needed(width.memory(batch + 1)) + 1
    )
    tiny = planner.choose("client-00", Device(memory=needed(width.memory(2)) - 1))
    assert tiny.advice.startswith("width=") and "would fit at 2 bits" in tiny.advice
    assert "needs" in planner.choose("client-00", Device(memory=100)).advice
    bytes_ = with_targets(planner, round_bytes=10).choose("client-00", Device())
    assert bytes_.advice.startswith(f"--target-bytes {2 * two.bytes_up}")
    late = with_targets(planner, round_seconds=0.1).choose("client-00", Device(uplink=8 * two.bytes_up / 5.0))
    assert late.advice.startswith("--target-round-seconds 5")


def test_table_to_bits_line(planner, tmp_path):
    path = tmp_path / "d.toml"
    memory = needed(planner.cost("client-00", 6).memory)
    path.write_text(f'[clients.client-00]\nmemory = {memory}\n[classes.fixed]\nclients = ["client-01"]\nbits = [3]\n')
    choices = planner.plan(read_devices(path))
    assert bits_line(choices) == "bits=6,3"
    config = load_config("smoke", {**SMALL, "devices": str(path), "images": 160})
    assert protocol(config) == protocol(load_config("smoke", {**SMALL, "images": 160}))
    assert with_device_bits(load_config("smoke", SMALL)).bits == (4, 4)
    assert with_device_bits(config).bits[1] == 3 and len(with_device_bits(config).bits) == 2
    path.write_text("[default]\nmemory = 10\n")
    with pytest.raises(ConfigError, match=r"impossible: client-00 \(memory: .* needed, 10 B available\).*1 more"):
        with_device_bits(config)


def plan(*words):
    start = ["plan", "smoke", "model=small_cnn", "width=4", "images=200", "bits=4", "clients=2", "--no-measure"]
    return CliRunner().invoke(app, [*start, *words], env={"COLUMNS": "80"})


def test_command(tmp_path):
    path = tmp_path / "d.toml"
    path.write_text('[default]\nuplink = "200 kbit/s"\nmemory = "64 MiB"\n[clients.client-01]\nmemory = "1 KiB"\n')
    found = plan("--devices", str(path), "--target-round-seconds", "1", "--json", str(tmp_path / "plan.json"))
    assert found.exit_code == 0, found.output
    for words in (
        "Bits that the devices can afford",
        "straggler at these bits",
        "impossible: client-01",
        "no bits= line",
    ):
        assert words in " ".join(found.stdout.split())
    assert json.loads((tmp_path / "plan.json").read_text())["plan"]["clients"]["client-01"]["bits"] is None
    found = plan("--target-bytes", "60 kB")
    assert found.exit_code == 0 and found.stdout.strip().splitlines()[-1].startswith("bits=")
    for words, message in (
        (["--target-round-seconds", "9"], "needs --devices"),
        (["--target-bytes", "many"], "--target-bytes"),
        (["--target-round-seconds", "-1"], "positive"),
    ):
        assert message in str(plan(*words).exception)
