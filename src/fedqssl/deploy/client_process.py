"""``fedqssl deploy client``: check the name, read the images, find or create the key, connect."""

from __future__ import annotations

from collections.abc import Callable

import torch

from fedqssl.accelerators import resolve
from fedqssl.config.keys import nearest
from fedqssl.data.bursts import Group
from fedqssl.data.images import ImageSet
from fedqssl.data.pixels import OnBad, check_on_bad
from fedqssl.data.registry import HOLDOUT, SPLITS, is_labeled, load_dataset
from fedqssl.deploy.client_role import FleetClient
from fedqssl.deploy.events import Events
from fedqssl.deploy.fleet import Fleet, FleetError, only_one
from fedqssl.deploy.limits import Allowance
from fedqssl.deploy.roster import MIN_IMAGES
from fedqssl.deploy.scaffold import own_key
from fedqssl.deploy.store import Store
from fedqssl.engines.flower.client import client_app
from fedqssl.models.registry import IMAGE_SIZE
from fedqssl.units import counted


def join(
    fleet: Fleet,
    name: str,
    bits: int,
    data: str,
    threads: int,
    on_bad: str,
    trust: bool,
    say: Callable[[str], None],
    group: Group = "none",
    allowance: Allowance | None = None,
    device: str = "cpu",
) -> None:
    """Take part until SIGTERM or Ctrl-C."""
    check_on_bad(on_bad)
    resolve(device)  # an error now, not in the first round
    _check_known(fleet, name)
    bad: OnBad = "skip" if on_bad == "skip" else "error"
    holdout = HOLDOUT if is_labeled(data, bad, group=group) else 0.0

    def read(size: int) -> tuple[ImageSet, ImageSet]:
        train, test = (load_dataset(data, s, None, bad, size, holdout=holdout, group=group) for s in SPLITS)
        return train, test

    train, test = read(IMAGE_SIZE)
    if len(train) < MIN_IMAGES:
        raise FleetError(f"{data} has {counted(len(train), 'training image')}; at least {MIN_IMAGES} are needed")
    made = own_key(fleet, name)  # last: on the server's machine, who has a key may connect
    home = fleet.client(name)
    with only_one(home, f"client {name}"):
        events = Events(home / "log.jsonl")
        client = FleetClient(name, bits, train, test, Store(home / "state"), events, trust, read, device)
        if len(client.held) < MIN_IMAGES:
            raise FleetError(
                f"{data} leaves {name} {counted(len(client.held), 'training image')}; at least {MIN_IMAGES} are needed"
            )
        if made:
            say(
                f"created a key for {name}; the server's owner must copy {home / 'key.pub'} into clients/{name}/ of the fleet"
            )
        torch.set_num_threads(threads)
        from fedqssl.deploy.node import run_node

        run_node(fleet, name, client_app(lambda context: client), events, say, allowance)


def _check_known(fleet: Fleet, name: str) -> None:
    """Check the name on the server's machine, whose folder lists the clients: a mistyped name must not create a new client."""
    if (fleet.server / "server.key").is_file() and not fleet.client(name).is_dir():
        names = sorted(home.name for home in (fleet.path / "clients").iterdir() if home.is_dir())
        raise FleetError(
            f"{fleet.path} has no client {name!r}{nearest(name, names)} "
            f"(add one with fedqssl deploy init {fleet.path} --clients {name})"
        )
