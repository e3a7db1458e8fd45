"""Finished runs side by side: grouped by everything but the seed, and never of different protocols unless asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedqssl.config import RunConfig, load_run_config
from fedqssl.config.keys import INSTEAD, nearest_key
from fedqssl.config.load import accuracy_settings
from fedqssl.config.schema import known_keys
from fedqssl.runs import RunError, RunResult
from fedqssl.runs.cells import read_json, read_result
from fedqssl.runs.find import find_runs
from fedqssl.runs.measured import Measured
from fedqssl.runs.text_table import Grid, accuracy, bits_text, to_csv
from fedqssl.units import counted

FREE = ("algorithm", "bits")
"""The quantities that are compared."""
CONTENT = "images_sha256"
STUDY = "attack-"
"""Engines of a study carry other uploads than the clients sent: such a run is not an honest one's equal."""
_IMAGES = ("data", "images", "image_size", "buffer", "buffer_images", "group", "evaluation.holdout")
"""The settings that decide which images there are: runs that agree in them must have the same."""


class CompareError(RunError):
    """Runs that cannot be compared; the message is one line and says what to do."""


@dataclass(frozen=True)
class Finished:
    """A run with its configuration."""

    folder: Path
    config: RunConfig
    result: RunResult
    content: str

    def settings(self) -> dict[str, Any]:
        """What affects accuracy; ``server.lr`` is None where it follows the clients', so that it is not a second difference."""
        values = accuracy_settings(self.config)
        if values["server.lr"] == values["lr"]:
            values["server.lr"] = None
        values["bits"] = tuple(values["bits"])
        if self.result.rounds != self.config.rounds:  # stopped early
            values["rounds"] = f"{self.result.rounds} of {self.config.rounds}"
        values["engine"] = self.config.engine if self.config.engine.startswith(STUDY) else "any"
        return values


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed."""

    settings: Mapping[str, Any]
    runs: Mapping[int, Finished]

    @property
    def measured(self) -> Measured:
        """Their accuracies."""
        return Measured({seed: run.result for seed, run in sorted(self.runs.items())})


def finished_runs(paths: Sequence[Path], finished_only: bool = False) -> list[Finished]:
    """The runs in these folders: runs, or folders with runs somewhere inside.

    Raises:
        RunError: for a folder without runs.
        CompareError: for an unfinished run, unless ``finished_only`` leaves those out.
    """
    found: dict[Path, Finished] = {}
    for folder in (folder for path in paths for folder in find_runs(path)):
        if (folder / "result.json").is_file():
            found[folder.resolve()] = _read(folder)
        elif not finished_only:
            raise CompareError(
                f"{folder} is not finished: wait for it, resume it with fedqssl run --resume {folder}, or leave such runs "
                "out with --finished"
            )
    if not found:
        raise CompareError(f"no run in {', '.join(map(str, paths))} is finished yet")
    return list(found.values())


def _read(folder: Path) -> Finished:
    environment = read_json(folder / "environment.json") if (folder / "environment.json").is_file() else {}
    content = environment.get(CONTENT) if isinstance(environment, dict) else None
    return Finished(folder, load_run_config(folder), read_result(folder), str(content or ""))


def check_comparable(runs: Sequence[Finished], across: Sequence[str]) -> None:
    """Reject runs that differ in more than algorithm, bits, seed and the settings named in ``across``."""
    known = known_keys()
    for key in across:
        if key not in known:
            raise CompareError(f"--across: unknown setting {key!r}{nearest_key(key, known)}")
    all_settings = [run.settings() for run in runs]
    allowed = {*FREE, *across}
    differing = {}
    for key in dict.fromkeys(key for settings in all_settings for key in settings):
        values = list(dict.fromkeys(_text(s[key]) for s in all_settings if key in s))  # beta is dirichlet's alone
        if len(values) > 1 and key not in allowed:
            differing[key] = values
    if differing:
        what = "; ".join(f"{key} ({', '.join(values)})" for key, values in differing.items())
        raise CompareError(
            f"these runs differ in more than algorithm, bits and seed: {what}; leave some out, or compare across these "
            f"settings with --across {','.join([*across, *differing])}"
        )
    by_source: dict[tuple[str, ...], Finished] = {}
    for run, settings in zip(runs, all_settings, strict=True):
        first = by_source.setdefault(tuple(_text(settings.get(key)) for key in _IMAGES), run)
        if run.content and first.content and run.content != first.content:
            raise CompareError(
                f"{first.folder} and {run.folder} were run on different images, although both name {run.config.data}; they "
                "cannot be compared"
            )


def grouped(runs: Sequence[Finished]) -> list[Group]:
    """Runs by everything but the seed, in order of appearance; a run that appears twice counts once."""
    groups: dict[tuple[tuple[str, str], ...], dict[int, Finished]] = {}
    for run in runs:
        settings = run.settings()
        key = tuple(sorted((k, repr(v)) for k, v in settings.items()))
        seeds = groups.setdefault(key, {})
        other = seeds.setdefault(run.config.seed, run)
        if _figures(other) != _figures(run):
            raise CompareError(
                f"{other.folder} and {run.folder} have the same settings and seed but different results (another version or "
                "machine?); leave one out"
            )
    return [Group(next(iter(seeds.values())).settings(), seeds) for seeds in groups.values()]


def _figures(run: Finished) -> tuple[float | None, float | None]:
    return run.result.global_accuracy, run.result.local_accuracy


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return bits_text(value)
    if isinstance(value, float):
        return f"{value:g}"
    return "unset" if value is None else str(value)


@dataclass(frozen=True, repr=False)
class Comparison:
    """Groups of runs in one table."""

    groups: tuple[Group, ...]
    across: tuple[str, ...]

    def grid(self) -> Grid:
        """For reading: mean ± standard deviation."""
        rows = []
        for group in self.groups:
            mine, settings = group.measured, group.settings
            parts = [
                *(_text(settings.get(key)) for key in self.across),
                accuracy(mine.globally.mean, mine.globally.deviation),
                accuracy(mine.locally.mean, mine.locally.deviation),
                str(len(mine.runs)),
            ]
            rows.append((str(settings["algorithm"]), _text(settings["bits"]), *parts))
        columns = ("Algorithm", "Bits", *self.across, "Global", "Local", "Seeds")
        return Grid(self._title(), columns, (tuple(rows),), ("Accuracy in percent, mean ± deviation over seeds.",))

    def _title(self) -> str:
        configs = [next(iter(group.runs.values())).config for group in self.groups]
        first, free = configs[0], {INSTEAD.get(key, key) for key in self.across}
        parts = {
            "data": f" on {first.data}",
            "rounds": f", rounds {first.rounds}",
            "local_epochs": f", {first.local_work} a round",
        }
        shown = "".join(text for key, text in parts.items() if key not in free)
        return f"{counted(sum(len(g.runs) for g in self.groups), 'run')}{shown}"

    def records(self) -> list[dict[str, Any]]:
        """For programs: one line per group."""
        return [self._record(group) for group in self.groups]

    def _record(self, group: Group) -> dict[str, Any]:
        mine, settings = group.measured, group.settings
        return {
            "algorithm": settings["algorithm"],
            "bits": _text(settings["bits"]),
            **{key: settings.get(key) for key in self.across if key not in FREE},
            **mine.accuracies(),
            "seeds": len(mine.runs),
            "seed_list": " ".join(map(str, mine.runs)),
        }

    def __repr__(self) -> str:
        return self.text("markdown")

    def text(self, form: str) -> str:
        """As ``markdown``, ``csv`` or ``latex``."""
        if form == "csv":
            return to_csv(self.records())
        return self.grid().latex() if form == "latex" else self.grid().markdown()


def compare(paths: Sequence[Path], across: Sequence[str] = (), finished_only: bool = False) -> Comparison:
    """Runs side by side.

    Args:
        paths: run folders, or folders of runs.
        across: settings in which runs may differ besides algorithm, bits and seed; each becomes a column.
        finished_only: leave out unfinished runs instead of raising an error.

    Raises:
        RunError: one line that says what prevents the comparison and what to do.
    """
    runs = finished_runs(paths, finished_only)
    check_comparable(runs, across)
    return Comparison(tuple(grouped(runs)), tuple(key for key in across if key not in FREE))


__all__ = ["CompareError", "Comparison", "Finished", "Group", "check_comparable", "compare", "finished_runs", "grouped"]
