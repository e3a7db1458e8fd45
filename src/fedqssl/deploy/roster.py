"""The clients of a run on real machines: what they reported when they joined, and the run's context built from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import torch

from fedqssl.config import RunConfig
from fedqssl.config.schema import parse_bits
from fedqssl.data.images import ImageSet, with_channels
from fedqssl.data.pixels import OnBad
from fedqssl.data.registry import SPLITS, load_dataset
from fedqssl.deploy.fleet import FleetError, ServerData
from fedqssl.deploy.versions import disagreement, own_versions
from fedqssl.engines.flower.wire import Capabilities, plain
from fedqssl.federated.context import Context, FleetContext, class_count, make_task
from fedqssl.federated.server.operators import requantize_as_configured
from fedqssl.federated.state import read_payload
from fedqssl.lowbit import to_bytes
from fedqssl.models.registry import IMAGE_SIZE
from fedqssl.runs.folder import Checkpoint
from fedqssl.units import counted

MIN_IMAGES = 2
"""A contrastive batch needs two images."""
MAX_IMAGES = 10**7
"""More than any client has: a larger number is a mistake or false."""
Roster = dict[str, Capabilities]


def refusal(name: str, told: Capabilities, before: Capabilities | None) -> str | None:
    """Why a client cannot take part (again); None if it can. The name that it reports must be that of its key."""
    if told.name != name:
        return f"it reports the name {told.name!r}, but its key belongs to {name!r}"
    try:
        parse_bits(told.bits)
    except ValueError as error:
        return plain(f"its bits: {error}")
    if why := disagreement({"fedqssl": told.version}, own_versions()):
        return why
    if max(told.samples, told.test_samples) > MAX_IMAGES or told.test_samples < 0:
        return plain(
            f"0 to {MAX_IMAGES} images are possible, not {told.samples} to train and {told.test_samples} to test"
        )
    if told.samples < MIN_IMAGES:
        return plain(f"it has {counted(told.samples, 'training image')}; at least {MIN_IMAGES} are needed")
    if before is not None and (told.bits, told.samples) != (before.bits, before.samples):
        now, then = (f"{counted(t.bits, 'bit')}, {counted(t.samples, 'image')}" for t in (told, before))
        return f"it has {now} now, but joined this run with {then}; start a new run"
    return None


def roster_json(roster: Roster) -> dict[str, Any]:
    """Plain values for ``roster.json``."""
    return {name: asdict(told) for name, told in sorted(roster.items())}


def read_roster(values: object) -> Roster:
    """Inverse of :func:`roster_json`."""
    try:
        return {str(name): Capabilities(**told) for name, told in values.items()}  # type: ignore[attr-defined]
    except (AttributeError, TypeError) as error:
        raise FleetError(f"roster.json of the run cannot be read ({error})") from error


class ServerImages:
    """The server's own images, of a run's size: the buffer, and labeled ones for the evaluation, if any."""

    def __init__(self, data: ServerData, size: int = IMAGE_SIZE) -> None:
        self.public = torch.cat([part.images for part in _both(data.buffer, data, size)])
        if len(self.public) < MIN_IMAGES:
            raise FleetError(
                f"the buffer {data.buffer} has {counted(len(self.public), 'image')}; at least {MIN_IMAGES} are needed"
            )
        none = ImageSet(self.public[:0])
        self.train, self.test = none, none
        if data.labeled is not None:
            self.train, self.test = (self._like_the_buffer(part) for part in _both(data.labeled, data, size))
            if self.train.labels is None or self.test.labels is None:
                raise FleetError(
                    f"{data.labeled} has no labels, so it cannot be used to measure accuracy; sort it into one folder per class"
                )

    def _like_the_buffer(self, part: ImageSet) -> ImageSet:
        return replace(part, images=with_channels(part.images, self.public.shape[1]))

    def context(self, config: RunConfig, roster: Mapping[str, Capabilities]) -> FleetContext:
        """The run's context with these clients."""
        names = sorted(roster)
        bits = {n: roster[n].bits for n in names}
        config = config.model_copy(update={"clients": len(names), "bits": tuple(bits.values())})
        task = make_task(config, self.public.shape[1], class_count(self.train, self.test))
        if task.supervised and not task.classes:
            raise FleetError(
                f"{config.algorithm} trains with labels; start the server with --eval, so that classes have numbers"
            )
        samples = {n: (roster[n].samples, roster[n].test_samples) for n in names}
        return FleetContext(config, task, bits, self.train, self.test, self.public, samples)


def _both(spec: str, data: ServerData, size: int) -> list[ImageSet]:
    on_bad: OnBad = "skip" if data.on_bad == "skip" else "error"
    return [load_dataset(spec, split, None, on_bad, size) for split in SPLITS]


def first_model(context: Context, checkpoint: Checkpoint, bits: int, lr: float) -> bytes:
    """The first model of a client that joins later: the aggregated model in its bits, or the initial model if there is none."""
    if checkpoint.aggregated is None:
        return to_bytes(context.task.converted(bits))
    state, epochs = read_payload(checkpoint.aggregated, 32, context.task), context.config.server.requantize_epochs
    return requantize_as_configured(context, bits, state, checkpoint.rounds_done, lr, epochs)
