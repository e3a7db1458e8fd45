"""The clients of a fleet, each with its own images and folder, without processes."""

from fedqssl.data.registry import HOLDOUT, is_labeled, load_dataset
from fedqssl.deploy.client_role import FleetClient
from fedqssl.deploy.events import Events
from fedqssl.deploy.store import Store
from flower_pictures import CLIENTS


def roles(pictures, home):
    found = {}
    for name, bits in CLIENTS.items():
        spec = f"folder:{pictures}/{name}"
        holdout = HOLDOUT if is_labeled(spec) else 0.0
        train, test = (load_dataset(spec, s, holdout=holdout) for s in ("train", "test"))
        found[name] = FleetClient(name, bits, train, test, Store(home / name), Events(home / f"{name}.jsonl"))
    return found
