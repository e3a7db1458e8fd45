"""More rounds for a run that is finished or was stopped: ``fedqssl run --resume DIR rounds=20``."""

from __future__ import annotations

import json
from pathlib import Path

from fedqssl.config import RunConfig, load_run_config, to_toml
from fedqssl.runs.checksums import NAME as SUMS
from fedqssl.runs.folder import RunError, RunFolder
from fedqssl.runs.lifecycle import resume, settings_digest
from fedqssl.runs.progress import Progress, Say
from fedqssl.runs.result import RunResult


def extend(
    folder: Path, rounds: int, *, exact: bool = False, say: Say = print, progress: Progress | None = None
) -> RunResult:
    """Resume a run with another number of rounds, which its history notes.

    A schedule of the learning rate continues as if the run had been planned for the new number, so the result is not that of a
    run with so many rounds from the start. The result so far becomes ``result-after-N.json``.

    Args:
        folder: the run's folder.
        rounds: rounds in all.
        exact: as for :func:`fedqssl.runs.resume`.
        say: receives the lines of progress.
        progress: replaces ``say``.

    Raises:
        RunError: the run has that many rounds already, or cannot be resumed; one line that says what to do.
    """
    found = RunFolder.open(folder)
    with found.locked():
        _plan(found, load_run_config(folder), rounds)
    return resume(folder, exact=exact, say=say, progress=progress)


def _plan(found: RunFolder, config: RunConfig, rounds: int) -> None:
    """Write the new settings, so that what is interrupted from here on can be resumed."""
    checkpoint = found.latest()
    done = 0 if checkpoint is None else checkpoint.rounds_done
    if rounds <= done:
        raise RunError(f"{found.path} has {done} rounds already; ask for more than that, like rounds={done + 1}")
    if config.privacy.client_epsilon is not None and rounds != config.rounds:
        raise RunError(
            f"the noise of {found.path} is for {config.rounds} rounds (privacy.client_epsilon); start a new run for more"
        )
    longer = config.model_copy(update={"rounds": rounds})
    environment = found.read_json("environment.json")
    if not isinstance(environment, dict):
        raise RunError(f"{found.path / 'environment.json'} cannot be read; this run cannot be resumed")
    known = [environment.get(key) for key in ("settings", "settings_next")]
    if known[0] is not None and settings_digest(config) not in known:
        raise RunError(
            f"{found.path / 'config.toml'} was changed after the run began: restore it, or start a new run with it"
        )
    result = found.path / "result.json"
    if result.exists():
        result.rename(result.with_name(f"result-after-{done}.json"))
        (found.path / SUMS).unlink(missing_ok=True)
    if longer != config:
        history = [*environment.get("history", ()), {"after": done, "rounds": [config.rounds, rounds]}]
        # Both digests until config.toml is written: a kill in between must not make the run unusable.
        both = {"settings": settings_digest(config), "settings_next": settings_digest(longer), "history": history}
        found.write("environment.json", json.dumps({**environment, **both}, indent=1) + "\n")
        found.write("config.toml", to_toml(longer))
        found.log(f"extended from {config.rounds} to {rounds} rounds after round {done}")


__all__ = ["extend"]
