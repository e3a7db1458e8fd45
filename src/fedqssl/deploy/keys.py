"""Certificates and keys: the fleet's own authority, the server's certificate, and a key pair for each client.

Private keys are created readable only by their owner, and never overwritten.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedqssl.deploy.fleet import Fleet, FleetError

YEARS = 10
PrivateKey: TypeAlias = ec.EllipticCurvePrivateKey


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Create a file with these permissions from the start; an existing file is kept."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def _pem(key: PrivateKey) -> bytes:
    return key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _certificate(subject: str, issuer: str, key: PrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(_called(subject))
        .issuer_name(_called(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
    )


def _usage(*allowed: str) -> x509.KeyUsage:
    """An extension that limits a key to this use."""
    uses = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    flags = (*uses, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{use: use in allowed for use in flags})


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make_certificates(fleet: Path, hosts: list[str]) -> None:
    """``ca.crt``, and in ``server/`` the authority's key, ``server.crt`` for these hosts, and its key."""
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    root = (
        _certificate("fedqssl fleet", "fedqssl fleet", authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority, hashes.SHA256())
    )
    known = dict.fromkeys(["localhost", "127.0.0.1", "::1", *hosts])
    leaf = (
        _certificate("fedqssl server", "fedqssl fleet", key)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in known]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority, hashes.SHA256())
    )
    write_new(fleet / "ca.crt", root.public_bytes(forms.Encoding.PEM), 0o644)
    write_new(fleet / "server" / "server.crt", leaf.public_bytes(forms.Encoding.PEM), 0o644)
    write_new(fleet / "server" / "server.key", _pem(key), 0o600)
    write_new(fleet / "server" / "ca.key", _pem(authority), 0o600)


def make_key(home: Path, name: str) -> None:
    """A client's ``key`` and ``key.pub``, in the format of Flower's SuperNode."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.OpenSSH, forms.NoEncryption())
    public = key.public_key().public_bytes(forms.Encoding.OpenSSH, forms.PublicFormat.OpenSSH)
    home.mkdir(parents=True, exist_ok=True)
    write_new(home / "key", private, 0o600)
    write_new(home / "key.pub", public + f" {name}\n".encode(), 0o644)


def read_key(path: Path) -> PrivateKey:
    """A client's private key; an error if others can read it."""
    if path.stat().st_mode & 0o077:
        raise FleetError(f"{path} can be read by other users; run chmod 600 {path}")
    try:
        key = forms.load_ssh_private_key(path.read_bytes(), None)
    except ValueError as error:
        raise FleetError(f"{path} is not a private key ({error}); make a new one with another name") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FleetError(f"{path} is not an elliptic-curve key; make a new one with another name")
    return key


def read_public_key(path: Path) -> bytes:
    """A public key as Flower writes it: PEM."""
    try:
        key = forms.load_ssh_public_key(path.read_bytes())
    except (ValueError, OSError) as error:
        raise FleetError(f"{path} is not a public key ({error})") from error
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FleetError(f"{path} is not an elliptic-curve key")
    return key.public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)


def public_keys(fleet: Fleet) -> dict[str, bytes]:
    """Public keys by client name; a file that is not a key (perhaps half-written) is left out."""
    found = {}
    for name, file in fleet.public_keys().items():
        with contextlib.suppress(FleetError):
            found[name] = read_public_key(file)
    return found
