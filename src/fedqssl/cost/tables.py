"""The ledger as rich tables and lines of text; nothing is printed here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.table import Table

from fedqssl.cost.devices import DeviceRound, straggler
from fedqssl.cost.estimate import Estimate
from fedqssl.cost.ledger import ClientCost, Ledger
from fedqssl.cost.planner import Choice, bits_line, impossible_lines
from fedqssl.cost.trace import FLOAT
from fedqssl.units import bytes_text, joules_text, operations_text, ratio_text, seconds_text

MANY = 24
"""Clients up to which the plan lists every one by itself."""


def _table(title: str, *columns: str, caption: str | None = None) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption=caption,
        caption_justify="left",
        caption_style="dim",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 or name == "what" else "right")
    return table


def _span(values: Iterable[float]) -> str:
    """``12`` or ``3 to 40``."""
    found = sorted(values)
    return f"{found[0]:,}" if found[0] == found[-1] else f"{found[0]:,} to {found[-1]:,}"


def headline(ledger: Ledger, source: str) -> str:
    """What would run, in one line."""
    c = ledger.config
    epochs = "1 local epoch" if c.local_epochs == 1 else f"{c.local_epochs} local epochs"
    some = ledger.work.participants
    part = f"{some} of {len(ledger.clients)}" if some < len(ledger.clients) else f"{len(ledger.clients)}"
    return (
        f"{source}: {part} clients, {c.rounds} rounds of {epochs}, {c.algorithm} with {c.model} of "
        f"width {c.width}, batch {c.batch_size} x 2 views"
    )


def bitwidth_table(ledger: Ledger, times: Estimate | None) -> Table:
    """One row per bitwidth: clients, images, container, steps, time."""
    columns = ["bits", "clients", "images each", "model bytes", "steps a round"]
    table = _table("Clients by bitwidth", *columns, *(() if times is None else ("one step", "longest round")))
    for bits in sorted({c.bits for c in ledger.clients.values()}):
        of = [c for c in ledger.clients.values() if c.bits == bits]
        width = ledger.bitwidths[bits]
        row = [str(bits), str(len(of)), _span(c.images for c in of)]
        row += [bytes_text(width.wire.total), _span(c.steps for c in of)]
        if times is not None and width.measured is not None:
            row.append(seconds_text(width.measured.seconds(ledger.config.batch_size)))
            row.append(seconds_text(max(times.clients[c.name] for c in of)))
        table.add_row(*row)
    return table


def client_table(ledger: Ledger, times: Estimate | None) -> Table:
    """One row per client: bits, images, and a round's steps, bytes and time."""
    columns = ["client", "bits", "images", "steps a round", "bytes down + up"]
    table = _table("Clients", *columns, *(() if times is None else ("time a round",)))
    for c in ledger.clients.values():
        row = [c.name, str(c.bits), f"{c.images:,}", f"{c.steps:,}", bytes_text(c.bytes_down + c.bytes_up)]
        table.add_row(*row, *(() if times is None else (seconds_text(times.clients[c.name]),)))
    return table


def totals_table(ledger: Ledger, times: Estimate | None) -> Table:
    """Bytes and time of a round and of the whole run."""
    table = _table("The run", "", "a round", f"{ledger.config.rounds} rounds")
    once, total, full = ledger.per_round(), ledger.total(), ledger.total(full=True)
    down = once.bytes_down * ledger.config.rounds
    table.add_row("bytes down to clients", bytes_text(once.bytes_down), bytes_text(down))
    table.add_row("bytes up to the server", bytes_text(once.bytes_up), bytes_text(total.bytes_up))
    table.add_row("models handed out at the end", "", bytes_text(ledger.handed_out()))
    both = once.bytes_down + once.bytes_up, total.bytes_down + total.bytes_up
    saves = ratio_text(full.bytes_down + full.bytes_up, both[1])
    saves = f" (fp32 / this: {saves})" if saves else ""
    table.add_row("bytes in all", bytes_text(both[0]), f"{bytes_text(both[1])}{saves}")
    if times is not None:
        rounds = times.rounds
        table.add_row("clients' time", seconds_text(times.client_phase), seconds_text(times.client_phase * rounds))
        table.add_row("server's time", seconds_text(times.server_phase), seconds_text(times.server_phase * rounds))
        table.add_row("time in all", seconds_text(times.round), f"[bold]{seconds_text(times.total)}[/bold]")
    return table


def notes(ledger: Ledger, times: Estimate | None) -> list[str]:
    """What was assumed and how time was estimated."""
    lines = [ledger.sizes.note] if ledger.sizes.note else []
    if times is None:
        return lines
    clock = "CPU time of one thread" if ledger.config.threads == 1 else f"wall time of {ledger.config.threads} threads"
    how = f"time: {clock}, one measured step per bitwidth, over {times.workers} workers; evaluation is not included"
    if times.workers < ledger.config.workers:
        how += f"; this machine has cores for {times.workers} of {ledger.config.workers} workers"
    lines.append(how)
    if times.scaled:
        images = _span(w.measured.images for w in ledger.bitwidths.values() if w.measured is not None)
        lines.append(
            f"a full batch would take too long to measure: {images} images were timed and scaled to {ledger.config.batch_size}"
        )
    return lines


def operations_table(ledger: Ledger) -> Table:
    """Bit operations of a round by client, against fp32."""
    table = _table(
        "Bit operations of a round",
        "client",
        "bits",
        "forward",
        "backward",
        "objective",
        "total",
        "fp32 / this",
        caption="an M-bit by K-bit multiply-accumulate costs M x K; 32 x 32 in floats, as the objective always is",
    )
    for name, c in ledger.clients.items():
        _operations_row(table, name, str(c.bits), c, ledger.full[name])
    once, full = ledger.per_round().operations, ledger.per_round(full=True).operations
    table.add_section()
    parts = [operations_text(x) for x in (once.forward, once.backward, once.objective, once.total)]
    table.add_row("all of a round", "", *parts, ratio_text(full.total, once.total))
    whole = once * ledger.config.rounds
    parts = [operations_text(x) for x in (whole.forward, whole.backward, whole.objective, whole.total)]
    table.add_row(f"{ledger.config.rounds} rounds", "", *parts, ratio_text(full.total, once.total))
    return table


def _operations_row(table: Table, name: str, bits: str, of: ClientCost, full: ClientCost) -> None:
    ops = of.operations
    parts = [operations_text(x) for x in (ops.forward, ops.backward, ops.objective, ops.total)]
    table.add_row(name, bits, *parts, ratio_text(full.operations.total, ops.total))


def memory_table(ledger: Ledger) -> Table:
    """Memory of a step at the full batch by bitwidth, against fp32."""
    images = ledger.config.batch_size
    table = _table(
        f"Memory of a training step ({images} images)",
        "bits",
        "weights",
        "activations",
        "gradients",
        "optimiser",
        "total",
        "fp32 /",
        "workspace",
        caption="activations: kept for backward; workspace: our kernels' float views of one layer, not in the total",
    )
    full = ledger.bitwidths[FLOAT].memory(images).total
    for bits, width in ledger.bitwidths.items():
        m = width.memory(images)
        parts = [bytes_text(x) for x in (m.weights, m.activations, m.gradients, m.optimizer, m.total)]
        table.add_row(str(bits), *parts, ratio_text(full, m.total), bytes_text(m.workspace))
    return table


def check_table(ledger: Ledger) -> Table | None:
    """Formula beside measurement; None if nothing was measured."""
    table = _table("Formula against measurement", "bits", "images", "what", "formula", "measured", "ratio")
    for bits in ledger.bitwidths:
        check = ledger.check(bits)
        if check is None:
            continue
        pairs = {name: (size, check.measured.parts()[name]) for name, size in check.formula.parts().items()}
        pairs["wire, packed"] = check.packed_formula, check.packed_measured
        for i, (what, (formula, measured)) in enumerate(pairs.items()):
            if formula or measured:
                first = (str(bits), str(check.images)) if i == 0 else ("", "")
                ratio = f"{formula / measured:.3f}" if measured else ""
                table.add_row(*first, what, f"{formula:,} B", f"{measured:,} B", ratio)
    return table if table.row_count else None


def server_table(ledger: Ledger) -> Table:
    """The server's work in a round."""
    s = ledger.server
    rows: list[tuple[str, int]] = []
    if s.dequantize:
        rows.append((f"de-quantize {ledger.work.participants} models, full precision", s.dequantize))
    rows += [(f"re-quantize to {bits} bits", ops) for bits, ops in s.requantize.items() if ops]
    if s.train:
        rows.append(("train without clients, full precision", s.train))
    if s.aggregate:
        rows.append(("average", s.aggregate))
    table = _table("The server's round", f"on {ledger.sizes.buffer:,} buffer images", "bit operations", "share")
    for what, ops in rows:
        table.add_row(what, operations_text(ops), f"{100 * ops / s.total:.1f}%")
    table.add_section()
    table.add_row("total", operations_text(s.total), "")
    table.add_row("bytes in / out", f"{bytes_text(s.bytes_in)} / {bytes_text(s.bytes_out)}", "")
    return table


def device_table(rounds: Mapping[str, DeviceRound]) -> Table:
    """Every client's round on its device."""
    table = _table(
        "A round on the devices",
        "client",
        "download",
        "training",
        "upload",
        "total",
        "energy",
        "needs",
        "has",
        caption="needs, has: memory, our kernels' workspace included",
    )
    slowest = straggler(rounds)
    for name, r in rounds.items():
        d = r.device
        parts = [
            "-" if rate is None else seconds_text(t)
            for t, rate in ((r.download, d.downlink), (r.compute, d.operations_per_second), (r.upload, d.uplink))
        ]
        total = seconds_text(r.seconds) if r.known else "-"
        has = "-" if d.memory is None else bytes_text(d.memory)
        needs = f"[red]{bytes_text(r.needs)}[/red]" if r.fits is False else bytes_text(r.needs)
        energy = "-" if r.energy is None else joules_text(r.energy)
        style = "bold" if slowest is not None and slowest.name == name else None
        row = [name, *parts, total, energy, needs, has]
        table.add_row(*row, style=style)
    return table


def device_lines(rounds: Mapping[str, DeviceRound]) -> list[str]:
    """Who a round waits for, and who has too little memory."""
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
        lines.append("no straggler: with this algorithm nothing that the device table gives a rate for takes time")
    else:
        lines.append("no straggler can be named: the device table has no uplink, downlink or operations_per_second")
    if short := [r.name for r in rounds.values() if r.fits is False]:
        lines.append(
            f"too little memory on {', '.join(short)}: use fewer bits, a smaller batch_size or a smaller width"
        )
    return lines


def choice_table(choices: Mapping[str, Choice]) -> Table:
    """The most bits of every client, and what stops it from having more."""
    table = _table(
        "Bits that the devices can afford", "client", "bits", "stopped by", "needs", "has", "bytes a round", "round"
    )
    for c in choices.values():
        has = "-" if c.device.memory is None else bytes_text(c.device.memory)
        time = seconds_text(c.round.seconds) if c.round.known else "-"
        bits = "[red]none[/red]" if c.bits is None else str(c.bits)
        table.add_row(c.name, bits, c.binding, bytes_text(c.needs), has, bytes_text(c.round_bytes), time)
    return table


def choice_lines(choices: Mapping[str, Choice]) -> list[str]:
    """The straggler, what is impossible, and the line to paste."""
    lines = []
    slowest = straggler({c.name: c.round for c in choices.values()})
    if slowest is not None:
        lines.append(f"straggler in these bits: {slowest.name}, {seconds_text(slowest.seconds)} a round")
    lines += impossible_lines(choices)
    line = bits_line(choices)
    return [*lines, line if line is not None else "no bits= line: a device above can afford none"]


def plan_tables(ledger: Ledger, times: Estimate | None) -> Sequence[Table]:
    """The short plan."""
    found = [bitwidth_table(ledger, times)]
    uneven = len({c.images for c in ledger.clients.values()}) > 1
    if uneven and len(ledger.clients) <= MANY:
        found.append(client_table(ledger, times))
    return [*found, totals_table(ledger, times)]


def detail_tables(ledger: Ledger) -> Sequence[Table]:
    """The ledger: operations, memory, formula against measurement, server."""
    check = check_table(ledger)
    return [operations_table(ledger), memory_table(ledger), *([check] if check else []), server_table(ledger)]


__all__ = [
    "choice_lines",
    "choice_table",
    "detail_tables",
    "device_lines",
    "device_table",
    "headline",
    "notes",
    "plan_tables",
]
