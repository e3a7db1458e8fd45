"""A run as an object: its figures, its clients' models, and what can be made of them."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from fedqssl.config import RunConfig
    from fedqssl.device import DeviceModel, Prediction
    from fedqssl.maker.finished_run import FinishedRun
    from fedqssl.maker.probing import Probe
    from fedqssl.runs import ClientResult, RunResult


class _WithFigures:
    """Figures of ``result`` as attributes of the object; ``_kind`` is what an error calls it."""

    result: Any
    _kind: str
    _hidden: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return getattr(self.result, name)
        except AttributeError:
            raise AttributeError(f"a {self._kind} has no {name!r}; dir({self._kind}) lists what it has") from None

    def __dir__(self) -> list[str]:
        figures = [name for name in dir(self.result) if not name.startswith("_") and name not in self._hidden]
        return sorted({*super().__dir__(), *figures})


class Run(_WithFigures):
    """A finished run: what :func:`fedqssl.run` returns, or ``fedqssl.Run("runs/a")`` for a folder.

    All figures of ``result.json`` are attributes: ``global_accuracy``, ``local_accuracy``, ``rounds``, ``seed``, ``bytes_up`` ...

    Args:
        folder: the run's folder.
        trust: allow importing a model or an algorithm that the run names as ``package.module:NAME``, which runs its code.

    Raises:
        RunError: the folder is not a run, or the run is not finished; the message says what to do.

    Example:
        >>> run = fedqssl.Run("runs/smoke-1")
        >>> run.rounds, sorted(run.clients)[0]
        (2, 'client-00')
    """

    _kind, _hidden = "run", ("read", "to_json")

    def __init__(self, folder: str | Path, *, trust: bool = False) -> None:
        from fedqssl.maker.finished_run import FinishedRun

        self.folder = Path(folder)
        self._finished: FinishedRun = FinishedRun.open(self.folder, trust=trust)

    @property
    def result(self) -> RunResult:
        """The figures of the run."""
        return self._finished.result

    @property
    def config(self) -> RunConfig:
        """The settings of the run."""
        return self._finished.config

    @cached_property
    def clients(self) -> Clients:
        """The clients by name."""
        return Clients(self._finished)

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``, one for each round.

        Example:
            >>> [line["round"] for line in run.metrics()]
            [1, 2]
        """
        return self._finished.folder.lines()

    def table(self) -> Table:
        """The closing table; ``print`` it with rich, or show the run itself in a notebook.

        Example:
            >>> run.table().row_count
            4
        """
        return self.result.table()

    def plot(self) -> Any:
        """Loss, kNN accuracy and aggregation weights over the rounds, as a matplotlib figure.

        Raises:
            ImportError: matplotlib is not installed.

        Example:
            >>> run.plot().savefig("curves.png")
        """
        from fedqssl import plotting
        from fedqssl.runs.plots import curves

        if not plotting.installed():
            raise ImportError("plots need matplotlib: pip install 'fedqssl[plots]'")
        return curves(self._finished.folder)

    def report(self, out: str | Path | None = None) -> Path:
        """Write the run's report, one self-contained page; see :func:`fedqssl.report`.

        Args:
            out: file to write; by default ``report.html`` in the run's folder.

        Returns:
            The file's path.

        Example:
            >>> run.report().name
            'report.html'
        """
        from fedqssl.reporting import write_report

        return write_report(self.folder, None if out is None else Path(out), trust=True)

    def __repr__(self) -> str:
        return f"<Run {self.folder}: {self.result.headline()}>"

    def _repr_html_(self) -> str:
        """For notebooks: the headline and the closing table."""
        rows = [
            (name, c.bits, c.samples, _percent(c.local_accuracy), c.control())
            for name, c in self.result.clients.items()
        ]
        head = "".join(f"<th>{word}</th>" for word in ("client", "bits", "images", "local accuracy", "best control"))
        body = "".join(f"<tr>{''.join(f'<td>{html.escape(str(v))}</td>' for v in row)}</tr>" for row in rows)
        words = html.escape(self.result.headline()), html.escape(self.result.verdict())
        return f"<p><b>{words[0]}</b></p><table><tr>{head}</tr>{body}</table><p>{words[1]}</p>"


def _percent(value: float | None) -> str:
    from fedqssl.runs.result import percent

    return percent(value)


class UnknownClient(KeyError, ValueError):
    """A run has no client of that name; the message says which ones it has."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError would show it in quotes


class Clients(Mapping[str, "Client"]):
    """The clients of a run by name."""

    def __init__(self, run: FinishedRun) -> None:
        self._run = run

    def __getitem__(self, name: str) -> Client:
        if name not in self._run.result.clients:
            from fedqssl.imported import nearest

            known = list(self._run.result.clients)
            raise UnknownClient(f"no client {name!r}{nearest(name, known)} (clients: {known[0]} to {known[-1]})")
        return Client(self._run, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._run.result.clients)

    def __len__(self) -> int:
        return len(self._run.result.clients)

    def __repr__(self) -> str:
        return "\n".join(map(repr, self.values()))


class Client(_WithFigures):
    """A client of a run, with its own model in its own bits; its figures are attributes, as ``bits`` and ``local_accuracy``."""

    _kind = "client"

    def __init__(self, run: FinishedRun, name: str) -> None:
        self._run, self.name = run, name

    @property
    def result(self) -> ClientResult:
        """The client's figures."""
        return self._run.result.clients[self.name]

    def model(self, data: Any = None, labels: str = "all") -> DeviceModel:
        """The client's model with its classifier, ready to predict; what :meth:`export` writes.

        Args:
            data: labeled data to fit the classifier on, of any kind that :func:`fedqssl.run` takes; by default the client's own.
            labels: share of the training labels used: ``all``, ``10%``, ``1%``.

        Example:
            >>> run.clients["client-00"].model().manifest.bits
            4
        """
        from fedqssl.device.model import from_bytes
        from fedqssl.maker.exporting import made_for_device

        return from_bytes(made_for_device(self._run, self.name, self._named(data), labels), trust=True)

    def images(self, split: str = "test") -> tuple[Tensor, Tensor | None]:
        """The client's own images, uint8 (N, C, H, W), and their labels if they have any.

        Args:
            split: ``train`` or ``test``.

        Example:
            >>> images, labels = run.clients["client-00"].images()
            >>> len(images) == len(labels)
            True
        """
        if split not in ("train", "test"):
            raise ValueError(f"split must be train or test, not {split!r}")
        context = self._run.context
        found = context.train.subset(getattr(context.partition.clients[self.name], split))
        return found.images, found.labels

    def predict(self, images: Any, top: int = 1) -> list[Prediction]:
        """Classify pictures with the client's own model; see :meth:`fedqssl.device.DeviceModel.predict`.

        Example:
            >>> import numpy as np
            >>> len(run.clients["client-00"].predict(np.zeros((32, 32, 3), dtype=np.uint8)))
            1
        """
        return self.model().predict(images, top)

    def export(
        self,
        out: str | Path | None = None,
        *,
        format: str = "fedqssl",
        data: Any = None,
        labels: str = "all",
        overwrite: bool = False,
        max_ram: int | None = None,
    ) -> Path:
        """Write the client's model with its classifier for its device; see :func:`fedqssl.export`.

        Example:
            >>> run.clients["client-01"].export("tablet.fqssl").name
            'tablet.fqssl'
        """
        from fedqssl.maker.exporting import export_client

        return export_client(self._run, self.name, out, format, self._named(data), labels, overwrite, max_ram).path

    def probe(self, data: Any = None, labels: str = "all", method: str = "linear") -> Probe:
        """Train and test a classifier on the client's frozen model; see :func:`fedqssl.probe`.

        Example:
            >>> run.clients["client-00"].probe(labels="10%").bits
            4
        """
        from fedqssl.maker.probing import ProbeSettings, probe_client

        return probe_client(self._run, self.name, ProbeSettings(self._named(data), labels, method))  # type: ignore[arg-type]

    def _named(self, data: Any) -> str | None:
        """Labeled data of a caller by name; what is in memory is stored beside the run."""
        from fedqssl.api.sources import named

        run = self._run
        return None if data is None else named(data, run.folder.path.parent, run.config.image_size)

    def __repr__(self) -> str:
        found = self.result
        return f"<Client {self.name}: {found.bits} bits, {found.samples} images, local accuracy {_percent(found.local_accuracy)}>"


__all__ = ["Client", "Clients", "Run"]
