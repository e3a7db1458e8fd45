"""The images of a run, read again for its report: only if they are the ones that the run saw.

On a fleet of real machines clients keep their images, so there are only those of the server's buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedqssl.config import RunConfig
from fedqssl.config.load import code_of
from fedqssl.data.cifar import LAYOUTS, on_disk
from fedqssl.data.images import ImageSet
from fedqssl.data.registry import SPLITS, load_dataset
from fedqssl.federated.context import Simulation, make_task, simulation_to_read
from fedqssl.federated.task import Task
from fedqssl.files import read_json
from fedqssl.imported import one_line
from fedqssl.reporting.data import RunData
from fedqssl.runs.images_digest import images_digest

FLEET = "flower"
"""The engine of runs on real machines."""


@dataclass(frozen=True, eq=False)
class Source:
    """A run's images in one place.

    Args:
        task: builds models and views.
        buffer: the server's images.
        simulation: the clients' images with their owners; None on a fleet.
    """

    task: Task
    buffer: Tensor
    simulation: Simulation | None


def read_source(run: RunData) -> Source | str:
    """The run's images; a sentence if they cannot be shown."""
    config, named = run.config, code_of(run.config)
    if named and not run.trust:
        return f"There are no pictures: the run names the code {named[0]}, which is imported only with --trust."
    if _away(config):
        return f"There are no pictures: {config.data} is not on this machine, and a report downloads nothing."
    if run.environment.get("images_sha256") is None and not run.trust:
        return "There are no pictures: this run did not record a digest of its images, so they cannot be recognised."
    try:
        return _fleet(run) if config.engine == FLEET else _simulation(run)
    except (ValueError, OSError, RuntimeError, ImportError) as error:
        return f"There are no pictures: the images cannot be read ({one_line(error)})."


def _away(config: RunConfig) -> bool:
    """Whether reading the data would download them."""
    for spec in filter(None, (config.data, config.buffer)):
        kind, _, path = spec.partition(":")
        if spec in LAYOUTS and not on_disk(spec, config.data_dir):
            return True
        if kind == "hf" and not Path(path).is_dir():
            return True
    return False


def _simulation(run: RunData) -> Source | str:
    context = simulation_to_read(run.config)
    same = images_digest(context.train, context.test, context.public) == run.environment.get("images_sha256")
    if not (same or run.trust) or read_json(run.path / "partition.json") != _plain(context):
        return "There are no pictures: the images have changed since the run."
    return Source(context.task, context.buffer(), context)


def _plain(context: Simulation) -> object:
    """What ``partition.json`` of this simulation says."""
    return {
        name: {client: {part: list(at) for part, at in split.items()} for client, split in value.items()}
        if isinstance(value, dict)
        else value
        for name, value in context.partition_json().items()
    }


def _fleet(run: RunData) -> Source | str:
    config = run.config
    if config.buffer is None:
        return "There are no pictures: the run did not record where the server's buffer is."
    parts = [load_dataset(config.buffer, split, None, config.on_bad, config.image_size).images for split in SPLITS]
    public = torch.cat(parts)
    none = ImageSet(public[:0])
    if images_digest(none, none, public) != run.environment.get("images_sha256") and not run.trust:
        # with --eval the digest is also of labeled images, and the run does not say where they are
        return "There are no pictures: the server's buffer is shown only with --trust, because it cannot be recognised."
    return Source(make_task(config, public.shape[1], run.classes or 0), public, None)


__all__ = ["FLEET", "Source", "read_source"]
