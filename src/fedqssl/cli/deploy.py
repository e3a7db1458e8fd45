"""``fedqssl deploy``: run on real machines over Flower, with TLS and a key for each client."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from fedqssl.cli.arguments import INTERRUPTED

app = typer.Typer(
    help="Run on real machines: TLS, a key for each client, and data that never leave their machine.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(metavar="FLEET", help="The fleet folder.")]
Host = Annotated[str | None, typer.Option(help="Name or IP address at which clients reach the server.")]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Port of the server; 9443 by default.")]
Clients = Annotated[str | None, typer.Option(metavar="NAME,...", help="Clients to make keys for.")]
Listen = Annotated[
    str | None, typer.Option("--host", help="Address to listen on; by default chosen from the fleet's address.")
]
Buffer = Annotated[
    str | None, typer.Option(metavar="DATA", help="The server's own images (buffer): folder:PATH or a data set.")
]
EvalData = Annotated[
    str | None,
    typer.Option(
        "--eval", metavar="DATA", help="Labeled images to measure the global accuracy; without them it is not measured."
    ),
]
MaxMib = Annotated[int | None, typer.Option("--max-mib", min=1, max=4096, help="Largest message, in MiB (256).")]
OnBad = Annotated[str, typer.Option("--on-bad", help="Corrupt images: error, or skip.")]
OnBadServer = Annotated[
    str | None,
    typer.Option("--on-bad", help="Corrupt images: error (the default), or skip."),
]
Name = Annotated[str, typer.Option(help="The client's name.")]
Bits = Annotated[int | None, typer.Option(help="What this client can afford: 1 to 16, or 32.")]
Data = Annotated[str | None, typer.Option(metavar="DATA", help="The client's images: folder:PATH or a data set.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Torch threads (1).")]
Device = Annotated[str | None, typer.Option(help="What this client computes on: cpu, cuda, cuda:N or auto (cpu).")]
Server = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Address of the server, if it differs from the fleet's.")
]
MaxRate = Annotated[
    str | None, typer.Option("--max-rate", metavar="RATE", help="Bytes per second, on average: 200k, 2M.")
]
Hours = Annotated[
    str | None, typer.Option(metavar="FROM-TO", help="Take part only at this time of the day: 1-6, 22:30-6.")
]
Resume = Annotated[
    bool, typer.Option("--resume/--no-resume", help="Resume a run that was interrupted when the server stopped.")
]
Page = Annotated[
    str | None,
    typer.Option(
        metavar="[HOST:]PORT", help="Show the fleet in the browser, on this machine only unless HOST is given."
    ),
]
Group = Annotated[
    str | None, typer.Option(help="Bursts that stay together (docs/how-to/own-photos.md): none, prefix or folder.")
]
Trust = Annotated[bool, typer.Option("--trust", help="Allow the server to name a model for this machine to import.")]
Preset = Annotated[str | None, typer.Option(help="A preset or a TOML file, for a new run.")]
Words = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings to change.")]
Wait = Annotated[bool, typer.Option("--wait", help="Show the run until it ends.")]
New = Annotated[bool, typer.Option("--new", help="Start a new run even though the last one is not finished.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
StatusClient = Annotated[str | None, typer.Option("--client", help="Show one client.")]


AppFolder = Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.")]
AppPreset = Annotated[str, typer.Option("--preset", help="A preset or a TOML file.")]
AppOut = Annotated[
    Path | None, typer.Option("--out", help="Where its runs are kept, on the server; DIR/runs by default.")
]


def _check() -> None:
    from fedqssl.engines.flower import check_flower

    check_flower()


@app.command()
def init(fleet: Folder, host: Host = None, port: Port = None, clients: Clients = None) -> None:
    """Make certificates, keys, settings and a command line for each machine; or add keys for more clients.

    For example: fedqssl deploy init my-fleet/ --host 192.168.1.5 --clients car-17,car-18
    """
    _check()
    from fedqssl.deploy.scaffold import make_fleet

    names = [name.strip() for name in (clients or "").split(",") if name.strip()]
    for line in make_fleet(fleet, host, port, names):
        typer.echo(line)
    typer.echo(f"commands for each machine: {fleet / 'COMMANDS.md'}")


def _settings(path: Path, given: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Options take precedence over the file's values, and those over the defaults."""
    from fedqssl.config.keys import nearest
    from fedqssl.deploy.fleet import FleetError, read_toml

    values = read_toml(path, "") if path.is_file() else {}
    for key, value in values.items():
        if key not in known:
            raise FleetError(f"{path}: unknown setting {key!r}{nearest(key, known)}")
        kind = type(known[key]) if known[key] is not None else str
        if type(value) is not kind:
            raise FleetError(f"{path}: {key} takes {'a number' if kind is int else 'a text'}, not {value!r}")
    return {**known, **values, **{key: value for key, value in given.items() if value is not None}}


@app.command()
def server(
    fleet: Folder,
    buffer: Buffer = None,
    labeled: EvalData = None,
    host: Listen = None,
    port: Port = None,
    max_mib: MaxMib = None,
    on_bad: OnBadServer = None,
    resume: Resume = True,
    page: Page = None,
) -> None:
    """Serve a fleet and carry out its runs until Ctrl-C.

    Without --buffer and --eval, the images of the previous start are used. A run that was interrupted, because the server or its
    machine stopped, is resumed.

    For example: fedqssl deploy server my-fleet/ --buffer folder:/public
    """
    _check()
    from fedqssl.data.pixels import check_on_bad
    from fedqssl.data.registry import absolute
    from fedqssl.deploy.control import LAST
    from fedqssl.deploy.fleet import Fleet, FleetError, ServerData
    from fedqssl.deploy.serving import serve
    from fedqssl.listen import is_loopback

    check_on_bad(on_bad or "error")
    found = Fleet.open(fleet)
    last = found.exchanged(LAST) if buffer is None and labeled is None else {}
    own, _, own_port = found.address.rpartition(":")
    given = {"buffer": buffer, "eval": labeled, "host": host, "max_mib": max_mib, "page": page}
    known: dict[str, Any] = {"buffer": last.get("buffer"), "eval": last.get("labeled"), "max_mib": 256, "page": None}
    known["host"] = "127.0.0.1" if is_loopback(own.strip("[]")) else "0.0.0.0"
    values = _settings(found.server / "server.toml", given, known)
    if values["buffer"] is None:
        raise FleetError("the server needs images of its own: --buffer folder:PATH")
    on_bad = on_bad or last.get("on_bad") or "error"
    data = ServerData(absolute(values["buffer"]), values["eval"] and absolute(values["eval"]), on_bad)
    most = values["max_mib"] << 20
    serve(found, data, values["host"], port or int(own_port), most, typer.echo, resume, values["page"])


@app.command()
def renew(fleet: Folder, host: Host = None, port: Port = None) -> None:
    """Renew the server's certificate; with --host or --port, change the fleet's address. Clients keep their keys.

    For example: fedqssl deploy renew my-fleet/ --host 192.168.1.9
    """
    _check()
    from fedqssl.deploy import scaffold
    from fedqssl.deploy.fleet import Fleet

    for line in scaffold.renew(Fleet.open(fleet), host, port):
        typer.echo(line)


@app.command("flower-app")
def flower_app(folder: AppFolder, preset: AppPreset = "quickstart", out: AppOut = None) -> None:
    """Write a Flower app that carries our runs, for flwr run, SuperLinks and SuperNodes.

    For example: fedqssl deploy flower-app my-app/ --preset quickstart
    """
    from fedqssl.deploy.flower_template import write_app

    for path in write_app(folder, preset, out):
        typer.echo(path)
    typer.echo(f"start it with: flwr run {folder} --stream; README.md in it says more")


@app.command()
def client(
    fleet: Folder,
    name: Name,
    bits: Bits = None,
    data: Data = None,
    threads: Threads = None,
    server: Server = None,
    on_bad: OnBad = "error",
    trust: Trust = False,
    group: Group = None,
    max_rate: MaxRate = None,
    hours: Hours = None,
    device: Device = None,
) -> None:
    """Take part with the images on this machine, which stay here, until Ctrl-C.

    For example: fedqssl deploy client my-fleet/ --name car-17 --bits 4 --data folder:/photos
    """
    _check()
    from dataclasses import replace

    from fedqssl.config.schema import parse_bits
    from fedqssl.deploy.client_process import join
    from fedqssl.deploy.fleet import Fleet, FleetError
    from fedqssl.deploy.limits import Allowance

    found = Fleet.open(fleet)
    found = found if server is None else replace(found, address=server)
    given = {"bits": bits, "data": data, "threads": threads, "group": group, "device": device}
    given |= {"max_rate": max_rate, "hours": hours}
    known: dict[str, Any] = dict.fromkeys(given) | {"bits": 0, "threads": 1, "group": "none", "device": "cpu"}
    values = _settings(found.client(name) / "client.toml", given, known)
    if not values["bits"] or values["data"] is None:
        raise FleetError("a client needs --bits and --data, on the command line or in its client.toml")
    try:
        parse_bits(values["bits"])
    except ValueError as error:
        raise FleetError(f"--bits {error}") from None
    limits = Allowance.parse(values["max_rate"], values["hours"])
    how = values["threads"], on_bad, trust, typer.echo, values["group"], limits, values["device"]
    join(found, name, values["bits"], values["data"], *how)


@app.command()
def start(fleet: Folder, words: Words = None, preset: Preset = None, wait: Wait = False, new: New = False) -> None:
    """Start a run, or resume the unfinished one.

    For example: fedqssl deploy start my-fleet/ --preset cifar10-small rounds=20 min_clients=2
    """
    from fedqssl.deploy import control
    from fedqssl.deploy.fleet import Fleet, FleetError

    found = Fleet.open(fleet)
    name, again = control.start(found, preset, words or (), new)
    typer.echo(f"{'resumed' if again else 'started'} {name} in {found.runs / name}")
    if not wait:
        typer.echo(f"follow it with: fedqssl deploy status {fleet}")
        return
    status = control.follow(found, name, typer.echo)
    if status.get("state") == "stopped":
        typer.echo(f"{name} was stopped; resume it with: fedqssl deploy start {fleet}")
        raise typer.Exit(INTERRUPTED)
    if status.get("state") != "finished":
        raise FleetError(control.ended(name, status, fleet))
    typer.echo(f"results are in {found.runs / name}; start with {found.runs / name / 'summary.md'}")


@app.command()
def stop(fleet: Folder) -> None:
    """Stop the current run; fedqssl deploy start resumes it from its last checkpoint."""
    from fedqssl.deploy import control
    from fedqssl.deploy.fleet import Fleet

    typer.echo(f"stopped {control.stop(Fleet.open(fleet))}; resume it with: fedqssl deploy start {fleet}")


@app.command()
def status(fleet: Folder, json: Json = False, client: StatusClient = None) -> None:
    """Show which clients are connected, their bits, when each was last seen, and bytes transferred."""
    from fedqssl.deploy.fleet import Fleet
    from fedqssl.deploy.status import awaited, collect, headline, table

    values = collect(Fleet.open(fleet))
    if json:
        typer.echo(json_format.dumps(values, indent=1))
        return
    typer.echo(headline(values))
    Console().print(table(values, client))
    if line := awaited(values):
        typer.echo(line)
    if values["run"]["error"]:
        typer.echo(f"the run's error: {values['run']['error']}")
    for name, c in values["clients"].items():
        if c["refused"]:
            typer.echo(f"{name} cannot take part: {c['refused']}")
