"""The clients of a fleet, each with its own images and folder, without processes."""

from fedqssl.data.registry import load_dataset
from fedqssl.deploy.client_role import FleetClient
from fedqssl.deploy.events import Events
from fedqssl.deploy.store import Store
from flower_pictures import CLIENTS


def roles(pictures, home):
    found = {}
    for name, bits in CLIENTS.items():
        train, test = (load_dataset(f"folder:{pictures}/{name}", s) for s in ("train", "test"))
        found[name] = FleetClient(name, bits, train, test, Store(home / name), Events(home / f"{name}.jsonl"))
    return found
