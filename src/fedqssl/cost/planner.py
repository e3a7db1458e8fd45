"""From device budgets to bits: the most bits that each device can afford, and what limits them.

Costs are the ledger's. A device must hold ``MARGIN`` times what a step needs: against the peaks that ``fedqssl bench memory``
measured, the ledger was at most 9% too low (docs/cost.md), and bits whose real peak does not fit must never be proposed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fedqssl.config import ConfigError, RunConfig
from fedqssl.cost.bitwidth import Bitwidth, Say, silent, study
from fedqssl.cost.devices import Device, DeviceRound, Devices, device_round, read_devices
from fedqssl.cost.formulas import Memory
from fedqssl.cost.ledger import ClientCost, client_cost
from fedqssl.cost.sizes import Sizes, client_sizes
from fedqssl.units import bytes_text, seconds_text

LADDER = (*range(2, 17), 32)
"""Bitwidths that are tried."""
MARGIN = 1.15
"""Factor between the memory that a device must have and what the ledger says a step needs."""
NOTHING = "nothing"


@dataclass(frozen=True)
class Targets:
    """Further limits on a round: seconds of any client's round, and bytes up and down together; None is no limit."""

    round_seconds: float | None = None
    round_bytes: float | None = None


@dataclass(frozen=True)
class Choice:
    """The plan for one client.

    Args:
        bits: the most that it can afford, or None.
        cost: in those bits, or in the fewest that were tried.
        round: on its device.
        needs: bytes of memory, margin included.
        binding: the limit that prevents more bits (or any), by name; ``nothing`` if it has the highest bitwidth.
        advice: the nearest change that would make an impossible device possible.
    """

    name: str
    device: Device
    bits: int | None
    cost: ClientCost
    round: DeviceRound
    needs: int
    binding: str
    advice: str = ""

    @property
    def round_bytes(self) -> int:
        """Up and down."""
        return self.cost.bytes_up + self.cost.bytes_down


def needed(memory: Memory) -> int:
    """What a device must have for this step."""
    return math.ceil(memory.peak * MARGIN)


class Planner:
    """Finds bits for the clients of a configuration; bitwidths are examined on first use."""

    def __init__(
        self, config: RunConfig, sizes: Sizes | None = None, targets: Targets | None = None, say: Say = silent
    ) -> None:
        self.config, self.targets, self.say = config, targets or Targets(), say
        self.sizes = sizes if sizes is not None else client_sizes(config)
        self._widths: dict[tuple[int, int], Bitwidth] = {}

    def study(self, bits: int, width: int | None = None) -> Bitwidth:
        """Container and formulas of one bitwidth (of a network of another width)."""
        key = bits, width or self.config.width
        if key not in self._widths:
            config = self.config.model_copy(update={"width": key[1]})
            self._widths[key] = study(config, self.sizes, bits, say=self.say)
        return self._widths[key]

    def cost(self, name: str, bits: int) -> ClientCost:
        """One client's cost in these bits."""
        return client_cost(self.config, self.sizes, name, self.study(bits))

    def broken(self, cost: ClientCost, device: Device) -> str | None:
        """The first limit that these bits exceed, by name."""
        if device.memory is not None and needed(cost.memory) > device.memory:
            return "memory"
        if self.targets.round_bytes is not None and cost.bytes_up + cost.bytes_down > self.targets.round_bytes:
            return "bytes of a round"
        found = device_round(cost, device)
        if self.targets.round_seconds is not None and found.seconds > self.targets.round_seconds:
            parts = {"download": found.download, "training time": found.compute, "upload": found.upload}
            return max(parts, key=lambda part: parts[part])
        return None

    def choose(self, name: str, device: Device, ladder: Sequence[int] = LADDER) -> Choice:
        """The most bits that exceed no limit; costs grow with bits, so the boundary is found by bisection."""
        fits, breaks, why = -1, len(ladder), NOTHING
        while breaks - fits > 1:
            middle = (fits + breaks) // 2
            found = self.broken(self.cost(name, ladder[middle]), device)
            if found is None:
                fits = middle
            else:
                breaks, why = middle, found
        bits = ladder[fits] if fits >= 0 else None
        cost = self.cost(name, bits if bits is not None else ladder[0])
        advice = "" if bits is not None else self.advice(cost, device, why)
        return Choice(name, device, bits, cost, device_round(cost, device), needed(cost.memory), why, advice)

    def advice(self, cost: ClientCost, device: Device, why: str) -> str:
        """The smallest change that would let this client take part at the fewest bits."""
        if why == "bytes of a round":
            return f"--target-bytes {cost.bytes_up + cost.bytes_down} is the least in {cost.bits} bits"
        if why != "memory":
            least = device_round(cost, device).seconds
            local = "local_steps" if self.config.local_epochs is None else "local_epochs"
            more = f", or fewer {local}" if why == "training time" and getattr(self.config, local) > 1 else ""
            return f"--target-round-seconds {math.ceil(least * 10) / 10:g} is the least in {cost.bits} bits{more}"
        assert device.memory is not None
        for width in self._narrower():
            batch = self._batch(cost, width, device.memory)
            if batch is not None:
                parts = [] if width == self.config.width else [f"width={width}"]
                parts += [] if batch == cost.batch else [f"batch_size={batch}"]
                return f"{' '.join(parts)} would fit at {cost.bits} bits"
        return (
            f"a step in {cost.bits} bits needs {bytes_text(needed(cost.memory))}; use a smaller model or another device"
        )

    def _narrower(self) -> list[int]:
        """The network's width, its half, its quarter, ..."""
        width, found = self.config.width, []
        while width >= 1:
            found.append(width)
            width //= 2
        return found

    def _batch(self, cost: ClientCost, width: int, memory: float) -> int | None:
        """The largest batch, up to the client's, that fits with this width; None if not even two images do."""
        step = self.study(cost.bits, width)
        fits, breaks = 1, cost.batch + 1
        while breaks - fits > 1:
            middle = (fits + breaks) // 2
            if needed(step.memory(middle)) <= memory:
                fits = middle
            else:
                breaks = middle
        return fits if fits >= 2 else None

    def plan(self, table: Devices) -> dict[str, Choice]:
        """Every client's choice; equal clients on equal devices are planned once."""
        names = list(self.sizes.clients)
        table.check(names)
        given = self.config.bits_for(names)
        known: dict[object, Choice] = {}
        found = {}
        for name in names:
            device, ladder = table.of(name, given[name]), listed_bits(table, name) or LADDER
            key = device, ladder, self.sizes.clients[name]
            if key not in known:
                self.say(f"{name}: searching for bits")
                known[key] = self.choose(name, device, ladder)
            same = known[key]
            cost, moved = replace(same.cost, name=name), replace(same.round, name=name)
            found[name] = replace(same, name=name, cost=cost, round=moved)
        return found


def listed_bits(table: Devices, name: str) -> tuple[int, ...]:
    """Bits that the table itself assigns to a client: its class names it and lists bits."""
    for group in table.classes:
        if name in group.clients and group.bits:
            return tuple(sorted(group.bits))
    return ()


def bits_line(choices: Mapping[str, Choice]) -> str | None:
    """``bits=4,4,6,8`` in the order of the clients; None if a device can afford none."""
    bits = [c.bits for c in choices.values()]
    return None if None in bits else "bits=" + ",".join(map(str, bits))


def impossible_lines(choices: Mapping[str, Choice]) -> list[str]:
    """One line per device that cannot afford any bits: its limit, and the nearest feasible change."""
    return [f"impossible: {c.name} ({c.binding}{_against(c)}): {c.advice}" for c in choices.values() if c.bits is None]


def _against(choice: Choice) -> str:
    if choice.binding == "memory" and choice.device.memory is not None:
        return f": {bytes_text(choice.needs)} needed, {bytes_text(choice.device.memory)} available"
    if choice.binding in ("download", "upload", "training time"):
        return f": a round takes {seconds_text(choice.round.seconds)}"
    return ""


def with_device_bits(config: RunConfig, say: Say = silent) -> RunConfig:
    """The configuration with the bits that its device table allows; itself if ``devices`` is not set.

    Raises:
        ConfigError: names the devices that can afford no bits, and what to change.
    """
    if config.devices is None:
        return config
    table = read_devices(config.devices)
    choices = Planner(config, say=say).plan(table)
    if stuck := impossible_lines(choices):
        more = f" (and {len(stuck) - 1} more; see fedqssl plan)" if len(stuck) > 1 else ""
        raise ConfigError(f"{config.devices}: {stuck[0]}{more}")
    bits = tuple(c.bits for c in choices.values())
    return config.model_copy(update={"bits": bits, "clients": len(bits)})


__all__ = ["LADDER", "MARGIN", "Choice", "Planner", "Targets", "bits_line", "impossible_lines", "with_device_bits"]
