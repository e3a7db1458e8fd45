"""``fedqssl deploy init``: create a fleet folder, or add clients to an existing one. Nothing is overwritten."""

from __future__ import annotations

import os
import pwd
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path

from fedqssl.deploy.fleet import Fleet, FleetError, check_name
from fedqssl.deploy.keys import make_certificates, make_key, renew_certificates, write_new
from fedqssl.files import write_atomically
from fedqssl.listen import is_loopback

PORT = 9443
"""The server's port, unless another is given."""


def _template(name: str) -> str:
    return files("fedqssl.deploy").joinpath("templates", name).read_text(encoding="utf-8")


def make_fleet(path: Path, host: str | None, port: int | None, clients: Sequence[str]) -> list[str]:
    """Create a fleet or add clients to one; returns lines that say what was created."""
    for name in clients:
        check_name(name)
    if len(set(clients)) != len(clients):
        raise FleetError("a client is named twice; every client needs its own name")
    if (path / "fleet.toml").exists():
        if host is not None or port is not None:
            raise FleetError(
                f"{path} exists; to change its address use fedqssl deploy renew {path}, or choose another folder"
            )
        taken = [name for name in clients if (path / "clients" / name).exists()]
        if taken:
            raise FleetError(f"{path} already has a client {taken[0]!r}; nothing was changed")
        if not clients:
            raise FleetError(f"{path} exists; add clients with --clients NAME,NAME, or choose another folder")
        fleet = Fleet.open(path)
        made = [_make_client(fleet, name) for name in clients]
        _add_help(fleet, clients)
        return made
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FleetError(f"{path} exists and is not a fleet folder; choose an empty or new folder")
    return _make_new(path, host or "127.0.0.1", port or PORT, clients)


def _make_new(path: Path, host: str, port: int, clients: Sequence[str]) -> list[str]:
    _check_address(host, port)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in ("server", "clients", "runs"):  # private each, for a folder that was there has permissions of its own
        (path / name).mkdir(mode=0o700)
    write_new(path / ".gitignore", b"# keys are in here: nothing of a fleet belongs into a repository\n*\n", 0o644)
    make_certificates(path, [host])
    write_new(path / "server" / "server.toml", _template("server.toml").encode(), 0o644)
    write_new(path / "fleet.toml", _fleet_toml(host, port), 0o644)  # last: what has it is a fleet
    fleet = Fleet.open(path)
    made = [f"{path}: certificates for {host}, settings, keys"]
    made += [_make_client(fleet, name) for name in clients]
    _write_help(fleet, clients or ["car-17"])
    return made


def _check_address(host: str, port: int) -> None:
    if not 1 <= port <= 65535 or not host or any(c.isspace() or c in '"\\/' for c in host):
        raise FleetError(f"{host}:{port} is not an address; give --host a name or an IP address, and --port 1 to 65535")


def _fleet_toml(host: str, port: int) -> bytes:
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    note = (
        "# where clients reach the server; its certificate must be for this host: change it with fedqssl deploy renew"
    )
    return f'{note}\naddress = "{address}"\n'.encode()


def renew(fleet: Fleet, host: str | None, port: int | None) -> list[str]:
    """Renew the server's certificate and, with ``host`` or ``port``, change the fleet's address; returns what to do next."""
    now, _, now_port = fleet.address.rpartition(":")
    wanted, wanted_port = host or now.strip("[]"), port or int(now_port)
    _check_address(wanted, wanted_port)
    hosts, authority = renew_certificates(fleet, wanted)
    lines = [
        f"{fleet.server / 'server.crt'} is new, for {', '.join(hosts) or 'this machine'}; a running server uses it at once"
    ]
    if host is not None or port is not None:
        write_atomically(fleet.path / "fleet.toml", _fleet_toml(wanted, wanted_port))
        lines.append(
            f"the address is {Fleet.open(fleet.path).address} now; if the server listens elsewhere, start it again"
        )
        lines.append("copy fleet.toml to every client's machine; a running client uses it when the old address fails")
    if authority:
        lines.append(
            "ca.crt is new, too, because it ended soon: copy it to every client's machine before the old one ends"
        )
    return lines


def _make_client(fleet: Fleet, name: str) -> str:
    home = fleet.client(name)
    make_key(home, name)
    write_new(home / "client.toml", _template("client.toml").encode(), 0o644)
    return f"{home}: a key for {name}; copy this folder, fleet.toml and ca.crt to its machine"


def own_key(fleet: Fleet, name: str) -> bool:
    """Create the client's key on its own machine if it has none; returns whether it was created."""
    home = fleet.client(name)
    if (home / "key").exists():
        return False
    if (home / "key.pub").exists():
        raise FleetError(
            f"{home} has a public key but no private key; run this on the machine that has the private key"
        )
    _make_client(fleet, name)
    return True


def commands(fleet: Fleet, clients: Sequence[str]) -> dict[str, str]:
    """One command line for the server and for each client, and the one that starts a run."""
    folder = shlex.quote(str(fleet.path))
    lines = {"server": f"fedqssl deploy server {folder} --buffer folder:/public"}
    lines |= {n: f"fedqssl deploy client {folder} --name {n} --bits 4 --data folder:/photos" for n in clients}
    return lines | {"start": f"fedqssl deploy start {folder} --preset cifar10-small min_clients={len(clients)}"}


def _write_help(fleet: Fleet, clients: Sequence[str]) -> None:
    """``COMMANDS.md``, and units for systemd in ``systemd/``."""
    lines = commands(fleet, clients)
    listed = "\n".join([*lines.values(), f"fedqssl deploy status {shlex.quote(str(fleet.path))}"])
    note = "\nOnly clients on this machine can reach this address; for clients on other machines, create a fleet with --host.\n"
    here = is_loopback(fleet.address.rpartition(":")[0].strip("[]"))
    text = f"# Commands for this fleet\n{note if here else ''}\n```\n{listed}\n```\n"
    write_new(fleet.path / "COMMANDS.md", text.encode(), 0o644)
    _write_units(fleet, {name: line for name, line in lines.items() if name != "start"})


def _add_help(fleet: Fleet, clients: Sequence[str]) -> None:
    """The same for added clients; existing files, which may have been edited, are not changed."""
    path = fleet.path / "COMMANDS.md"
    known = path.read_text(encoding="utf-8") if path.exists() else ""
    all_lines = commands(fleet, clients)
    lines = {name: all_lines[name] for name in clients}
    listed = [line for line in lines.values() if line not in known.splitlines()]
    if listed:
        with path.open("a", encoding="utf-8") as file:
            file.write("\nAdded later:\n\n```\n" + "\n".join(listed) + "\n```\n")
    _write_units(fleet, lines)


def _write_units(fleet: Fleet, lines: dict[str, str]) -> None:
    """Write a systemd unit for the server and each client that has none."""
    (fleet.path / "systemd").mkdir(exist_ok=True)
    for name, line in lines.items():
        command = line.replace("fedqssl", f"{shlex.quote(sys.executable)} -m fedqssl.cli.main", 1)
        unit = _template("fedqssl.service").format(description=f"fedqssl {name}", command=command, user=_user())
        with suppress(FileExistsError):
            write_new(fleet.path / "systemd" / f"fedqssl-{name}.service", unit.encode(), 0o644)


def _user() -> str:
    """The current user; its number if it has no name, as in a container."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())
