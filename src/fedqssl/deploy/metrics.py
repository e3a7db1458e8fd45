"""The state of a fleet in the text format that Prometheus reads: ``server/metrics.prom``, and ``/metrics`` of the page."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedqssl.deploy.fleet import GOING, OVER, Fleet
from fedqssl.runs.folder import RunError, RunFolder

HELP = {
    "fedqssl_serving": ("gauge", "1 while the server is running."),
    "fedqssl_running": ("gauge", "1 while a run is starting, waiting for clients or running."),
    "fedqssl_run_state": ("gauge", "1 for the state that the current or last run is in."),
    "fedqssl_round": ("gauge", "Rounds that the current or last run has finished."),
    "fedqssl_rounds": ("gauge", "Rounds that the current or last run is to have."),
    "fedqssl_clients_connected": ("gauge", "Clients that are connected."),
    "fedqssl_clients_awaited": ("gauge", "Clients whose update the round is waiting for."),
    "fedqssl_loss": ("gauge", "Mean loss of the clients in the last round."),
    "fedqssl_knn_accuracy": ("gauge", "kNN accuracy of the global model, from 0 to 1, when it was last measured."),
    "fedqssl_untrained_knn_accuracy": ("gauge", "The same accuracy of the untrained network."),
    "fedqssl_round_seconds": ("gauge", "Seconds that clients and server took for the last round."),
    "fedqssl_server_seconds": ("gauge", "Seconds of the last round that were the server's own work."),
    "fedqssl_rejected_updates": ("gauge", "Updates of the current or last run that were not used."),
    "fedqssl_rejected_rounds": ("gauge", "Rounds of the current or last run that kept the model before them."),
    "fedqssl_model_bytes": ("gauge", "Bytes of models in the current or last run, by direction."),
    "fedqssl_client_connected": ("gauge", "1 while the client is connected."),
    "fedqssl_client_awaited": ("gauge", "1 while the round is waiting for this client's update."),
    "fedqssl_client_last_seen_seconds": (
        "gauge",
        "When the client's last request came, in seconds since 1970; 0: never.",
    ),
    "fedqssl_client_wire_received_bytes": ("counter", "Bytes of accepted requests since the server started."),
    "fedqssl_client_wire_sent_bytes": ("counter", "Bytes of responses since the server started."),
    "fedqssl_client_rejected_updates": (
        "gauge",
        "Updates of this client in the current or last run that were not used.",
    ),
}
"""Kind and meaning of every metric."""

Sample = tuple[str, Mapping[str, str], float | None]
"""A metric's name, its labels, and its value; without a value it is left out."""


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    number = repr(value) if isinstance(value, float) else str(int(value))
    return f"{name}{{{inside}}} {number}" if inside else f"{name} {number}"


def exposition(samples: Iterable[Sample]) -> str:
    """The samples as text: grouped by metric, with ``# HELP`` and ``# TYPE`` before each."""
    groups: dict[str, list[str]] = {name: [] for name in HELP}
    for name, labels, value in samples:
        if value is not None and math.isfinite(value):
            groups[name].append(_line(name, labels, value))
    lines = []
    for name, group in groups.items():
        if group:
            kind, words = HELP[name]
            lines += [f"# HELP {name} {words}", f"# TYPE {name} {kind}", *group]
    return "\n".join(lines) + "\n"


def _of_run(run: Mapping[str, Any], rounds: list[dict[str, Any]]) -> Iterable[Sample]:
    """What the lines of ``metrics.jsonl`` say."""
    if not rounds:
        return
    last = rounds[-1]
    measured = [line for line in rounds if line.get("knn") is not None]
    yield "fedqssl_loss", {}, last.get("loss")
    yield "fedqssl_knn_accuracy", {}, measured[-1]["knn"] if measured else None
    yield "fedqssl_untrained_knn_accuracy", {}, last.get("untrained_knn")
    server, clients = last.get("server_seconds"), last.get("clients_wall_seconds")
    yield "fedqssl_server_seconds", {}, server
    yield "fedqssl_round_seconds", {}, None if server is None or clients is None else server + clients
    yield "fedqssl_rejected_updates", {}, sum(len(line.get("rejected") or {}) for line in rounds)
    yield "fedqssl_rejected_rounds", {}, sum("round_rejected" in line for line in rounds)
    for direction in ("up", "down"):
        total = sum(line.get(f"bytes_{direction}") or 0 for line in rounds)
        yield "fedqssl_model_bytes", {"direction": direction}, total


def prometheus(values: Mapping[str, Any], rounds: list[dict[str, Any]] | None = None) -> str:
    """The status (see :func:`fedqssl.deploy.status.collect`) and a run's rounds in Prometheus' text format."""
    run, clients, lines = values["run"], values["clients"], rounds or []
    samples: list[Sample] = [
        ("fedqssl_serving", {}, int(values["serving"])),
        ("fedqssl_running", {}, int(run["state"] in GOING)),
        *(("fedqssl_run_state", {"state": s}, int(run["state"] == s)) for s in (*GOING, *OVER)),
        ("fedqssl_round", {}, run["round"] or 0),
        ("fedqssl_rounds", {}, run["rounds"]),
        ("fedqssl_clients_connected", {}, sum(client["connected"] for client in clients.values())),
        ("fedqssl_clients_awaited", {}, len(run["awaited"])),
        *_of_run(run, lines),
    ]
    for name, client in clients.items():
        label = {"client": name}
        rejected = sum(name in (line.get("rejected") or {}) for line in lines)
        samples += [
            ("fedqssl_client_connected", label, int(client["connected"])),
            ("fedqssl_client_awaited", label, int(name in run["awaited"])),
            ("fedqssl_client_last_seen_seconds", label, client["last_seen"] or 0),
            ("fedqssl_client_wire_received_bytes", label, client["wire_received"]),
            ("fedqssl_client_wire_sent_bytes", label, client["wire_sent"]),
            ("fedqssl_client_rejected_updates", label, rejected),
        ]
    return exposition(samples)


class Rounds:
    """The lines of the current run, read again only when the file has grown."""

    def __init__(self) -> None:
        self._key: tuple[Path, int] | None = None
        self._lines: list[dict[str, Any]] = []

    def of(self, fleet: Fleet, run: str | None) -> list[dict[str, Any]]:
        """The lines of this run."""
        path = fleet.runs / str(run) / "metrics.jsonl"
        try:
            key = path, path.stat().st_size
        except OSError:
            return []
        if self._key is not None and path != self._key[0]:
            self._lines = []
        if key != self._key:
            with suppress(RunError, OSError):  # a line that is being written: as before, until it is whole
                self._key, self._lines = key, RunFolder(path.parent).lines()
        return self._lines


__all__ = ["HELP", "Rounds", "exposition", "prometheus"]
