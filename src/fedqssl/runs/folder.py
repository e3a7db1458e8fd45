"""The folder of a run: its files, atomic checkpoints, and protection against overwriting."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from fedqssl.federated.server_state import ServerState, state_from_bytes, state_to_bytes
from fedqssl.files import finite, locked, parse_json, read_json, write_atomically
from fedqssl.imported import one_line
from fedqssl.runs.metrics import MOST_ROUNDS, checked_line, read_line
from fedqssl.runs.shared_models import Groups, SharedModels, share

KEEP = 2
"""Checkpoints kept: the newest and the one before it."""
SERVER_STATE = "server-state.fqssl"
CLIENTS = "clients.json"
UNSTARTED = {"checkpoints", "environment.json", "partition.json", "data.json", "config.toml"}
"""What is written when a run starts, config.toml last: a run that was stopped before that has nothing to lose."""


class RunError(ValueError):
    """A run's folder cannot be used as asked; the message says what to do."""


@dataclass(frozen=True)
class RunTotals:
    """Running totals: bytes by client are the lengths of the payloads."""

    up: dict[str, int] = field(default_factory=dict)
    down: dict[str, int] = field(default_factory=dict)
    client_seconds: float = 0.0
    server_seconds: float = 0.0

    def plus(
        self, sent: Mapping[str, bytes], received: Mapping[str, bytes], client_seconds: float, server_seconds: float
    ) -> RunTotals:
        """The totals after another round's traffic and work."""
        up, down = dict(self.up), dict(self.down)
        for name, payload in sent.items():
            down[name] = down.get(name, 0) + len(payload)
        for name, payload in received.items():
            up[name] = up.get(name, 0) + len(payload)
        return RunTotals(up, down, self.client_seconds + client_seconds, self.server_seconds + server_seconds)


@dataclass(frozen=True)
class Checkpoint:
    """Everything that a run needs to continue.

    Args:
        rounds_done: rounds completed so far.
        payloads: the next model by client.
        aggregated: the aggregated model, if there is one.
        totals: bytes and seconds so far.
        server_state: what the server remembers between rounds.
    """

    rounds_done: int
    payloads: dict[str, bytes]
    aggregated: bytes | None
    totals: RunTotals
    server_state: ServerState = field(default_factory=dict)


FileName = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,64}\.fqssl$")]


class _State(BaseModel):
    """``state.json`` of a checkpoint: files by client, their digests, and the digest of the lines of ``metrics.jsonl``.

    In large fleets, ``common`` has the files of the groups of clients in ``clients.json``, whose digest is ``groups``, and
    ``models`` those of the other clients.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    rounds_done: Annotated[int, Field(strict=True, ge=0, le=MOST_ROUNDS)]
    totals: RunTotals
    models: dict[str, FileName]
    sha256: dict[FileName, str]
    metrics: str | None = None
    common: list[FileName] = []
    groups: str | None = None


_NAMES = TypeAdapter(list[list[str]])


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"
        self._groups: Groups | None = None
        self._saved: tuple[Path, frozenset[str]] | None = None
        self._lines: Any = None  # the digest of the lines so far, once it is known

    @classmethod
    def check_new(cls, path: Path, overwrite: bool) -> None:
        """Raise an error for a folder that a new run must not use, before any work is done."""
        if not path.exists() or (path.is_dir() and _nothing_to_lose(path)):
            return
        if not _is_run(path):
            raise RunError(f"{path} exists and is not a run, so it will not be replaced; choose another --out")
        if not overwrite:
            raise RunError(
                f"{path} exists; choose another --out, resume it with --resume {path}, or replace it with --overwrite"
            )

    @classmethod
    def create(cls, path: Path, overwrite: bool) -> RunFolder:
        """A new folder; an existing one is only replaced if it is a run and ``overwrite`` is set."""
        cls.check_new(path, overwrite)
        if path.exists() and any(path.iterdir()):
            with cls(path).locked():
                shutil.rmtree(path)
        folder = cls(path)
        folder.checkpoints.mkdir(parents=True)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that was started earlier."""
        if path.is_file():
            raise RunError(f"{path} is a file; give the run's folder, {path.parent}")
        if not (path / "config.toml").is_file():
            raise RunError(f"{path} is not a run: it has no config.toml; start one with fedqssl run --out {path}")
        return cls(path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from working on this run; the lock of a killed process is released."""
        busy = RunError(f"another process is working on {self.path}; wait for it, or stop it first")
        with locked(self.path / ".lock", busy):
            yield

    def read_json(self, name: str) -> object:
        """A JSON file of the run."""
        return read_json(self.path / name, RunError, "this run cannot be resumed")

    def write(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        write_atomically(self.path / name, text.encode())

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint atomically and delete all but the last two; equal models share one file."""
        final = self.checkpoints / f"round-{checkpoint.rounds_done:05d}"
        partial = final.with_name(final.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        try:
            partial.mkdir(parents=True)
            if self._lines is None and self.metrics.exists():
                self._lines = self._digest_of_lines(checkpoint.rounds_done)
            metrics = None if self._lines is None else self._lines.hexdigest()
            self._fill(partial, checkpoint, metrics)
            if final.exists():
                shutil.rmtree(final)
            os.replace(partial, final)
            self._saved = final, frozenset(os.listdir(final))
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise RunError(
                f"round {checkpoint.rounds_done} cannot be saved to {self.checkpoints} ({error.strerror or error}); the "
                f"previous checkpoint is kept: free some space, then resume with --resume {self.path}"
            ) from error
        for old in sorted(self.checkpoints.glob("round-?????"))[:-KEEP]:
            shutil.rmtree(old, ignore_errors=True)

    def _fill(self, partial: Path, checkpoint: Checkpoint, metrics: str | None) -> None:
        shared = share(checkpoint.payloads, self._groups)
        self._groups = shared.groups
        digests = {data: hashlib.sha256(data).hexdigest() for data in {*shared.common, *shared.own.values()}}
        names = {data: f"model-{digest[:16]}.fqssl" for data, digest in digests.items()}
        files = {name: data for data, name in sorted(names.items(), key=lambda item: item[1])}
        sha256 = {names[data]: digest for data, digest in digests.items()}
        for name, extra in (
            ("aggregated.fqssl", checkpoint.aggregated),
            (SERVER_STATE, state_to_bytes(checkpoint.server_state) if checkpoint.server_state else None),
        ):
            if extra is not None:
                files[name], sha256[name] = extra, hashlib.sha256(extra).hexdigest()
        state = {
            "rounds_done": checkpoint.rounds_done,
            "totals": dict(vars(checkpoint.totals)),
            "models": {client: names[data] for client, data in shared.own.items()},
            "sha256": sha256,
            "metrics": metrics,
        }
        if shared.groups:
            files[CLIENTS] = json.dumps(shared.groups).encode()
            state |= {"common": [names[data] for data in shared.common]}
            state |= {"groups": hashlib.sha256(files[CLIENTS]).hexdigest()}
        for name, data in files.items():
            self._write(partial / name, data)
        text = json.dumps(state | {"digest": _digest(state)}, indent=None if shared.groups else 1)
        write_atomically(partial / "state.json", text.encode())

    def _write(self, path: Path, data: bytes) -> None:
        """Write a file of a checkpoint; what the last one has under the name of its content is not written again."""
        if self._saved is not None and path.name.startswith("model-") and path.name in self._saved[1]:
            with contextlib.suppress(OSError):  # a file system without links
                os.link(self._saved[0] / path.name, path)
                return
        write_atomically(path, data)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, or None; a checkpoint that was modified is an error."""
        found = sorted(self.checkpoints.glob("round-?????"))
        if not found:
            return None
        folder = found[-1]
        try:
            values = parse_json((folder / "state.json").read_text(encoding="utf-8"))
            if isinstance(values, dict) and values.pop("digest", None) not in (None, _digest(values)):
                raise RunError(
                    f"{folder / 'state.json'} was modified; delete {folder} to resume from the previous checkpoint"
                )
            state = _State.model_validate(values)
            files = {name: (folder / name).read_bytes() for name in state.sha256}
            self._groups = self._read_groups(folder, state)
            common = [files[name] for name in state.common]
            own = {client: files[name] for client, name in state.models.items()}
            payloads = SharedModels(self._groups, common, own).by_client()
        except RunError:
            raise
        except (OSError, ValueError, KeyError) as error:
            raise RunError(
                f"checkpoint {folder} cannot be read ({one_line(error)}); delete it to resume from the previous one"
            ) from error
        for name, digest in state.sha256.items():
            if hashlib.sha256(files[name]).hexdigest() != digest:
                raise RunError(f"{folder / name} was modified; delete {folder} to resume from the previous checkpoint")
        self._check_metrics(state)
        remembered = state_from_bytes(files[SERVER_STATE]) if SERVER_STATE in files else {}
        return Checkpoint(state.rounds_done, payloads, files.get("aggregated.fqssl"), state.totals, remembered)

    @staticmethod
    def _read_groups(folder: Path, state: _State) -> Groups:
        if state.groups is None:
            return ()
        data = (folder / CLIENTS).read_bytes()
        if hashlib.sha256(data).hexdigest() != state.groups:
            raise RunError(f"{folder / CLIENTS} was modified; delete {folder} to resume from the previous checkpoint")
        return _NAMES.validate_python(parse_json(data))

    def _check_metrics(self, state: _State) -> None:
        """Raise an error if the lines that a checkpoint was written after have changed since."""
        if (
            state.metrics is not None
            and self.metrics.exists()
            and self._digest_of_lines(state.rounds_done).hexdigest() != state.metrics
        ):
            raise RunError(
                f"{self.metrics} was modified; restore it, or delete it to resume without the figures of earlier rounds"
            )

    def _digest_of_lines(self, rounds_done: int) -> Any:
        """Digest of the lines up to a round, to which later lines can be added."""
        return hashlib.sha256("".join(f"{line}\n" for line in self._kept(rounds_done)).encode())

    def log(self, line: str) -> None:
        """Add a line with the time to ``log.txt``; if the log cannot be written, the run continues."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with contextlib.suppress(OSError), (self.path / "log.txt").open("a") as file:
            file.write(f"{stamp} {line}\n")

    def append_metrics(self, line: dict[str, object]) -> None:
        """Add one line to ``metrics.jsonl``."""
        text = json.dumps(finite(line), allow_nan=False) + "\n"
        with self.metrics.open("a") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        if self._lines is not None:
            self._lines.update(text.encode())

    def lines(self) -> list[dict[str, Any]]:
        """The lines of ``metrics.jsonl``."""
        try:
            return [checked_line(line) for line in self._text()]
        except ValueError as error:
            raise RunError(f"{self.metrics} cannot be read ({error}); restore it, or delete it") from error

    def cut_metrics(self, rounds_done: int) -> None:
        """Drop lines of rounds after the last checkpoint: they will be run again."""
        self._lines = None
        if self.metrics.exists():
            self.write("metrics.jsonl", "".join(line + "\n" for line in self._kept(rounds_done)))

    def _kept(self, rounds_done: int) -> list[str]:
        return [line for line in self._text() if _round_of(line) <= rounds_done]

    def _text(self) -> list[str]:
        if not self.metrics.exists():
            return []
        lines = self.metrics.read_text(encoding="utf-8", errors="replace").split("\n")
        return lines if lines[-1] else lines[:-1]


def _is_run(path: Path) -> bool:
    """Whether a folder holds a run: other folders may have a config.toml, too."""
    return (path / "config.toml").is_file() and (path / "checkpoints").is_dir()


def _nothing_to_lose(path: Path) -> bool:
    """Whether a folder is empty or holds a run that was stopped before it began."""
    names = {entry.name for entry in path.iterdir()}
    if "config.toml" in names or not {n.removesuffix(".partial") for n in names} <= UNSTARTED:
        return False
    return "checkpoints" not in names or not any((path / "checkpoints").iterdir())


def _digest(state: Mapping[str, object]) -> str:
    """Digest of a checkpoint's state.json, so that changes are detected."""
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _round_of(line: str) -> float:
    try:
        return float(read_line(line)["round"])
    except ValueError:
        return float("inf")  # the last line of a killed run may be cut off


__all__ = ["Checkpoint", "RunError", "RunFolder", "RunTotals", "finite", "write_atomically"]
