"""What a client may use of its own connection and day: ``--max-rate`` and ``--hours``."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from fedqssl.deploy.fleet import FleetError

UNITS = {"": 1, "k": 10**3, "m": 10**6}
DAY = 24 * 60


def parse_rate(text: str) -> float:
    """Bytes per second: ``200k``, ``2M``, ``1.5M``, ``64000``."""
    found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,6})?)([kKmM]?)", text)
    rate = float(found[1]) * UNITS[found[2].lower()] if found else 0.0
    if rate < 1000:
        raise FleetError(f"--max-rate takes bytes per second, at least 1k, like 200k or 2M, not {text!r}")
    return rate


@dataclass
class Rate:
    """Keeps an average of bytes per second over everything that is sent and received.

    Args:
        rate: bytes per second; None for no limit.
    """

    rate: float | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _free: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spend(self, count: int) -> None:
        """Wait until what was spent before fits the rate, then spend ``count`` bytes; threads take turns."""
        if self.rate is None:
            return
        with self._lock:
            now = self.clock()
            wait, self._free = max(0.0, self._free - now), max(now, self._free) + count / self.rate
        if wait:
            self.sleep(wait)


@dataclass(frozen=True)
class Hours:
    """The part of the day, in local time, in which a client takes part; minutes after midnight. ``22-6`` passes midnight."""

    begin: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Hours:
        """``1-6``, ``22-6``, ``22:30-6``."""
        found = re.fullmatch(r"(\d{1,2})(?::(\d\d))?-(\d{1,2})(?::(\d\d))?", text.replace(" ", ""))
        times = [60 * int(found[i]) + int(found[i + 1] or 0) for i in (1, 3)] if found else [0, 0]
        minutes = [int(found[i] or 0) for i in (2, 4)] if found else [0]
        if max(times) > DAY or max(minutes) > 59 or times[0] % DAY == times[1] % DAY:
            raise FleetError(f"--hours takes two different times of the day, like 1-6 or 22:30-6, not {text!r}")
        return cls(times[0] % DAY, times[1] % DAY)

    def seconds_until(self, now: datetime) -> float:
        """Seconds until the hours begin; 0 within them."""
        at = 60 * now.hour + now.minute
        if (at - self.begin) % DAY < (self.end - self.begin) % DAY:
            return 0.0
        return max(60.0 * ((self.begin - at) % DAY) - now.second, 1.0)

    def __str__(self) -> str:
        begin, end = (f"{t // 60}:{t % 60:02d}" for t in (self.begin, self.end))
        return f"{begin} to {end}"


@dataclass(frozen=True)
class Allowance:
    """A client's limits; by default there are none."""

    rate: Rate = field(default_factory=Rate)
    hours: Hours | None = None

    @classmethod
    def parse(cls, max_rate: str | None, hours: str | None) -> Allowance:
        """From the options of ``fedqssl deploy client``."""
        return cls(Rate(parse_rate(max_rate) if max_rate else None), Hours.parse(hours) if hours else None)

    def seconds_until_open(self) -> float:
        """Seconds until the client may take part; 0 if it may now."""
        return self.hours.seconds_until(datetime.now()) if self.hours else 0.0


__all__ = ["Allowance", "Hours", "Rate", "parse_rate"]
