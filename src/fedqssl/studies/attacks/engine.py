"""An engine for simulations in which a fifth of the clients is hostile: ``engine = "attack-<name>"``.

All clients train honestly; then the uploads of the hostile ones are replaced, before the server sees any. Importing this module
enters the engines into ``fedqssl.runs.lifecycle.ENGINES``; nothing but ``fedqssl reproduce attacks`` imports it, so that no other
command knows such an engine. A run's ``config.toml`` names the attack.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from fedqssl.engines.engine import Engine, Replies
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.context import Simulation
from fedqssl.federated.job import Job
from fedqssl.federated.randomness import generator
from fedqssl.federated.server.validate import check_model
from fedqssl.runs.cells import Cell
from fedqssl.runs.lifecycle import ENGINES
from fedqssl.studies.attacks.attacks import ATTACKS, Attack
from fedqssl.studies.attacks.uploads import hostile_upload, malicious_clients

PREFIX = "attack-"


@dataclass(frozen=True, eq=False)
class AttackedEngine:
    """Carries what another engine carries, with the uploads of hostile clients in place of their honest ones.

    Args:
        honest: the engine that trains the clients.
        attack: what the hostile ones send.
        bits: by client.
    """

    honest: Engine
    attack: Attack
    bits: Mapping[str, int]

    def train_clients(self, payloads: Mapping[str, bytes], job: Job) -> tuple[Replies, dict[str, str]]:
        """See :class:`fedqssl.engines.engine.Engine`. Training for a client's own evaluation is nobody's upload."""
        replies, failed = self.honest.train_clients(payloads, job)
        if job.return_model:
            return replies, failed
        hostile = [n for n in malicious_clients(self.bits) if n in replies]
        uploads = {n: upload for n, (upload, _) in replies.items()}
        for name in hostile:
            draws = generator(job.task.seed, "attack", name, job.round_number)
            upload = hostile_upload(self.attack, name, payloads, uploads, self.bits, hostile, job.task, draws)
            metrics = replies[name][1]
            claimed = metrics.samples if self.attack.samples is None else self.attack.samples
            replies[name] = upload, replace(metrics, samples=claimed)
        return replies, failed


def _attacked(attack: Attack, pool: Pool[Simulation]) -> AbstractContextManager[Engine]:
    algorithm = pool.shared.algorithm
    if algorithm.check is not check_model:
        raise ValueError(f"{algorithm.name}'s clients send no models; attacks are written for models")
    return nullcontext(AttackedEngine(InProcess(pool), attack, pool.shared.bits))


@dataclass(frozen=True)
class AttackedCell(Cell):
    """A cell whose engine is one of these: a worker process that reads one imports this module."""


def _register() -> None:
    for attack in ATTACKS.values():
        ENGINES[f"{PREFIX}{attack.name}"] = lambda pool, attack=attack: _attacked(attack, pool)  # type: ignore[misc]


_register()

__all__ = ["PREFIX", "AttackedCell", "AttackedEngine"]
