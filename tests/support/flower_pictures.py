"""Small folders of pictures: what each party of a fleet has."""

import functools
from pathlib import Path

CLIENTS = {"car-1": 4, "car-2": 8, "van-3": 32}
"""Bits by name. The van's pictures have no labels."""
SETTINGS = {
    "model": "small_cnn",
    "width": 4,
    "rounds": 2,
    "batch_size": 16,
    "min_clients": 3,
    "workers": 1,
    "evaluation.knn_every": 0,
    "evaluation.probe_images": 30,
}


def write_pictures(folder: Path) -> None:
    from PIL import Image

    from fedqssl.data.scenes import scenes

    data = scenes(200)
    for number, (name, labeled) in enumerate(
        [("buffer", False), ("car-1", True), ("car-2", True), ("van-3", False), ("eval", True)]
    ):
        for i in range(40 * number, 40 * number + 40):
            # a class's name and a file's name that occur nowhere else
            home = folder / name / f"marked-{data.class_names[data.labels[i]]}" if labeled else folder / name
            home.mkdir(parents=True, exist_ok=True)
            Image.fromarray(data.images[i].permute(1, 2, 0).numpy()).save(home / f"holiday-{i}.png")


def in_one_place(folder: Path, **changes):
    """The same run as the fleet's, as a context for the in-process engine."""
    import torch

    from fedqssl.config import load_config
    from fedqssl.data.images import ImageSet
    from fedqssl.data.registry import HOLDOUT, load_dataset
    from fedqssl.data.splits import ClientSplit, Partition
    from fedqssl.federated.context import Simulation, make_task

    settings = {**SETTINGS, **changes, "clients": len(CLIENTS), "bits": list(CLIENTS.values())}
    config = load_config("smoke", settings)
    public = torch.cat([load_dataset(f"folder:{folder}/buffer", s).images for s in ("train", "test")])
    parts, splits, at = [], {}, 0
    for name in CLIENTS:
        unlabeled = name == "van-3"  # so nothing is held out
        images = load_dataset(f"folder:{folder}/{name}", "train", holdout=0.0 if unlabeled else HOLDOUT).images
        splits[name] = ClientSplit(torch.arange(at, at + len(images)), torch.arange(0))
        parts.append(images)
        at += len(images)
    classes = 10 if changes.get("algorithm") in ("fed_avg", "fed_prox", "fed_paq") else 0
    task = make_task(config, 3, classes)
    partition = Partition(torch.arange(at, at + len(public)), splits)
    images = ImageSet(torch.cat([*parts, public]))
    return Simulation(config, task, dict(CLIENTS), images, ImageSet(public[:0]), partition)


@functools.cache
def rounds_in_one_place(folder: Path, count: int):
    """Checkpoint and lines of the first rounds of that run; played once per process, so only look at them."""
    from tiny_run import rounds_of

    return rounds_of(in_one_place(folder), count)


def words(**changes) -> list[str]:
    return [f"{key}={value}" for key, value in {**SETTINGS, **changes}.items()]
