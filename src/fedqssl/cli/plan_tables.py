"""``fedqssl plan``: the ledger as rich tables and text; nothing is printed here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table

from fedqssl.accelerators import name_of, resolve
from fedqssl.cost.formulas import BitOperations
from fedqssl.cost.ledger import CostEstimate, Ledger
from fedqssl.cost.trace import FLOAT
from fedqssl.units import bytes_text, operations_text, ratio_text, seconds_text

MANY = 24
"""The plan lists clients one by one up to this number."""


def open_table(title: str, *columns: str, caption: str | None = None) -> Table:
    """An empty table without a frame; the first column and one called ``what`` hold text, the others numbers."""
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
    some = ledger.work.participants
    part = f"{some} of {len(ledger.clients)}" if some < len(ledger.clients) else f"{len(ledger.clients)}"
    return (
        f"{source}: {part} clients, {c.rounds} rounds of {c.local_work}, {c.algorithm} with {c.model} of "
        f"width {c.width}, batch {c.batch_size} x 2 views"
    )


def depth(ledger: Ledger) -> str:
    """How many training steps that follow each other the final model is made of, in one line."""
    rounds, server = ledger.config.rounds, ledger.server.steps
    found = sorted({c.steps for c in ledger.clients.values()})
    return (
        f"the final model is made of {_span(rounds * (steps + server) for steps in found)} training steps, one after another: "
        f"{rounds} x ({_span(found)} on a client + {server:,} on the server)"
    )


def bitwidth_table(ledger: Ledger, times: CostEstimate | None) -> Table:
    """One row per bitwidth: clients, images, container, steps, time."""
    columns = ["bits", "clients", "images each", "model bytes", "steps a round"]
    table = open_table("Clients by bitwidth", *columns, *(() if times is None else ("one step", "longest round")))
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


def client_table(ledger: Ledger, times: CostEstimate | None) -> Table:
    """One row per client: bits, images, and steps, bytes and time of a round."""
    columns = ["client", "bits", "images", "steps a round", "bytes down + up"]
    table = open_table("Clients", *columns, *(() if times is None else ("time a round",)))
    for c in ledger.clients.values():
        row = [c.name, str(c.bits), f"{c.images:,}", f"{c.steps:,}", bytes_text(c.bytes_down + c.bytes_up)]
        table.add_row(*row, *(() if times is None else (seconds_text(times.clients[c.name]),)))
    return table


def totals_table(ledger: Ledger, times: CostEstimate | None) -> Table:
    """Bytes and time of a round and of the whole run."""
    table = open_table("The run", "", "a round", f"{ledger.config.rounds} rounds")
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


def notes(ledger: Ledger, times: CostEstimate | None) -> list[str]:
    """What was assumed and how time was estimated."""
    lines = [ledger.sizes.note] if ledger.sizes.note else []
    if ledger.config.buffer is not None:
        lines.append(f"the server's buffer is {ledger.sizes.buffer:,} images of {ledger.config.buffer}")
    if times is None:
        return lines
    clock = "CPU time of one thread" if ledger.config.threads == 1 else f"wall time of {ledger.config.threads} threads"
    device = resolve(ledger.config.device)
    if device.type != "cpu":
        clock = f"wall time on {device} ({name_of(device)})"
    how = f"time: {clock}, one measured step per bitwidth, over {times.workers} workers; evaluation is not included"
    if device.type == "cpu" and times.workers < ledger.config.workers:
        how += f"; this machine has cores for {times.workers} of {ledger.config.workers} workers"
    lines.append(how)
    if times.scaled:
        images = _span(w.measured.images for w in ledger.bitwidths.values() if w.measured is not None)
        lines.append(
            f"a full batch takes too long to measure: {images} images were timed and scaled to {ledger.config.batch_size}"
        )
    return lines


def operations_table(ledger: Ledger) -> Table:
    """Bit operations of a round by client, against fp32."""
    columns = ("client", "bits", "forward", "backward", "objective", "total", "fp32 / this")
    caption = "an M-bit by K-bit multiply-accumulate costs M x K; 32 x 32 in floats, as the objective always is"
    table = open_table("Bit operations of a round", *columns, caption=caption)

    def row(name: str, bits: str, ops: BitOperations, full: BitOperations) -> None:
        parts = [operations_text(x) for x in (ops.forward, ops.backward, ops.objective, ops.total)]
        table.add_row(name, bits, *parts, ratio_text(full.total, ops.total))

    for name, client in ledger.clients.items():
        row(name, str(client.bits), client.operations, ledger.full[name].operations)
    table.add_section()
    once, full, rounds = ledger.per_round().operations, ledger.per_round(full=True).operations, ledger.config.rounds
    row("all of a round", "", once, full)
    row(f"{rounds} rounds", "", once * rounds, full * rounds)
    return table


def memory_table(ledger: Ledger) -> Table:
    """Memory of a step at the full batch by bitwidth, against fp32."""
    images = ledger.config.batch_size
    columns = ("bits", "weights", "activations", "gradients", "optimiser", "total", "fp32 /", "workspace")
    caption = "activations: kept for backward; workspace: our kernels' float views of one layer, not in the total"
    table = open_table(f"Memory of a training step ({images} images)", *columns, caption=caption)
    full = ledger.bitwidths[FLOAT].memory(images).total
    for bits, width in ledger.bitwidths.items():
        m = width.memory(images)
        parts = [bytes_text(x) for x in (*m.parts().values(), m.total)]
        table.add_row(str(bits), *parts, ratio_text(full, m.total), bytes_text(m.workspace))
    return table


def check_table(ledger: Ledger) -> Table:
    """Formula beside measurement; no rows if nothing was measured."""
    table = open_table("Formula against measurement", "bits", "images", "what", "formula", "measured", "ratio")
    for bits in ledger.bitwidths:
        check = ledger.check(bits)
        if check is None:
            continue
        measured = check.measured.parts()
        pairs = [(what, size, measured[what]) for what, size in check.formula.parts().items()]
        pairs.append(("wire, packed", check.packed_formula, check.packed_measured))
        first = str(bits), str(check.images)
        for what, formula, seen in pairs:
            if formula or seen:
                table.add_row(*first, what, f"{formula:,} B", f"{seen:,} B", f"{formula / seen:.3f}" if seen else "")
                first = "", ""
    return table


def server_table(ledger: Ledger) -> Table:
    """The server's work in a round."""
    s = ledger.server
    rows = {
        f"de-quantize {ledger.work.participants} models, full precision": s.dequantize,
        f"pass the buffer through {ledger.work.participants} models, own bits": s.passes,
        **{f"re-quantize to {bits} bits": ops for bits, ops in s.requantize.items()},
        "train one model, full precision": s.train,
        "average": s.aggregate,
    }
    table = open_table("The server's round", f"on {ledger.sizes.buffer:,} buffer images", "bit operations", "share")
    for what, ops in rows.items():
        if ops:
            table.add_row(what, operations_text(ops), f"{100 * ops / s.total:.1f}%")
    table.add_section()
    table.add_row("total", operations_text(s.total), "")
    table.add_row("bytes in / out", f"{bytes_text(s.bytes_in)} / {bytes_text(s.bytes_out)}", "")
    return table


def plan_tables(ledger: Ledger, times: CostEstimate | None) -> Sequence[Table]:
    """The short plan."""
    found = [bitwidth_table(ledger, times)]
    uneven = len({c.images for c in ledger.clients.values()}) > 1
    if uneven and len(ledger.clients) <= MANY:
        found.append(client_table(ledger, times))
    return [*found, totals_table(ledger, times)]


def detail_tables(ledger: Ledger) -> Sequence[Table]:
    """The ledger: operations, memory, formula against measurement, server."""
    tables = (operations_table(ledger), memory_table(ledger), check_table(ledger), server_table(ledger))
    return [table for table in tables if table.row_count]
