"""Start, continue and finish a run: Algorithm 1's loop over rounds, with a checkpoint after each."""

from __future__ import annotations

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from fedqssl import accelerators
from fedqssl.config import RunConfig, load_run_config, to_toml
from fedqssl.config.keys import nearest
from fedqssl.cost.planner import with_device_bits
from fedqssl.data.from_config import settled
from fedqssl.data.images import DataWarning
from fedqssl.engines.engine import Engine
from fedqssl.engines.flower import check_flower
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.evaluation.collapse import Collapse
from fedqssl.evaluation.controls import knn_warning
from fedqssl.federated.algorithms import AlgorithmError, get_algorithm
from fedqssl.federated.context import Context, FleetContext, Simulation, build_simulation
from fedqssl.federated.optimizers import configured_server
from fedqssl.federated.protocol import protocol
from fedqssl.files import absolute
from fedqssl.runs.choose_views import with_chosen_views
from fedqssl.runs.clock import clock_of
from fedqssl.runs.controls import untrained_knn
from fedqssl.runs.describe import describe_data
from fedqssl.runs.equipment import Equipment, pool_of
from fedqssl.runs.finalize import finalize
from fedqssl.runs.folder import Checkpoint, RunError, RunFolder
from fedqssl.runs.images_digest import images_digest
from fedqssl.runs.progress import Progress, Say, round_line
from fedqssl.runs.result import RunResult
from fedqssl.runs.round import first_checkpoint, play_round
from fedqssl.runs.surroundings import changes, surroundings
from fedqssl.runs.time_left import TimeLeft
from fedqssl.runs.tracking import check_tracking, tracking


def _flower_simulation(pool: Pool[Simulation]) -> AbstractContextManager[Engine]:
    check_flower()
    from fedqssl.engines.flower.simulation import FlowerSimulation

    return FlowerSimulation(pool.shared, pool.workers, pool.tick)


ENGINES: dict[str, Callable[[Pool[Simulation]], AbstractContextManager[Engine]]] = {
    "in_process": lambda pool: nullcontext(InProcess(pool)),
    "flower-sim": _flower_simulation,
}
"""Engines by name; ``fedqssl deploy`` has one more, ``flower``, which no other command can start."""


def start(
    config: RunConfig,
    out: Path,
    *,
    overwrite: bool = False,
    say: Say = print,
    progress: Progress | None = None,
    as_written: bool = False,
) -> RunResult:
    """Run a configuration in a new folder.

    Args:
        config: the settings, as from :func:`fedqssl.config.load_config`.
        out: the run's folder; an error if it exists, unless ``overwrite`` is set.
        overwrite: replace the run in ``out``, if there is one.
        say: receives the lines of progress.
        progress: shows more than lines (a bar, for example); replaces ``say``.
        as_written: keep ``data`` and ``buffer`` as they are, for folders that are moved to other machines (cells); otherwise
            paths in them become absolute, so that the run can be resumed from anywhere.

    Raises:
        RunError: one line that says what to do.
    """
    _check(config)
    RunFolder.check_new(out, overwrite)
    config, said = settled(config)
    config = with_device_bits(config)
    if not as_written:
        config = config.model_copy(
            update={"data": absolute(config.data), "buffer": config.buffer and absolute(config.buffer)}
        )
    progress = progress or Progress(say)
    for line in said:
        progress.say(line)
    context, warned = _loaded(config, progress)
    if context.sizes and max(context.sizes.values()) < config.batch_size:
        most = max(context.sizes.values())
        line = (
            f"warning: batch_size is {config.batch_size}, but no client has more than {most} images; try a smaller one"
        )
        progress.say(line)
        warned.append(line)
    check_model(context)
    context, chosen = with_chosen_views(context, progress)
    if chosen is not None:
        progress.say(chosen)
        said = [*said, chosen]
    try:
        folder = RunFolder.create(out, overwrite)
        folder.write("environment.json", json.dumps(environment(context), indent=1) + "\n")
        folder.write("partition.json", json.dumps(context.partition_json()) + "\n")
        folder.write("data.json", json.dumps(describe_data(context)) + "\n")
        folder.write("config.toml", to_toml(context.config))  # last: what has a config.toml can be resumed
    except OSError as error:
        raise RunError(f"{out} cannot be written ({error.strerror or error}); choose another --out") from error
    for line in (*said, *warned):
        folder.log(line)
    return run_to_end(context, folder, progress)


def check_model(context: Context) -> None:
    """Build the network and what gives its features once, so that training does not begin with what cannot be built.

    Raises:
        ValueError: one line that says what is wrong.
    """
    config, task, image = context.config, context.task, context.train.images.shape[-1]
    try:
        model = task.converted(min(context.bits.values(), default=32))
        for size in (
            image,
            task.views.size or image,
        ):  # what is evaluated, and what the signals of collapse are taken from
            task.extractor(model, size)
    except (RuntimeError, MemoryError) as error:
        why = " ".join(str(error).split())[:200]
        raise RunError(f"the model {config.model} at width {config.width} cannot be built ({why})") from error


def _loaded(config: RunConfig, progress: Progress) -> tuple[Simulation, list[str]]:
    """The images, with a bar for downloads; and the warnings about skipped pictures."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        context = build_simulation(config, lambda done, total: progress.tick("download (bytes)", done, total or 0))
    lines = [f"warning: {found.message}" for found in caught]
    for line in lines:
        progress.say(line)
    return context, lines


def resume(
    folder: Path,
    *,
    exact: bool = False,
    say: Say = print,
    progress: Progress | None = None,
    images_of: RunConfig | None = None,
) -> RunResult:
    """Resume a run from its last checkpoint, bit for bit; the result of a finished run is only read.

    Args:
        folder: the run's folder.
        exact: other kernels, threads, versions or instructions than the run began with are an error, not a warning.
        say: receives the lines of progress.
        progress: shows more than lines (a bar, for example); replaces ``say``.
        images_of: settings that say where the images are now, if not where the run's own settings say.

    Raises:
        RunError: the folder is not a run, or its settings or data have changed; says what to do.
    """
    found = RunFolder.open(folder)
    progress = progress or Progress(say)
    if (folder / "result.json").exists():
        progress.say(f"{folder} is finished")
        return RunResult.read(folder)
    config = load_run_config(folder)
    if images_of is not None:
        places = {name: getattr(images_of, name) for name in ("data", "data_dir", "buffer")}
        config = config.model_copy(update=places)
    _check(config)
    _check_same_settings(config, found)
    check_surroundings(config, found, progress, exact)
    context, _ = _loaded(config, progress)
    _check_same_data(context, found)
    return run_to_end(context, found, progress)


def _check(config: RunConfig) -> None:
    if config.engine == "flower":
        raise RunError("a run on real machines is started and resumed with fedqssl deploy start")
    try:
        configured_server(get_algorithm(config.algorithm), config)
    except AlgorithmError as error:
        raise RunError(str(error)) from None
    if config.engine not in ENGINES:
        name, known = config.engine, ", ".join(ENGINES)
        raise RunError(f"unknown engine {name!r}{nearest(name, ENGINES)} (engines: {known})")
    if config.engine == "flower-sim":
        check_flower()
    check_tracking(config.track)
    accelerators.resolve(config.device)


def _check_same_settings(config: RunConfig, folder: RunFolder) -> None:
    """Refuse to resume with other settings: no configuration would describe such a run."""
    noted = folder.read_json("environment.json")
    known = [noted.get(key) for key in ("settings", "settings_next")] if isinstance(noted, dict) else [None]
    if known[0] is not None and settings_digest(config) not in known:
        raise RunError(
            f"{folder.path / 'config.toml'} was changed after the run began: restore it, or start a new run with it"
        )


def check_surroundings(config: RunConfig, folder: RunFolder, progress: Progress, exact: bool = False) -> None:
    """Say what has changed since the run began that its bytes depend on; with ``exact`` as an error."""
    changed = changes(folder.read_json("environment.json"), surroundings(config))
    if changed:
        what = f"the rest of {folder.path} will not be byte for byte what it would have been ({'; '.join(changed)})"
        if exact:
            raise RunError(f"{what}; resume it where it began, or leave out --exact")
        progress.say(f"warning: {what}")
        folder.log(f"warning: {what}")


def settings_digest(config: RunConfig) -> str:
    """Digest of everything that the run's bytes depend on except the images, which may be moved and have their own digest."""
    anywhere = config.model_copy(update={"data": "", "buffer": config.buffer and "moved"})
    return hashlib.sha256(f"{protocol(anywhere)} {config.seed}".encode()).hexdigest()[:16]


def _check_same_data(context: Context, folder: RunFolder) -> None:
    """Refuse to resume with other images: no single run would correspond to the result."""
    same = folder.read_json("partition.json") == json.loads(json.dumps(context.partition_json()))
    environment = folder.read_json("environment.json")
    noted = environment.get("images_sha256") if isinstance(environment, dict) else None
    if not same or noted not in (None, _images_digest(context)):
        raise RunError(f"the data behind {folder.path} have changed: restore them, or start a new run")


def _images_digest(context: Context) -> str:
    public = context.public if isinstance(context, (FleetContext, Simulation)) else None
    return images_digest(context.train, context.test, public)


def environment(context: Context) -> dict[str, object]:
    """For ``environment.json``: what the run's bytes depend on besides its settings."""
    return {
        "images_sha256": _images_digest(context),
        "settings": settings_digest(context.config),
        **surroundings(context.config),
    }


class Logged(Progress):
    """Shows and logs every line."""

    def __init__(self, inner: Progress, folder: RunFolder) -> None:
        super().__init__(inner.say)
        self.folder = folder
        self.tick, self.round, self.go_on = inner.tick, inner.round, inner.go_on  # type: ignore[method-assign]

    def say(self, line: str) -> None:
        """Log a line, and show it."""
        self.folder.log(line)
        super().say(line)


def run_to_end(context: Simulation, folder: RunFolder, progress: Progress) -> RunResult:
    """All remaining rounds, then the evaluation; Ctrl-C and kill lose at most the current round."""
    try:
        with folder.locked():
            return _run_to_end(context, folder, Logged(progress, folder))
    except OSError as error:
        raise RunError(f"{error}; once that is solved, resume with --resume {folder.path}") from error


def _run_to_end(context: Simulation, folder: RunFolder, progress: Progress) -> RunResult:
    checkpoint = folder.latest() or first_checkpoint(context)
    if checkpoint.payloads.keys() != context.bits.keys():
        raise RunError(f"the newest checkpoint in {folder.checkpoints} is not of this run's clients; delete it")
    clock = clock_of(context, folder)
    with pool_of(context, progress) as pool, ENGINES[context.config.engine](pool) as engine:
        return play_to_end(context, checkpoint, Equipment(engine, pool, folder, progress, clock=clock))


def play_to_end(context: Context, checkpoint: Checkpoint, equipment: Equipment) -> RunResult:
    """The rounds after a checkpoint, each with a checkpoint of its own, then the evaluation."""
    config, folder, progress = context.config, equipment.folder, equipment.progress
    folder.cut_metrics(checkpoint.rounds_done)
    before = folder.lines()
    untrained = before[-1].get("untrained_knn") if before else untrained_knn(context)
    fallen = any(_fallen(line) for line in before)
    if checkpoint.rounds_done:
        progress.say(f"resuming after round {checkpoint.rounds_done} of {config.rounds}")
    first, time_left = checkpoint.rounds_done, TimeLeft()
    for line in before:
        time_left.saw(context, line)
    with tracking(config, folder, first, progress.say) as tracker:
        for round_number in range(first, config.rounds):
            progress.round(round_number + 1, config.rounds)
            context, checkpoint = equipment.arrivals(context, checkpoint)
            began = time.monotonic()
            checkpoint, line = play_round(
                context, equipment.engine, equipment.pool, checkpoint, round_number, equipment.clock
            )
            line["untrained_knn"] = untrained
            folder.append_metrics(line)
            folder.save(checkpoint)
            time_left.saw(context, line, time.monotonic() - began)
            progress.say(round_line(line, config.rounds, time_left.left(context, round_number + 1)))
            _warn(line, progress)
            if not fallen and (warning := _fallen(line)):
                progress.say(f"warning: {warning}")
                fallen = True  # once is enough
            tracker.round(line)
            if not progress.go_on(line) and round_number + 1 < config.rounds:
                progress.say(f"stopped after round {round_number + 1} of {config.rounds}, as asked")
                break
        result = finalize(context, checkpoint, equipment)
        tracker.result(result)
        return result


def _fallen(line: Mapping[str, Any]) -> str | None:
    return knn_warning(line.get("knn"), line.get("untrained_knn"))


def _warn(line: dict[str, object], progress: Progress) -> None:
    """Show the warnings of a round."""
    rejected, collapse = line["rejected"], line["collapse"]
    assert isinstance(rejected, dict)
    for name, why in sorted(rejected.items()):
        progress.say(f"warning: the update of {name} was not used: {why}")
    if why := line.get("round_rejected"):
        progress.say(f"warning: round {line['round']} was rejected, and the model before it is kept: {why}")
    if isinstance(collapse, dict):
        warning = Collapse(**collapse).warning()
        if warning:
            progress.say(f"warning: {warning}")
