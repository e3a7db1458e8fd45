"""Assemble ``report.html`` for a run, or for a folder of runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.resources import files as package_files
from pathlib import Path

from fedqssl import __version__
from fedqssl.report import clients_section, cost_section, learning_section, summary_section
from fedqssl.report.costs import costs
from fedqssl.report.data import ReportError, RunData, find_runs, is_run, read_run
from fedqssl.report.html import Markup, el, join, raw
from fedqssl.report.layers import layer_errors
from fedqssl.report.overview import overview
from fedqssl.report.theme import Look
from fedqssl.runs.folder import write_atomically

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""The page may load nothing from anywhere: the browser itself keeps that promise."""

MENU = {
    "curves": "Curves",
    "weights": "Weights",
    "clients": "Who loses?",
    "partition": "Labels",
    "ledger": "Cost",
    "layers": "Layers",
    "collapse": "Collapse",
    "protocol": "Protocol",
    "files": "Files",
}


def _asset(name: str) -> str:
    return package_files("fedqssl.report").joinpath(name).read_text(encoding="utf-8")


def shell(title: str, look: Look, menu: Sequence[tuple[str, str]], *body: Markup) -> str:
    """A whole page with its style and script inside."""
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=POLICY),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("link", rel="icon", href="data:,"),
        el("title", title),
        el("style", raw(_asset("style.css") + look.css())),
    )
    links = el(
        "nav",
        el("ul", *(el("li", el("a", words, href=f"#{target}")) for target, words in menu)),
        aria_label="Parts of this page",
    )
    made = f"Made by fedqssl {__version__} on {time.strftime('%Y-%m-%d %H:%M')}; loads nothing from anywhere."
    main = el("main", *body)
    foot = el("footer", el("p", made))
    tip = el("div", id="tip", role="status", hidden=True)
    return (
        "<!doctype html>\n"
        + el("html", head, el("body", links, main, foot, tip, el("script", raw(_asset("script.js")))), lang="en")
        + "\n"
    )


def run_page(run: RunData, base: Path) -> str:
    """The page of one run, to be written into ``base``."""
    look, found = Look(run.bits.values()), costs(run)
    parts = [
        summary_section.header(run, found),
        learning_section.curves(run, look),
        learning_section.weights(run, look),
        clients_section.who_loses(run, look),
        clients_section.partition(run, look),
        cost_section.ledger(run, found, look),
        cost_section.layers(layer_errors(run), look),
        learning_section.collapse(run),
        summary_section.protocol(run),
        summary_section.files(run, base),
    ]
    return shell(f"{summary_section.headline(run)} · {run.name}", look, list(MENU.items()), join(parts))


def build_report(path: Path, base: Path) -> str:
    """The page of a run, or of all runs in a folder, to be written into the folder ``base``.

    Raises:
        ReportError: if there is no run.
    """
    found = find_runs(path)
    if is_run(path):
        return run_page(read_run(path), base)
    runs = [read_run(folder) for folder in found]
    look = Look(bits for run in runs for bits in run.bits.values())
    menu, body = overview(path, runs, look, base)
    return shell(f"{len(runs)} runs in {path.absolute().name}", look, menu, body)


def write_report(path: Path, out: Path | None = None) -> Path:
    """Write the report of a run, or of a folder of runs; ``out`` is ``report.html`` in that folder by default.

    Raises:
        ReportError: if there is no run, or ``out`` cannot be written.
    """
    find_runs(path)
    target = path / "report.html" if out is None else out
    if target.is_dir():
        raise ReportError(f"--out takes a file, and {target} is a folder; write {target / 'report.html'}, say")
    page = build_report(path, target.parent)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, page.encode())
    except OSError as error:
        raise ReportError(
            f"{target} cannot be written ({error.strerror or error}); choose another place with --out"
        ) from error
    return target


__all__ = ["build_report", "run_page", "shell", "write_report"]
