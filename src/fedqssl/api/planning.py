"""``fedqssl.plan``: what a run would cost, and the bits that devices can afford."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedqssl.cost import Choice, Ledger


class Plan:
    """The costs of a run (all attributes of :class:`fedqssl.cost.Ledger`), and the bits that its devices can afford."""

    def __init__(self, ledger: Ledger, choices: Mapping[str, Choice]) -> None:
        self.ledger, self.choices = ledger, dict(choices)

    @property
    def bits(self) -> list[int] | None:
        """Bits of each client, for the setting ``bits``; None without a choice, or if a device can afford none."""
        found = [choice.bits for choice in self.choices.values()]
        return [b for b in found if b is not None] if found and None not in found else None

    def __repr__(self) -> str:
        from fedqssl.units import bytes_text, counted

        config, each = self.ledger.config, self.ledger.per_round()
        sent = each.bytes_down + each.bytes_up
        lines = [
            f"<Plan: {counted(len(self.clients), 'client')}, {counted(config.rounds, 'round')} of {bytes_text(sent)}"
        ]
        lines += [f"bits {','.join(map(str, self.bits))}"] if self.bits else []
        return ", ".join(lines) + ">"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "ledger":
            raise AttributeError(name)
        return getattr(self.ledger, name)


def plan(
    source: str | Path = "quickstart",
    *,
    data: Any = None,
    devices: str | Path | None = None,
    target_round_seconds: float | None = None,
    target_bytes: int | None = None,
    measure: bool = False,
    **settings: Any,
) -> Plan:
    """What a run would cost, without training; and the bits that devices can afford.

    Args:
        source: name of a preset, or the path of a TOML file.
        data: the images, as for :func:`fedqssl.run`; nothing is stored.
        devices: TOML table of devices (docs/cost.md), to find the most bits that each client can afford.
        target_round_seconds: no device's round may take longer.
        target_bytes: no client's round may transfer more.
        measure: also time a training step at each bitwidth, which takes seconds.
        settings: as for :func:`fedqssl.run`.

    Returns:
        The costs: ``clients`` by name, ``full`` (the same at full precision), ``server``, ``choices`` and ``bits``.

    Raises:
        ValueError: settings, data or a table that cannot be used; one line that says what to do.

    Example:
        >>> costs = fedqssl.plan("smoke")
        >>> costs.clients["client-00"].memory.total < costs.full["client-00"].memory.total
        True
    """
    from tempfile import TemporaryDirectory

    from fedqssl.api.sources import with_data
    from fedqssl.config import load_config
    from fedqssl.cost import Devices, Planner, Targets, ledger, read_devices
    from fedqssl.data.from_config import settled

    with TemporaryDirectory() as folder:
        config, _ = settled(load_config(source, with_data(source, settings, data, Path(folder))))
        found = ledger(config, measure_seconds=12.0 if measure else None)
    if devices is None and target_round_seconds is not None:
        raise ValueError("target_round_seconds needs devices=FILE, which says how fast the devices are")
    if devices is None and target_bytes is None:
        return Plan(found, {})
    table = read_devices(Path(devices)) if devices is not None else Devices("no device table", {}, (), {})
    table.check(list(found.clients))
    return Plan(found, Planner(found.config, found.sizes, Targets(target_round_seconds, target_bytes)).plan(table))


__all__ = ["Plan", "plan"]
