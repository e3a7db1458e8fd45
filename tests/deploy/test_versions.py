"""Mixed versions: both sides say which one to upgrade."""

import pytest

from fedqssl.deploy.versions import disagreement, own_versions, read_versions, versions_text


def test_the_same_release_works_together():
    mine = own_versions()
    assert mine["fedqssl"] and mine["flwr"] and read_versions(versions_text(mine)) == mine
    assert disagreement(mine, mine) is None
    assert disagreement({"fedqssl": "1.2.9"}, {"fedqssl": "1.2.0", "flwr": "1.41.0"}) is None
    assert disagreement({}, mine) is None  # a client of before this header


@pytest.mark.parametrize(
    ("client", "server", "line"),
    [
        (
            "1.9.0",
            "1.10.0",
            "the client has fedqssl 1.9.0, but the server has 1.10.0; upgrade the client to fedqssl 1.10.0",
        ),
        (
            "2.0.0",
            "1.10.0",
            "the client has fedqssl 2.0.0, but the server has 1.10.0; upgrade the server to fedqssl 2.0.0",
        ),
    ],
)
def test_the_older_side_is_to_be_upgraded(client, server, line):
    assert disagreement({"fedqssl": client}, {"fedqssl": server}) == line
    flower = disagreement({"fedqssl": "1.0.0", "flwr": client}, {"fedqssl": "1.0.0", "flwr": server})
    assert flower == line.replace("fedqssl", "Flower")


@pytest.mark.parametrize(
    "text", ["", "nonsense", "fedqssl=", "fedqssl=x", "torch=2.0.0", "fedqssl=1.0.0\x1b[2J", "a" * 10**6]
)
def test_a_header_of_a_stranger_is_harmless(text):
    assert read_versions(text) == {}
