"""The content of a message: our payload bytes as an array of our own type, and one small JSON text about them.

Flower's strategies refuse to average an array whose ``stype`` they do not know, which is the guard we want. Nothing is pickled:
records are protobuf, the text is JSON checked against the dataclasses below, the payload is checked by the algorithm.
"""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from pydantic import TypeAdapter, ValidationError

from fedqssl import __version__
from fedqssl.federated.client import ClientMetrics
from fedqssl.federated.job import Job
from fedqssl.federated.perform import read_job

STYPE = "fedqssl.container"
MAX_TEXT = 1 << 16
"""Most bytes of the text about a payload; a normal one has about a thousand."""
MAX_FIGURE = 10**9
"""Largest count or number of seconds in a reply, so that sums stay finite."""
SHOWN = ("name", "version", "architecture", "failed")
"""Most characters of a client's texts, which end up in logs and on terminals."""
QUERY, TRAIN, EVALUATE = "query.capabilities", "train", "evaluate"
"""The three kinds of message."""


class WireError(ValueError):
    """A message is not valid; the error says why."""


@dataclass(frozen=True)
class Capabilities:
    """What a client reports about itself; about its data only the number of images."""

    name: str
    bits: int
    samples: int
    test_samples: int
    version: str = __version__
    architecture: str = platform.machine()


@dataclass(frozen=True)
class Request:
    """What goes to a client along with its model.

    Args:
        run: which run this is.
        nonce: drawn for this message; the reply must repeat it.
        order: the round's work.
        class_names: what the classes of a supervised task are called; the client's labels are mapped to these.
    """

    run: str
    nonce: str
    order: dict[str, Any]
    class_names: tuple[str, ...] | None = None

    def job(self, *, trust: bool = False) -> Job:
        """The round's job, validated."""
        return read_job(self.order, trust=trust)


@dataclass(frozen=True)
class Reply:
    """What comes back along with a model; ``failed`` says why there is none, ``accuracy`` answers an evaluation."""

    run: str
    nonce: str
    round_number: int
    samples: int
    losses: tuple[float, ...] = ()
    skipped_steps: int = 0
    seconds: float = 0.0
    failed: str | None = None
    accuracy: float | None = None

    def metrics(self) -> ClientMetrics:
        """The metrics in the form that the server part of a run expects."""
        return ClientMetrics(self.samples, self.losses, self.skipped_steps, self.seconds)


About = TypeVar("About", Capabilities, Request, Reply)


def plain(text: str, limit: int = 300) -> str:
    """An untrusted text made safe to show: one line, limited length, control characters replaced by spaces."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    return "".join(letter if letter.isprintable() else " " for letter in cut)


def pack(about: Capabilities | Request | Reply, payload: bytes | None = None) -> RecordDict:
    """The records of a message."""
    records = RecordDict({"about": ConfigRecord({"json": json.dumps(asdict(about))})})
    if payload is not None:
        array = Array(dtype="uint8", shape=(len(payload),), stype=STYPE, data=payload)
        records["model"] = ArrayRecord({"payload": array})
    return records


def unpack(records: RecordDict, kind: type[About]) -> tuple[About, bytes]:
    """Inverse of :func:`pack`; a missing payload is returned as empty bytes.

    Raises:
        WireError: these are not valid records.
    """
    try:
        text = records["about"]["json"]
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise WireError("the text about the payload is missing or too long")
        about = TypeAdapter(kind).validate_json(text)
        told = {key: getattr(about, key, None) for key in SHOWN}
        texts: dict[str, Any] = {key: plain(found) for key, found in told.items() if isinstance(found, str)}
        about = replace(about, **texts)
        if "model" not in records:
            return about, b""
        array = records["model"]["payload"]
        if not isinstance(array, Array) or array.stype != STYPE:
            raise WireError("the payload is not of our type")
        return about, array.data
    except WireError:
        raise
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise WireError(plain(f"not a valid {kind.__name__}: {where} {first['msg']}")) from None
    except (KeyError, TypeError, ValueError) as error:
        raise WireError(plain(f"not a {kind.__name__}: {error!r}")) from None


def check_reply(reply: Reply, request: Request, job: Job, samples: int) -> None:
    """Raise WireError unless this reply answers this request, from a client that has this many images.

    Losses need not be finite: an epoch with skipped steps has none that is.
    """
    figures = reply.round_number, reply.samples, reply.skipped_steps, reply.seconds
    too_many = len(reply.losses) > (job.epochs or job.steps or 0)
    if too_many or not all(0 <= figure <= MAX_FIGURE for figure in figures):  # NaN is not
        raise WireError("its figures are out of range")
    if (reply.run, reply.nonce, reply.round_number) != (request.run, request.nonce, job.round_number):
        raise WireError(f"a reply to another message (round {reply.round_number + 1}), perhaps replayed")
    if reply.samples != samples:
        raise WireError(f"it claims {reply.samples} images, but had {samples} when it joined")
