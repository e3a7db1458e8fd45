"""The functions of ``import fedqssl``: what the command line does, with objects instead of text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedqssl.api.run import Run

if TYPE_CHECKING:
    from fedqssl.device import DeviceModel, Prediction
    from fedqssl.device.lean import LeanModel
    from fedqssl.maker.probing import Probe
    from fedqssl.runs.compare import Comparison

Say = Callable[[str], None]
OnRound = Callable[[Mapping[str, Any]], object]


def run(
    source: str | Path = "quickstart",
    *,
    out: str | Path | None = None,
    data: Any = None,
    overwrite: bool = False,
    on_round: OnRound | None = None,
    say: Say = print,
    **settings: Any,
) -> Run:
    """Pre-train across clients.

    Args:
        source: name of a preset (``fedqssl list presets``), or the path of a TOML file.
        out: the run's folder, a new one unless ``overwrite`` is set; by default ``runs/<preset>-<number>``.
        data: the images, if not those of the preset: a name or ``kind:PATH`` (``fedqssl list datasets``), the path of a folder,
            arrays, ``(images, labels)``, a torch or Hugging Face data set, or a mapping of ``train`` and ``test`` to such. What
            is in memory is stored beside the run's folder, so that the run can be resumed. A preset's limit on ``images`` is
            for its own data; all of yours are used unless you set one.
        overwrite: replace the run in ``out``, if there is one.
        on_round: called after every round with its line of ``metrics.jsonl``; if it returns False, the run ends there, and what
            it has is evaluated.
        say: receives the lines of progress.
        settings: change settings by keyword; dotted keys go in a dictionary, as in ``**{"ssl.temperature": 0.2}``.

    Returns:
        The finished run; its ``report.html`` is written, too.

    Raises:
        ValueError: settings, data or a folder that cannot be used; one line that says what to do.

    Example:
        >>> run = fedqssl.run("smoke", rounds=1, say=lambda line: None)
        >>> run.rounds, len(run.clients)
        (1, 4)
    """
    from fedqssl.api.sources import with_data
    from fedqssl.config import load_config
    from fedqssl.runs import RunFolder, start
    from fedqssl.runs.find import next_folder

    folder = Path(out) if out is not None else next_folder(str(source))
    RunFolder.check_new(folder, overwrite)
    config = load_config(source, with_data(source, settings, data, folder.parent))
    return _finished(start(config, folder, overwrite=overwrite, progress=_calling(say, on_round)).folder, say)


def _finished(folder: Path, say: Say) -> Run:
    """The run that has just ended, with its report."""
    from fedqssl.reporting import finished_report

    say(finished_report(folder))
    return Run(folder, trust=True)  # the caller named the code that the run uses


def _calling(say: Say, on_round: OnRound | None) -> Any:
    from fedqssl.runs import Progress

    class Calling(Progress):
        def go_on(self, line: Mapping[str, Any]) -> bool:
            return on_round is None or on_round(line) is not False

    return Calling(say)


def resume(
    folder: str | Path,
    *,
    rounds: int | None = None,
    exact: bool = False,
    on_round: OnRound | None = None,
    say: Say = print,
) -> Run:
    """Resume an interrupted run, bit for bit, or extend one; a finished run is only read.

    Args:
        folder: the run's folder, as given to ``out``.
        rounds: extend the run to so many rounds.
        exact: other kernels, threads, versions or instructions than the run began with are an error, not a warning.
        on_round: as for :func:`fedqssl.run`.
        say: receives the lines of progress.

    Returns:
        The finished run.

    Raises:
        RunError: the folder is not a run, or its settings or data have changed; says what to do.

    Example:
        >>> fedqssl.resume("runs/smoke-1", say=lambda line: None).rounds
        2
    """
    from fedqssl import runs

    path, progress = Path(folder), _calling(say, on_round)
    if rounds is None and (path / "result.json").is_file():
        return Run(runs.resume(path, exact=exact, progress=progress).folder, trust=True)
    if rounds is not None:
        runs.extend(path, rounds, exact=exact, progress=progress)
    else:
        runs.resume(path, exact=exact, progress=progress)
    return _finished(path, say)


def load(path: str | Path, *, trust: bool = False) -> DeviceModel | LeanModel:
    """Load a device file; where torch is not installed, with the runtime that needs numpy alone.

    Args:
        path: the ``.fqssl`` file, as :func:`fedqssl.export` writes it.
        trust: allow importing the backbone that the file names as ``package.module:Class``, which runs its code.

    Returns:
        A model with ``predict``, ``probabilities`` and ``logits``.

    Raises:
        DeviceFileError: one line that names the file and says why it cannot be used.

    Example:
        >>> path = fedqssl.export("runs/smoke-1", "client-00", "device.fqssl")
        >>> fedqssl.load(path).manifest.bits
        4
    """
    if util.find_spec("torch") is None:
        from fedqssl.device import lean

        return lean.load(path)
    from fedqssl.device import load as load_device

    return load_device(path, trust=trust)


def predict(
    model: str | Path | DeviceModel | LeanModel, images: Any, top: int = 1, *, trust: bool = False
) -> list[Prediction]:
    """Classify pictures with a device file.

    Args:
        model: a device file's path, or a loaded one.
        images: one picture or several: paths, a folder, encoded bytes, pillow images, arrays (H, W[, C]), tensors (C, H, W).
        top: number of classes to return for each picture.
        trust: as for :func:`fedqssl.load`.

    Returns:
        A prediction for each picture, with its name, probability and ``top`` classes.

    Raises:
        ValueError: a file or a picture that cannot be read; the message names it.

    Example:
        >>> import numpy as np
        >>> [found] = fedqssl.predict("phone.fqssl", np.zeros((40, 30, 3), dtype=np.uint8), top=3)
        >>> len(found.top)
        3
    """
    loaded = load(model, trust=trust) if isinstance(model, (str, Path)) else model
    return loaded.predict(images, top)


def export(
    source: str | Path | Run,
    client: str,
    out: str | Path | None = None,
    *,
    format: str = "fedqssl",
    data: Any = None,
    labels: str = "all",
    overwrite: bool = False,
    max_ram: int | None = None,
    trust: bool = False,
) -> Path:
    """Write a client's model with its classifier for its device, and a model card.

    Args:
        source: a finished run, or its folder.
        client: the client's name.
        out: file to write; by default ``<client>.fqssl`` or ``<client>.onnx``, of C the folder ``<client>-c``.
        format: ``fedqssl`` (packed codes, for :func:`fedqssl.load`), ``onnx``, or ``c`` (a folder for microcontrollers).
        data: labeled data to fit the classifier on, of any kind that :func:`fedqssl.run` takes; by default the client's own.
        labels: share of the training labels used: ``all``, ``10%``, ``1%``.
        overwrite: replace files that exist.
        max_ram: most bytes of RAM that the C may use.
        trust: allow importing code that the run names.

    Returns:
        The path of the file or folder.

    Raises:
        ValueError: no such run, client or format, a file that exists, or a model that the format cannot hold; what to do.

    Example:
        >>> fedqssl.export("runs/smoke-1", "client-01", "phone.fqssl", overwrite=True).name
        'phone.fqssl'
    """
    words = {"format": format, "data": data, "labels": labels, "overwrite": overwrite, "max_ram": max_ram}
    return _opened(source, trust).clients[client].export(out, **words)


def probe(
    source: str | Path | Run,
    client: str,
    *,
    data: Any = None,
    labels: str = "all",
    method: str = "linear",
    trust: bool = False,
) -> Probe:
    """Train and test a client's low-bit classifier on its frozen low-bit model.

    Args:
        source: a finished run, or its folder.
        client: the client's name.
        data: other labeled data, of any kind that :func:`fedqssl.run` takes; by default the client's own.
        labels: share of the training labels used: ``all``, ``10%``, ``1%``.
        method: ``linear`` (a classifier in the client's bits) or ``knn`` (no training).
        trust: allow importing code that the run names.

    Returns:
        The classifier with its accuracy, confusion matrix and calibration error.

    Raises:
        ValueError: no such run or client, or data without labels; one line that says what to do.

    Example:
        >>> found = fedqssl.probe("runs/smoke-1", "client-00", labels="50%")
        >>> 0 <= found.outcome.accuracy <= 1
        True
    """
    return _opened(source, trust).clients[client].probe(data, labels, method)


def _opened(source: str | Path | Run, trust: bool) -> Run:
    return source if isinstance(source, Run) else Run(source, trust=trust)


def report(source: str | Path | Run, out: str | Path | None = None, *, trust: bool = False) -> Path:
    """Write the report of a run, or of a folder of runs: one self-contained page.

    Args:
        source: a run, its folder, or a folder with runs in it.
        out: file to write; by default ``report.html`` in that folder.
        trust: allow importing code that a run names.

    Returns:
        The file's path.

    Raises:
        RunError: there is no run, or the file cannot be written.

    Example:
        >>> fedqssl.report("runs/smoke-1", "page.html").exists()
        True
    """
    from fedqssl.reporting import write_report

    folder = source.folder if isinstance(source, Run) else Path(source)
    return write_report(folder, None if out is None else Path(out), trust=trust or isinstance(source, Run))


def compare(*runs: str | Path | Run, across: Sequence[str] = (), finished: bool = False) -> Comparison:
    """Finished runs in one table: one row per configuration, mean and standard deviation over seeds.

    Args:
        runs: runs, their folders, or folders with runs inside.
        across: settings in which the runs may differ, besides algorithm, bits and seed.
        finished: leave out unfinished runs.

    Returns:
        The comparison; ``text("markdown")``, ``text("csv")`` and ``text("latex")`` write it.

    Raises:
        RunError: runs that cannot be compared; one line that says why.

    Example:
        >>> "fed_qssl" in fedqssl.compare("runs/smoke-1").text("markdown")
        True
    """
    from fedqssl.runs.compare import compare as compare_runs

    return compare_runs([r.folder if isinstance(r, Run) else Path(r) for r in runs], list(across), finished)


def sweep(
    source: str | Path = "quickstart",
    *,
    grid: Mapping[str, Sequence[Any]],
    out: str | Path | None = None,
    jobs: int | None = None,
    say: Say = print,
    **settings: Any,
) -> Comparison:
    """Run every combination of several settings' values; finished runs are skipped, interrupted ones are resumed.

    Args:
        source: name of a preset, or the path of a TOML file.
        grid: the values of each setting that varies, like ``{"beta": [0.1, 0.5], "seed": [0, 1, 2]}``.
        out: folder of the sweep; by default ``runs/sweep-<preset>``.
        jobs: number of cells to run in parallel, one thread each; by default one after another.
        say: receives the lines of progress.
        settings: the settings that all runs share.

    Returns:
        The comparison of all runs.

    Raises:
        ValueError: a grid that cannot be run, or the error of a cell, after all others were run.

    Example:
        >>> found = fedqssl.sweep("smoke", grid={"seed": [0, 1]}, rounds=1, out="runs/seeds", say=lambda line: None)
        >>> "fed_qssl" in found.text("markdown")
        True
    """
    from fedqssl.runs import Progress
    from fedqssl.runs.sweep import SEPARATOR, plan_sweep
    from fedqssl.runs.sweep import sweep as run_sweep

    words = [f"{key}={_written(value)}" for key, value in settings.items()]
    words += [f"{key}={SEPARATOR.join(map(_written, values))}" for key, values in grid.items()]
    folder = Path(out) if out is not None else Path("runs") / f"sweep-{Path(source).stem}"
    table, error = run_sweep(plan_sweep(str(source), words), folder, jobs, Progress(say))
    if error is not None or table is None:
        raise error or ValueError("the sweep has no runs")
    return table


def _written(value: Any) -> str:
    """A value as on the command line."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


__all__ = ["compare", "export", "load", "predict", "probe", "report", "resume", "run", "sweep"]
