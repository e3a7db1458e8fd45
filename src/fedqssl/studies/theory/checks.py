"""Run the checks: names, processes, and output files."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from fedqssl.studies.theory.figures import FIGURES, draw
from fedqssl.studies.theory.lemma1 import lemma1
from fedqssl.studies.theory.report import markdown
from fedqssl.studies.theory.settings import Say, Settings, silent
from fedqssl.studies.theory.theorem1 import theorem1
from fedqssl.studies.theory.theorem2 import theorem2

Part = dict[str, object]
CHECKS: dict[str, Callable[[Settings, Say], Part]] = {"lemma1": lemma1, "theorem1": theorem1, "theorem2": theorem2}
LONGEST_FIRST = ("theorem1", "theorem2", "lemma1")


def _print(line: str) -> None:
    print(line, flush=True)


def _one(name: str, settings: Settings) -> Part:
    """Run a check in its own process, on one thread; its progress goes to standard output."""
    torch.set_num_threads(1)
    return CHECKS[name](settings, _print)


def run_checks(names: Sequence[str], settings: Settings, say: Say = silent, workers: int = 1) -> dict[str, Part]:
    """``theory.json``'s parts by name. With more workers, checks run side by side (results do not depend on it)."""
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        raise ValueError(f"unknown check {unknown[0]!r}; choose one of {', '.join(CHECKS)}")
    began = time.perf_counter()
    if workers > 1 and len(names) > 1:
        order = [name for name in LONGEST_FIRST if name in names]
        with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            jobs = {name: pool.submit(_one, name, settings) for name in order}
            made = {name: job.result() for name, job in jobs.items()}
    else:
        made = {name: CHECKS[name](settings, say) for name in names}
    seconds = round(time.perf_counter() - began, 1)
    parts = {name: made[name] for name in CHECKS if name in made}
    return {**parts, "settings": {**settings.to_json(), "seconds": seconds, "torch": torch.__version__}}


def claim_folder(out: Path, overwrite: bool) -> Path:
    """Create the folder; a non-empty one is an error unless ``overwrite`` is set and it holds earlier results."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        if not overwrite:
            raise ValueError(f"{out} exists; choose another --out, or replace its theory.json with --overwrite")
        if not (out / "theory.json").is_file():
            raise ValueError(f"{out} has no theory.json, so --overwrite will not replace it; choose another --out")
    out.mkdir(parents=True, exist_ok=True)
    return out


def write(out: Path, results: dict[str, Part], say: Say = silent) -> None:
    """``theory.json``, ``summary.md`` and, with matplotlib, the figures."""
    (out / "theory.json").write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    for name in FIGURES:
        (out / f"{name}.png").unlink(missing_ok=True)  # of results that these replace
    figures = draw(results, out)
    if not figures:
        say("no figures: matplotlib is not installed; pip install 'fedqssl[plots]'")
    (out / "summary.md").write_text(markdown(results, figures))
