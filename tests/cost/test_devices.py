"""Device tables: units, precedence, time and straggler, and what they refuse."""

import dataclasses

import pytest

from fedqssl.cli.device_tables import device_lines
from fedqssl.config import load_config
from fedqssl.cost import Sizes, ledger, read_devices, straggler
from fedqssl.cost.devices import device_round, quantity
from fedqssl.cost.formulas import BitOperations
from fedqssl.units import bytes_text, joules_text, operations_text, seconds_text

TABLE = """
[default]
downlink = "8 Mbit/s"
[classes.sensor]
bits = 4
memory = "1 KiB"
uplink = "1 MB/s"
operations_per_second = "1 G"
energy_per_bit_operation = "2 pJ"
[classes.phone]
clients = ["client-01"]
uplink = 4e6
[clients.client-00]
uplink = "800 kbit/s"
"""


@pytest.fixture(scope="module")
def costs():
    config = load_config("smoke", ["model=small_cnn", "width=4", "bits=4,8"])
    return ledger(config, Sizes({"client-00": 40, "client-01": 100}, 70))


@pytest.fixture
def write(tmp_path):
    def save(text: str):
        path = tmp_path / "devices.toml"
        path.write_text(text)
        return path

    return save


def test_time_energy_and_memory(costs, write):
    rounds = read_devices(write(TABLE)).rounds(costs)
    client, found = costs.clients["client-00"], rounds["client-00"]
    assert found.download == pytest.approx(client.bytes_down * 8 / 8e6)
    assert found.upload == pytest.approx(client.bytes_up * 8 / 800e3)  # the client's own table wins over its class
    assert found.compute == pytest.approx(client.operations.total / 1e9)
    assert found.seconds == found.download + found.compute + found.upload
    assert found.energy == pytest.approx(client.operations.total * 2e-12)
    assert found.fits is False
    other = rounds["client-01"]
    assert other.compute == 0 and other.energy is None and other.fits is None and other.known
    assert straggler(rounds) is found


def test_nothing_known_means_no_straggler(costs, write):
    rounds = read_devices(write('[default]\nmemory = "1 GiB"')).rounds(costs)
    assert straggler(rounds) is None and all(r.fits for r in rounds.values())


def test_nobody_waits_for_clients_that_do_nothing(costs, write):
    """The controls' clients neither train nor send; an algorithm's that train without traffic may have no known speed."""
    nothing = dataclasses.replace(costs.clients["client-00"], operations=BitOperations(), bytes_up=0, bytes_down=0)
    table = read_devices(write(TABLE))
    rounds = {"client-00": device_round(nothing, table.of("client-00", 4))}
    assert rounds["client-00"].known and straggler(rounds) is None
    assert "no time on anything that the device table has a rate for" in device_lines(rounds)[0]


def test_a_class_that_names_a_client_goes_before_its_bits(costs, write):
    text = '[classes.a]\nbits = [4]\nuplink = 1\n[classes.b]\nclients = ["client-00"]\nuplink = 2\n'
    assert read_devices(write(text)).of("client-00", 4).uplink == 2


@pytest.mark.parametrize(
    ("key", "value", "number"),
    [
        ("memory", 2048, 2048),
        ("memory", "64 MiB", 64 * 2**20),
        ("memory", "1.5GB", 1.5e9),
        ("uplink", "5 Mbit/s", 5e6),
        ("downlink", "1 MB/s", 8e6),
        ("operations_per_second", "50 G", 50e9),
        ("operations_per_second", "2 Top/s", 2e12),
        ("energy_per_bit_operation", "0.2 pJ", 0.2e-12),
    ],
)
def test_quantities(key, value, number):
    assert quantity(key, value, "here") == pytest.approx(number)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[default]\nmemry = 1", "unknown key 'memry'; did you mean 'memory'"),
        ("[default]\nbits = 4", "unknown key 'bits'"),
        ("[defaults]\nmemory = 1", "unknown table 'defaults'; did you mean 'default'"),
        ("[default]\nmemory = -1", "memory must be positive"),
        ("[default]\nuplink = 0", "leave it out if it is unknown"),
        ("[default]\nuplink = inf", "must be positive"),
        ("[default]\nuplink = true", 'uplink takes "5 Mbit/s"'),
        ('[default]\nuplink = "5 MiB"', 'uplink takes "5 Mbit/s"'),
        ('[default]\nmemory = "much"', 'memory takes "64 MiB"'),
        ("default = 3", "devices.toml: default is a table of keys"),
        ("classes = 3", "devices.toml: classes is a table of keys"),
        ("[classes]\na = 3", "devices.toml: classes.a is a table of keys"),
        ("[clients]\nclient-00 = 3", "devices.toml: clients.client-00 is a table of keys"),
        ("[classes.a]\nmemory = 1", "add bits = "),
        ('[classes.a]\nbits = "four"', "bits lists bitwidths"),
        ("[classes.a]\nclients = [1]", "clients lists names"),
        ("[classes.a]\nbits = 4\nuplnk = 1", "did you mean 'uplink'"),
        ("[clients.client-01]\nmemory = []", "memory takes"),
        ("[default", "is not a TOML file"),
    ],
)
def test_bad_tables_say_what_to_do(write, text, message):
    with pytest.raises(ValueError) as error:
        read_devices(write(text))
    assert message in str(error.value) and "devices.toml" in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        read_devices(tmp_path / "no.toml")


def test_unknown_clients_and_double_claims(costs, write):
    with pytest.raises(ValueError, match="no such client; did you mean 'client-01'"):
        read_devices(write("[clients.client-1]\nmemory = 1")).rounds(costs)
    with pytest.raises(ValueError, match="no such client"):
        read_devices(write('[classes.a]\nclients = ["x"]\nmemory = 1')).rounds(costs)
    with pytest.raises(ValueError, match=r"classes\.a and classes\.b; leave it in one"):
        read_devices(write("[classes.a]\nbits = 4\n[classes.b]\nbits = [4, 8]")).rounds(costs)


def test_units():
    assert [bytes_text(x) for x in (0, 1023, 1536, 10 * 2**20)] == ["0 B", "1023 B", "1.50 KiB", "10.0 MiB"]
    assert [operations_text(x) for x in (12, 2.5e9, 1.234e14, 999.9e9)] == ["12", "2.50 G", "123 T", "1.00 T"]
    assert [seconds_text(x) for x in (0, 0.002, 0.5, 5, 75, 120, 5400, 1e6)] == [
        "0 ms",
        "2.0 ms",
        "500 ms",
        "5.0 s",
        "1 min 15 s",
        "2 min",
        "1.5 h",
        "11.6 days",
    ]
    assert [joules_text(x) for x in (2e-6, 0.5, 3, 2500)] == ["2 uJ", "500 mJ", "3 J", "2.50 kJ"]
