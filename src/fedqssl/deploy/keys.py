"""Certificates and keys: the fleet's own authority, the server's certificate, and a key pair for each client.

Private keys are created readable only by their owner, and never overwritten; certificates can be renewed.
"""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedqssl.deploy.fleet import Fleet, FleetError
from fedqssl.files import write_atomically

YEARS = 10
AUTHORITY = "fedqssl fleet"
HERE = ("localhost", "127.0.0.1", "::1")
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


def _authority(key: PrivateKey) -> x509.Certificate:
    """The fleet's own authority; made anew with the same key, it still recognises what it signed before."""
    return (
        _certificate(AUTHORITY, AUTHORITY, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage("key_cert_sign", "crl_sign"), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _leaf(authority: PrivateKey, key: PrivateKey, hosts: Sequence[str]) -> x509.Certificate:
    """The server's certificate for these hosts and this machine."""
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    known = dict.fromkeys([*HERE, *hosts])
    return (
        _certificate("fedqssl server", AUTHORITY, key)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in known]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority, hashes.SHA256())
    )


def make_certificates(fleet: Path, hosts: list[str]) -> None:
    """``ca.crt``, and in ``server/`` the authority's key, ``server.crt`` for these hosts, and its key."""
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    root, leaf = _authority(authority), _leaf(authority, key, hosts)
    write_new(fleet / "ca.crt", root.public_bytes(forms.Encoding.PEM), 0o644)
    write_new(fleet / "server" / "server.crt", leaf.public_bytes(forms.Encoding.PEM), 0o644)
    write_new(fleet / "server" / "server.key", _pem(key), 0o600)
    write_new(fleet / "server" / "ca.key", _pem(authority), 0o600)


def _server_key(path: Path) -> PrivateKey:
    try:
        key = forms.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError) as error:
        raise FleetError(
            f"{path} cannot be read ({error}); run this where the fleet was made, or restore it"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise FleetError(f"{path} is not an elliptic-curve key; restore the file that deploy init made")
    return key


def renew_certificates(fleet: Fleet, host: str | None) -> tuple[list[str], bool]:
    """Sign a new certificate for the server's key, for its hosts so far and ``host``; existing clients accept it.

    The authority's own certificate is replaced when less than a year of it is left: by one with the same key, so that clients
    with the old ``ca.crt`` go on until that ends.

    Returns:
        The hosts of the certificate, and whether ``ca.crt`` is new.
    """
    authority, key = (_server_key(fleet.server / name) for name in ("ca.key", "server.key"))
    file = fleet.server / "server.crt"
    try:
        before = x509.load_pem_x509_certificate(file.read_bytes())
        root = x509.load_pem_x509_certificate(fleet.authority.read_bytes())
        names = before.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise FleetError(f"the fleet's certificates cannot be read ({error}); restore them from a backup") from error
    hosts = dict.fromkeys([*(str(name.value) for name in names), *([host] if host else [])])
    others = [name for name in hosts if name not in HERE]
    soon = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=365)
    old = root.not_valid_after_utc < soon
    if old:
        write_atomically(fleet.authority, _authority(authority).public_bytes(forms.Encoding.PEM))
    write_atomically(file, _leaf(authority, key, others).public_bytes(forms.Encoding.PEM))
    return others, old


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
    return public_pem(key)


def public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    """A public key as Flower sends it."""
    return key.public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)


def public_keys(fleet: Fleet) -> dict[str, bytes]:
    """Public keys by client name; a file that is not a key (perhaps half-written) is left out."""
    found = {}
    for name, file in fleet.public_keys().items():
        with contextlib.suppress(FleetError):
            found[name] = read_public_key(file)
    return found
