"""One client of a run as a table, for fleets that have too many for a row each."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from fedqssl.reporting.data import ReportError, read_run
from fedqssl.reporting.theme import bits_words, percent, plain
from fedqssl.runs.find import is_run
from fedqssl.units import bytes_text


def client_table(path: Path, name: str, trust: bool = False) -> Table:
    """What a run knows about a client: bits, images, rounds that it took part in, accuracy beside controls, bytes.

    Raises:
        ReportError: the folder is not a run, or it has no such client.
    """
    if not is_run(path):
        raise ReportError(f"{path} is not a run; --client takes the folder of one run")
    run = read_run(path, trust)
    c = run.client(name)
    rounds = [f"{n:g}" for n, _ in run.over_rounds("client_loss", name)]
    table = Table(title=Text(f"{name} of {run.name}"), box=box.SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.title_justify = "left"
    rows = {
        "bits": bits_words(c.bits),
        "images": f"{c.train} for training, {c.test} held out",
        "took part in rounds": ", ".join(rounds) or "none so far",
        "last loss": plain(c.loss),
        "local accuracy": "not measured" if c.accuracy != c.accuracy else percent(c.accuracy),
        "untrained network": percent(c.untrained),
        "best control": f"{percent(c.best[1])} {c.best[0]}".strip(),
    }
    if run.result is not None:
        rows |= {"sent": bytes_text(int(c.bytes_up)), "received": bytes_text(int(c.bytes_down))}
    for what, value in rows.items():
        table.add_row(what, Text(value))
    return table


__all__ = ["client_table"]
