"""The simulated clock (``clock = TABLE``): what a round would take on the devices of a table, with stragglers and dropouts.

A client's round takes what ``fedqssl plan`` says of it (:func:`fedqssl.cost.devices.device_round`): download, training, upload.
A round begins with clients that are there (``availability``); the server waits until there are ``min_clients`` of them. A client
k of the round stops after

    d_k = min(its seconds, the seconds until it goes offline, ``deadline``)

and replies if that was all it needed. The round lasts ``max_k d_k``; the server's own work takes no simulated time. Energy counts
training only, as far as it came. Only clients that reply are trained at all. Whatever the engine, the clock is the same.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedqssl.cost.devices import DeviceRound, read_devices
from fedqssl.cost.ledger import ledger
from fedqssl.cost.sizes import Sizes
from fedqssl.federated.context import Context
from fedqssl.runs.folder import RunError, RunFolder
from fedqssl.units import seconds_text

FILE = "clock.json"
TIME = "clock/seconds"
"""Where the server's state keeps the simulated time."""
Window = tuple[float, float]
COLUMNS = ["client", "start", "end"]
ROUNDING = 1e-9
"""Of the period: times that are less apart are the same, so that sums of seconds find the start of a window."""


@dataclass(frozen=True)
class Timed:
    """One client's round: seconds of its parts, and joules of its training if its device's energy is known."""

    download: float
    compute: float
    upload: float
    joules: float | None = None

    @property
    def seconds(self) -> float:
        """Of the whole round."""
        return self.download + self.compute + self.upload

    def spent(self, seconds: float) -> float | None:
        """Joules of as much of the training as these seconds hold."""
        if self.joules is None or not self.compute:
            return self.joules
        return self.joules * min(max(seconds - self.download, 0.0) / self.compute, 1.0)


@dataclass(frozen=True)
class SimulatedRound:
    """One round by the clock: when it began, how long it took, who was asked, why some did not reply, and joules by client."""

    start: float
    seconds: float
    names: list[str]
    failed: dict[str, str]
    joules: dict[str, float]

    @property
    def end(self) -> float:
        """When the next round may begin."""
        return self.start + self.seconds

    def line(self) -> dict[str, float | None]:
        """For ``metrics.jsonl``: the round's seconds, the time at its end, and joules if all of them are known."""
        known = self.names and all(name in self.joules for name in self.names)
        joules = math.fsum(self.joules.values()) if known else None
        return {"simulated_seconds": self.seconds, "simulated_time": self.end, "simulated_joules": joules}


@dataclass(frozen=True)
class Clock:
    """Times of all clients, and when they are there.

    Args:
        clients: their rounds.
        windows: from when to when each client is there, in seconds, increasing; a client without any is always there.
        deadline: in simulated seconds.
        least: clients that a round needs.
    """

    clients: Mapping[str, Timed]
    windows: Mapping[str, tuple[Window, ...]] = field(default_factory=dict)
    deadline: float | None = None
    least: int = 1

    @property
    def period(self) -> float:
        """After which the windows repeat: the end of the last one."""
        return max((end for windows in self.windows.values() for _, end in windows), default=math.inf)

    def left(self, name: str, now: float) -> float:
        """Seconds until a client goes offline; 0 if it is not there."""
        if name not in self.windows:
            return math.inf
        near = ROUNDING * self.period
        time = now % self.period
        time = 0.0 if self.period - time <= near else time
        return max((end - time for start, end in self.windows[name] if start <= time + near < end), default=0.0)

    def available(self, now: float) -> list[str]:
        """Who is there."""
        return [name for name in sorted(self.clients) if self.left(name, now) > 0]

    def next_start(self, now: float) -> float:
        """The first time from now on at which enough clients are there.

        Raises:
            RunError: there is none.
        """
        if len(self.available(now)) >= self.least:
            return now
        begun = now - now % self.period
        starts = sorted({start for windows in self.windows.values() for start, _ in windows})
        for time in (begun + turn * self.period + start for turn in (0, 1) for start in starts):
            if time > now and len(self.available(time)) >= self.least:
                return time
        raise RunError(
            f"there are never {self.least} clients at the same time; lower min_clients, or give longer times of availability"
        )

    def play(self, names: Iterable[str], now: float) -> SimulatedRound:
        """A round of these clients that begins now."""
        deadline = math.inf if self.deadline is None else self.deadline
        stops, failed, joules = dict[str, float](), dict[str, str](), dict[str, float]()
        for name in sorted(names):
            needs, left = self.clients[name].seconds, self.left(name, now)
            stops[name] = min(needs, left, deadline)
            if needs > deadline and deadline <= left:
                failed[name] = (
                    f"it needs {seconds_text(needs)}, and the deadline is {seconds_text(deadline)} (simulated)"
                )
            elif needs > left:
                failed[name] = f"it went offline after {seconds_text(left)} of {seconds_text(needs)} (simulated)"
            spent = self.clients[name].spent(stops[name])
            joules |= {} if spent is None else {name: spent}
        return SimulatedRound(now, max(stops.values(), default=0.0), sorted(stops), failed, joules)

    def play_at(self, now: Tensor | float, choose: Callable[[list[str]], list[str]]) -> SimulatedRound:
        """The round that begins as soon as enough clients are there; ``choose`` picks some of them."""
        start = self.next_start(float(now))
        return self.play(choose(self.available(start)), start)

    def to_json(self) -> str:
        """The text of ``clock.json``."""
        return json.dumps(asdict(self), indent=1) + "\n"


_CLOCK = TypeAdapter(Clock)


def timed(rounds: Mapping[str, DeviceRound]) -> dict[str, Timed]:
    """Times of device rounds.

    Raises:
        RunError: nothing in the table takes time.
    """
    silent = sorted(name for name, found in rounds.items() if not found.seconds)
    if silent:
        raise RunError(
            f"the clock's table has no speed for {silent[0]}; give uplink, downlink or operations_per_second (docs/cost.md)"
        )
    return {name: Timed(found.download, found.compute, found.upload, found.energy) for name, found in rounds.items()}


def read_windows(path: Path, clients: Collection[str]) -> dict[str, tuple[Window, ...]]:
    """Times of availability: a CSV file with the columns client, start, end (seconds); everything repeats after the last end.

    Raises:
        RunError: one line that names the file and the row.
    """
    found: dict[str, list[Window]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read ({error}); availability takes a CSV file (docs/cost.md)") from error
    if not rows or [cell.strip() for cell in rows[0]] != COLUMNS:
        raise RunError(f"{path}: the first row must be {','.join(COLUMNS)}")
    for number, row in enumerate(rows[1:], 2):
        name, window = row[0].strip() if row else "", _window(row[1:])
        if name not in clients:
            raise RunError(f"{path}: row {number} names {name!r}, but the run has no such client")
        if window is None:
            raise RunError(f"{path}: row {number} needs a start and a later end in seconds, not {','.join(row[1:])!r}")
        found.setdefault(name, []).append(window)
    return {name: _joined(sorted(windows)) for name, windows in sorted(found.items())}


def _window(cells: Sequence[str]) -> Window | None:
    try:
        start, end = map(float, cells)
    except ValueError:
        return None
    return (start, end) if 0 <= start < end < math.inf else None


def _joined(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Windows that touch or overlap as one."""
    found: list[Window] = []
    for start, end in windows:
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return tuple(found)


def clock_of(context: Context, folder: RunFolder) -> Clock | None:
    """The run's clock: as it was when the run began, if it has begun, whatever has become of the table since.

    Raises:
        RunError: the table, the times of availability or the noted clock cannot be used.
    """
    config, noted = context.config, folder.path / FILE
    if config.clock is None:
        return None
    if not context.algorithm.has_clients:
        raise RunError(f"{config.algorithm} trains no clients, so there is nothing that a clock could time")
    if noted.exists():
        try:
            return _CLOCK.validate_python(folder.read_json(FILE))
        except ValidationError as error:
            raise RunError(f"{noted} cannot be read; restore it, or start a new run") from error
    channels, height, width = context.train.images.shape[1:]
    sizes = Sizes(context.sizes, len(context.buffer()), (channels, height, width), classes=context.task.classes or 10)
    rounds = read_devices(config.clock).rounds(ledger(config, sizes))
    windows = {} if config.availability is None else read_windows(config.availability, context.bits)
    clock = Clock(timed(rounds), windows, config.deadline, config.min_clients)
    clock.next_start(0.0)
    folder.write(FILE, clock.to_json())
    return clock


__all__ = ["Clock", "SimulatedRound", "Timed", "clock_of", "read_windows", "timed"]
