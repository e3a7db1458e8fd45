"""Certificates are renewed, and the address changes, without a new fleet; clients keep their keys and their ca.crt."""

import datetime
import ssl

import pytest
from cryptography import x509
from typer.testing import CliRunner

from fedqssl.cli.main import app
from fedqssl.deploy import keys
from fedqssl.deploy.connection import Whereabouts
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError
from fedqssl.deploy.scaffold import make_fleet, renew
from fedqssl.deploy.serving import Certificate, server_config
from fedqssl.listen import Doors


@pytest.fixture
def fleet(tmp_path):
    make_fleet(tmp_path / "fleet", "192.168.1.5", 9999, ["car-1"])
    return Fleet.open(tmp_path / "fleet")


def shaken(server: ssl.SSLContext, authority: str, host: str) -> bytes:
    """The certificate that a client who knows this authority accepts from this server; no network is needed."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.load_verify_locations(cadata=authority)
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(back, there, server_hostname=host)
    two = server.wrap_bio(there, back, server_side=True)
    done = set()
    while len(done) < 2:
        for side in (one, two):
            try:
                side.do_handshake()
                done.add(side)
            except ssl.SSLWantReadError:
                pass
    return one.getpeercert(binary_form=True)


def test_clients_of_before_accept_the_new_certificate_and_the_new_address(fleet):
    before, kept = fleet.authority.read_text(), (fleet.server / "server.key").read_bytes()
    config = server_config(None, fleet, Doors())
    config.load()
    certificate = Certificate(config, fleet, Events(fleet.server / "log.jsonl"))
    old = shaken(config.ssl, before, "192.168.1.5")
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(config.ssl, before, "10.0.0.7")
    said = CliRunner().invoke(app, ["deploy", "renew", str(fleet.path), "--host", "10.0.0.7", "--port", "4433"]).output
    assert "the address is 10.0.0.7:4433 now" in said and "copy fleet.toml" in said and "ca.crt is new" not in said
    certificate.refresh()
    for host in ("10.0.0.7", "192.168.1.5", "localhost"):  # nobody is cut off while files are being copied
        assert shaken(config.ssl, before, host) != old
    assert fleet.authority.read_text() == before and (fleet.server / "server.key").read_bytes() == kept
    assert Fleet.open(fleet.path).address == "10.0.0.7:4433"
    assert "certificate renewed" in (fleet.server / "log.jsonl").read_text()


def test_without_options_only_the_certificate_is_new(fleet):
    before = (fleet.path / "fleet.toml").read_bytes()
    lines = renew(fleet, None, None)
    assert len(lines) == 1 and "for 192.168.1.5" in lines[0] and (fleet.path / "fleet.toml").read_bytes() == before


def test_an_authority_that_ends_soon_is_renewed_with_the_same_key(fleet, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(keys, "YEARS", 0.5)
        root = keys._authority(keys._server_key(fleet.server / "ca.key"))
    fleet.authority.write_bytes(root.public_bytes(keys.forms.Encoding.PEM))
    before = fleet.authority.read_text()
    assert "ca.crt is new, too" in renew(fleet, None, None)[-1]
    now = x509.load_pem_x509_certificate(fleet.authority.read_bytes())
    assert now.not_valid_after_utc > datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=3000)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(fleet.server / "server.crt", fleet.server / "server.key")
    for known in (before, fleet.authority.read_text()):
        shaken(server, known, "192.168.1.5")


def test_a_client_finds_the_new_address(fleet):
    """In its fleet.toml, which is replaced while it runs; until then an address of the command line holds."""
    from dataclasses import replace

    where = Whereabouts(replace(fleet, address="10.1.1.1:1"))
    assert not where.moved() and where.fleet.address == "10.1.1.1:1"
    (fleet.path / "fleet.toml").write_text("half of a fi")
    assert not where.moved()
    (fleet.path / "fleet.toml").write_text('address = "10.0.0.7:4433"')
    assert where.moved() and where.fleet.address == "10.0.0.7:4433" and not where.moved()


def test_what_cannot_be_renewed_is_said(fleet):
    with pytest.raises(FleetError, match="is not an address"):
        renew(fleet, "two words", None)
    (fleet.server / "server.crt").write_text("x")
    with pytest.raises(FleetError, match="the fleet's certificates cannot be read"):
        renew(fleet, None, None)
    (fleet.server / "ca.key").unlink()
    with pytest.raises(FleetError, match="run this where the fleet was made, or restore it"):
        renew(fleet, None, None)
