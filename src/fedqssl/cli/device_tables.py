"""``fedqssl plan --devices``: a round on the devices, and the bits that they can afford, as rich tables and text."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from fedqssl.cli.plan_tables import open_table
from fedqssl.cost.devices import DeviceRound, straggler
from fedqssl.cost.planner import Choice, bits_line, impossible_lines
from fedqssl.units import bytes_text, joules_text, seconds_text


def device_table(rounds: Mapping[str, DeviceRound]) -> Table:
    """Every client's round on its device."""
    columns = ("client", "download", "training", "upload", "total", "energy", "needs", "has")
    caption = "needs, has: memory, our kernels' workspace included"
    table = open_table("A round on the devices", *columns, caption=caption)
    slowest = straggler(rounds)
    for name, r in rounds.items():
        d = r.device
        parts = [
            "-" if rate is None else seconds_text(t)
            for t, rate in ((r.download, d.downlink), (r.compute, d.operations_per_second), (r.upload, d.uplink))
        ]
        total = seconds_text(r.seconds) if r.known else "-"
        energy = "-" if r.energy is None else joules_text(r.energy)
        needs = f"[red]{bytes_text(r.needs)}[/red]" if r.fits is False else bytes_text(r.needs)
        style = "bold" if slowest is not None and slowest.name == name else None
        table.add_row(name, *parts, total, energy, needs, _memory(r), style=style)
    return table


def _memory(found: DeviceRound) -> str:
    return "-" if found.device.memory is None else bytes_text(found.device.memory)


def device_lines(rounds: Mapping[str, DeviceRound]) -> list[str]:
    """The client that a round waits for, and the clients with too little memory."""
    lines = []
    slowest = straggler(rounds)
    if slowest is not None:
        parts = {"download": slowest.download, "training": slowest.compute, "upload": slowest.upload}
        most = max(parts, key=lambda k: parts[k])
        share = 100 * parts[most] / slowest.seconds
        others = sorted(r.seconds for r in rounds.values() if r.known)
        lines.append(
            f"straggler: {slowest.name}; a round waits {seconds_text(slowest.seconds)} for it (median client "
            f"{seconds_text(others[len(others) // 2])}), {share:.0f}% of it in {most}"
        )
    elif any(r.known for r in rounds.values()):
        lines.append("no straggler: this algorithm spends no time on anything that the device table has a rate for")
    else:
        lines.append("no straggler can be named: the device table has no uplink, downlink or operations_per_second")
    if short := [r.name for r in rounds.values() if r.fits is False]:
        lines.append(
            f"too little memory on {', '.join(short)}: use fewer bits, a smaller batch_size or a smaller width"
        )
    return lines


def choice_table(choices: Mapping[str, Choice]) -> Table:
    """The most bits that every client can afford, and what limits them."""
    columns = ("client", "bits", "stopped by", "needs", "has", "bytes a round", "round")
    table = open_table("Bits that the devices can afford", *columns)
    for c in choices.values():
        time = seconds_text(c.round.seconds) if c.round.known else "-"
        bits = "[red]none[/red]" if c.bits is None else str(c.bits)
        table.add_row(c.name, bits, c.binding, bytes_text(c.needs), _memory(c.round), bytes_text(c.round_bytes), time)
    return table


def choice_lines(choices: Mapping[str, Choice]) -> list[str]:
    """The straggler, what is impossible, and a line to paste."""
    lines = []
    slowest = straggler({c.name: c.round for c in choices.values()})
    if slowest is not None:
        lines.append(f"straggler at these bits: {slowest.name}, {seconds_text(slowest.seconds)} a round")
    lines += impossible_lines(choices)
    line = bits_line(choices)
    return [*lines, line if line is not None else "no bits= line: at least one device above cannot afford any bitwidth"]
