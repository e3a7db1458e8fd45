"""Assemble ``report.html`` for a run, or for a folder of runs, from the templates."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib.resources import files as package_files
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fedqssl import __version__
from fedqssl.reporting import clients_section, cost_section, learning_section, pictures_section, summary_section, theme
from fedqssl.reporting.album import album
from fedqssl.reporting.costs import costs
from fedqssl.reporting.data import ReportError, RunData, read_run, runs_to_report, short_best
from fedqssl.reporting.gather import gather
from fedqssl.reporting.layers import layer_errors
from fedqssl.reporting.overview import SECTIONS, compared, short
from fedqssl.reporting.summary_section import link
from fedqssl.reporting.svg import WIDTH, dot
from fedqssl.reporting.theme import Theme
from fedqssl.runs.find import is_run
from fedqssl.runs.folder import write_atomically


def _asset(name: str) -> Markup:
    """A style sheet or script of this package, to be embedded in the page."""
    return Markup(package_files("fedqssl.reporting").joinpath(name).read_text(encoding="utf-8"))


def render(template: str, **values: object) -> str:
    """A page from a template; everything that comes from a run is escaped, and a missing value is an error."""
    environment = Environment(
        loader=PackageLoader("fedqssl.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("bits_words", "percent", "plain", "size"):
        environment.filters[name] = getattr(theme, name)
    for name in summary_section.__all__:
        environment.globals[name] = getattr(summary_section, name)
    for name in ("answers_note", "neighbours_note", "owners_note"):
        environment.globals[name] = getattr(pictures_section, name)
    environment.globals |= {
        "asset": _asset,
        "counted": theme.counted,
        "dot": dot,
        "short_best": short_best,
        "width": WIDTH,
    }
    return environment.get_template(template).render(version=__version__, now=time.strftime("%Y-%m-%d %H:%M"), **values)


def run_page(run: RunData, base: Path, live: float | None = None) -> str:
    """The page of one run, to be written into ``base``; ``live`` is how often it renews itself, in seconds."""
    theme, found, shown = Theme(run.bits.values()), costs(run), album(run, gather)
    pictures = pictures_section.pictures(run, shown)
    return render(
        "run.html",
        run=run,
        theme=theme,
        costs=found,
        curves=learning_section.curves(run, theme),
        weights=learning_section.weights(run, theme),
        clients=clients_section.clients(run, theme),
        partition=clients_section.partition(run, theme),
        album=shown,
        pictures=pictures,
        maps=replace(pictures, lead=""),
        ledger=cost_section.ledger(found, theme),
        totals=[] if isinstance(found, str) else cost_section.totals(run, found),
        layers=cost_section.layers(layer_errors(run), theme),
        collapse=learning_section.collapse(run),
        models=[(c, href) for c in run.clients if (href := link(run.path / "clients" / c.name / "model.fqssl", base))],
        base=base,
        live=live,
    )


def build_report(path: Path, base: Path, trust: bool = False, live: float | None = None) -> str:
    """The page of a run, or of all runs in a folder, to be written into the folder ``base``.

    Args:
        path: the folder.
        base: where the page will be.
        trust: allow importing models and algorithms that runs name as ``package.module:NAME``; what needs them is left out
            otherwise.
        live: how often the page renews itself, in seconds; None for a page that is a file.

    Raises:
        RunError: if there is no run, or one cannot be read.
    """
    runs = [read_run(folder, trust) for folder in runs_to_report(path)]
    if is_run(path):
        return run_page(runs[0], base, live)
    theme = Theme(bits for run in runs for bits in run.bits.values())
    return render(
        "overview.html",
        path=path.absolute(),
        base=base,
        theme=theme,
        runs=runs,
        sections=[short(i, run, theme) for i, run in enumerate(runs[:SECTIONS])],
        compared=compared(runs),
        live=live,
    )


def write_report(path: Path, out: Path | None = None, *, trust: bool = False) -> Path:
    """Write the report of a run, or of a folder of runs; ``out`` is ``report.html`` in that folder by default.

    Raises:
        RunError: if there is no run, or ``out`` cannot be written.
    """
    target = path / "report.html" if out is None else out
    if target.is_dir():
        raise ReportError(f"--out takes a file, but {target} is a folder; try {target / 'report.html'}")
    page = build_report(path, target.parent, trust)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, page.encode())
    except OSError as error:
        why = error.strerror or error
        raise ReportError(f"{target} cannot be written ({why}); choose another place with --out") from error
    return target


__all__ = ["build_report", "render", "run_page", "write_report"]
