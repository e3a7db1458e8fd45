"""The folder of a run: its files, atomic checkpoints, and the refusal to overwrite anything."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

KEEP = 2
"""Checkpoints kept: the newest, and one before it."""


class RunError(ValueError):
    """A run's folder is not what was expected; the message says what to do."""


@dataclass(frozen=True)
class Checkpoint:
    """All that a run needs to go on: rounds done, the payload per bitwidth, the aggregated model, running totals."""

    rounds_done: int
    payloads: dict[int, bytes]
    aggregated: bytes
    totals: dict[str, object]


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file so that it is there in full or not at all."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)


class RunFolder:
    """Paths and files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.metrics = path / "metrics.jsonl"

    @classmethod
    def create(cls, path: Path, overwrite: bool) -> RunFolder:
        """A new folder; an existing one is only replaced if it is a run and ``overwrite`` is set."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if not overwrite:
                raise RunError(
                    f"{path} exists; choose another --out, go on with --resume {path}, or replace it with --overwrite"
                )
            if not (path / "config.toml").exists():
                raise RunError(f"{path} is not a run (no config.toml), so --overwrite will not delete it")
            shutil.rmtree(path)
        folder = cls(path)
        folder.checkpoints.mkdir(parents=True)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """The folder of a run that was started before."""
        if not (path / "config.toml").is_file():
            raise RunError(f"{path} is not a run: it has no config.toml; start one with fedqssl run --out {path}")
        return cls(path)

    def write(self, name: str, text: str) -> None:
        """Write a text file atomically."""
        write_atomically(self.path / name, text.encode())

    def save(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint atomically and forget all but the last two."""
        final = self.checkpoints / f"round-{checkpoint.rounds_done:05d}"
        partial = final.with_name(final.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        files = {f"bits-{b:02d}.fqssl": data for b, data in checkpoint.payloads.items()}
        files["aggregated.fqssl"] = checkpoint.aggregated
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        state = {"rounds_done": checkpoint.rounds_done, "totals": checkpoint.totals, "sha256": digests}
        files["state.json"] = json.dumps(state, indent=1).encode()
        for name, data in files.items():
            write_atomically(partial / name, data)
        if final.exists():
            shutil.rmtree(final)
        os.replace(partial, final)
        for old in sorted(self.checkpoints.glob("round-?????"))[:-KEEP]:
            shutil.rmtree(old, ignore_errors=True)

    def latest(self) -> Checkpoint | None:
        """The newest checkpoint, or None; one that was changed since is an error."""
        found = sorted(self.checkpoints.glob("round-?????"))
        if not found:
            return None
        folder = found[-1]
        try:
            state = json.loads((folder / "state.json").read_text())
            files = {name: (folder / name).read_bytes() for name in state["sha256"]}
        except (OSError, ValueError, KeyError) as error:
            raise RunError(
                f"checkpoint {folder} cannot be read ({error}); delete it to go on from the one before"
            ) from error
        for name, digest in state["sha256"].items():
            if hashlib.sha256(files[name]).hexdigest() != digest:
                raise RunError(f"{folder / name} was changed; delete {folder} to go on from the checkpoint before")
        aggregated = files.pop("aggregated.fqssl")
        payloads = {int(name[5:7]): data for name, data in files.items()}
        return Checkpoint(state["rounds_done"], payloads, aggregated, state["totals"])

    def append_metrics(self, line: dict[str, object]) -> None:
        """Add one line to ``metrics.jsonl``."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def cut_metrics(self, rounds_done: int) -> None:
        """Drop lines of rounds that no checkpoint has: they will be run again."""
        if self.metrics.exists():
            lines = self.metrics.read_text().splitlines()
            kept = [line for line in lines if _round_of(line) <= rounds_done]
            self.write("metrics.jsonl", "".join(line + "\n" for line in kept))


def _round_of(line: str) -> float:
    try:
        return float(json.loads(line)["round"])
    except (ValueError, KeyError):
        return float("inf")  # the last line of a killed run may be cut off
