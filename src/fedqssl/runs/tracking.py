"""Copies of a run's figures for TensorBoard, MLflow or Weights & Biases (``track=...``). Optional: errors never stop the run.

Everything stays on this machine unless the tracker's own variables say otherwise (``MLFLOW_TRACKING_URI``, ``WANDB_MODE``).
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from fedqssl.config import RunConfig
from fedqssl.config.keys import flat
from fedqssl.runs.folder import RunError, RunFolder
from fedqssl.runs.result import RunResult

PACKAGES = {"tensorboard": "torch.utils.tensorboard", "mlflow": "mlflow", "wandb": "wandb"}
"""What each tracker imports; the extra has the tracker's name."""


class Tracker(Protocol):
    """Receives the figures of each round and of the end of the run."""

    def log(self, figures: Mapping[str, float], step: int) -> None:
        """Record the figures of a round or of the end of the run."""

    def close(self, finished: bool) -> None:
        """Flush; an interrupted run is not ``finished`` and may be resumed later."""


def check_tracking(track: str) -> None:
    """Raise an error if the tracker's package is missing, before any work is done."""
    if track == "none":
        return
    try:
        importlib.import_module(PACKAGES[track])
    except ImportError as error:
        raise RunError(
            f"track={track} needs a package that is not installed ({error}); pip install 'fedqssl[{track}]', or leave out track"
        ) from error


def figures_of(line: Mapping[str, Any]) -> dict[str, float]:
    """A line of ``metrics.jsonl`` as flat numbers: ``loss``, ``knn``, ``weights/client-00``, ``collapse/alignment``."""
    found = {}
    for key, value in line.items():
        if key == "rejected":
            found["rejected"] = float(len(value))
        elif key == "client_loss":
            last = {name: losses[-1] for name, losses in value.items() if losses}
            found |= {f"client_loss/{name}": float(loss) for name, loss in last.items() if loss is not None}
        elif isinstance(value, Mapping):
            found |= {f"{key}/{name}": float(number) for name, number in value.items() if number is not None}
        elif isinstance(value, (int, float)) and key != "round":
            found[key] = float(value)
    return found


def closing_figures(result: RunResult) -> dict[str, float]:
    """The headline figures of a finished run."""
    known = {"accuracy/global": result.global_accuracy, "accuracy/local_mean": result.local_accuracy}
    known |= {f"accuracy/{name}": client.local_accuracy for name, client in result.clients.items()}
    return {name: value for name, value in known.items() if value is not None}


class _TensorBoard:
    """Event files in ``<run>/tensorboard``; rounds that a resumed run repeats replace the old ones."""

    def __init__(self, config: RunConfig, folder: RunFolder, rounds_done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        again = rounds_done + 1 if rounds_done else None
        self._writer: Any = SummaryWriter(str(folder.path / "tensorboard"), purge_step=again)

    def log(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, finished: bool) -> None:
        self._writer.close()


class _MLflow:
    """A run in the experiment ``fedqssl``, in ``<run>/mlruns`` unless ``MLFLOW_TRACKING_URI`` names a server."""

    def __init__(self, config: RunConfig, folder: RunFolder, rounds_done: int) -> None:
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions ask for a database otherwise
        mlflow: Any = importlib.import_module("mlflow")
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (folder.path / "mlruns").absolute().as_uri()
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        noted = folder.path / "mlflow-run.txt"
        if noted.exists():
            self._run = noted.read_text().strip()
            return
        experiment = self._client.get_experiment_by_name("fedqssl")
        number = self._client.create_experiment("fedqssl") if experiment is None else experiment.experiment_id
        self._run = self._client.create_run(number, run_name=folder.path.name).info.run_id
        for name, value in flat(config.model_dump(mode="json")).items():
            self._client.log_param(self._run, name, str(value)[:500])
        folder.write(noted.name, f"{self._run}\n")

    def log(self, figures: Mapping[str, float], step: int) -> None:
        for name, value in figures.items():
            self._client.log_metric(self._run, name, value, step=step)

    def close(self, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")


class _WandB:
    """A run of the project ``fedqssl``, offline in ``<run>/wandb`` unless ``WANDB_MODE`` says otherwise."""

    def __init__(self, config: RunConfig, folder: RunFolder, rounds_done: int) -> None:
        wandb: Any = importlib.import_module("wandb")
        self._run: Any = wandb.init(
            project="fedqssl",
            name=folder.path.name,
            id=hashlib.sha256(str(folder.path.absolute()).encode()).hexdigest()[:16],
            resume="allow",
            dir=str(folder.path),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=flat(config.model_dump(mode="json")),
            settings=wandb.Settings(silent=True, console="off"),
        )

    def log(self, figures: Mapping[str, float], step: int) -> None:
        self._run.log(dict(figures), step=step)

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, Callable[[RunConfig, RunFolder, int], Tracker]] = {
    "tensorboard": _TensorBoard,
    "mlflow": _MLflow,
    "wandb": _WandB,
}


class Tracking:
    """A run's tracker, if it has one; its first error is shown once and ends the tracking but not the run."""

    def __init__(self, tracker: Tracker | None, say: Callable[[str], None]) -> None:
        self._tracker, self._say = tracker, say
        self._finished = False

    def round(self, line: Mapping[str, Any]) -> None:
        """Record a round."""
        self._try(lambda tracker: tracker.log(figures_of(line), int(line["round"])))

    def result(self, result: RunResult) -> None:
        """Record the end of the run."""
        self._finished = True
        self._try(lambda tracker: tracker.log(closing_figures(result), result.rounds))

    def close(self) -> None:
        """Flush, and record whether the run finished."""
        self._try(lambda tracker: tracker.close(self._finished))

    def _try(self, action: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            action(self._tracker)
        except Exception as error:  # a tracker raises what it likes, and the run is worth more than its copy
            self._tracker = None
            self._say(
                f"warning: tracking stopped ({_one_line(error)}); the run continues, and its figures are in metrics.jsonl"
            )


@contextlib.contextmanager
def tracking(config: RunConfig, folder: RunFolder, rounds_done: int, say: Callable[[str], None]) -> Iterator[Tracking]:
    """The tracking of a run from here to its end; ``track = "none"`` gives one that does nothing."""
    tracker = None
    if config.track != "none":
        try:
            tracker = TRACKERS[config.track](config, folder, rounds_done)
        except Exception as error:  # as above
            raise RunError(
                f"track={config.track} cannot start ({_one_line(error)}); fix that, or use track=none"
            ) from error
    found = Tracking(tracker, say)
    try:
        yield found
    finally:
        found.close()


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


__all__ = ["Tracker", "Tracking", "check_tracking", "closing_figures", "figures_of", "tracking"]
