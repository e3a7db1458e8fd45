"""An engine for simulations in which a fifth of the clients is hostile: ``engine = "attack-<name>"``.

All clients train honestly; then the uploads of the hostile ones are replaced, before the server sees any. Importing this module
enters the engines into ``fedqssl.runs.lifecycle.ENGINES``; nothing but ``fedqssl reproduce attacks`` imports it, so that no other
command knows such an engine. A run's ``config.toml`` names the attack.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from fedqssl.engines.engine import Engine, Replies
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.context import Simulation, build_simulation
from fedqssl.federated.job import Job
from fedqssl.federated.randomness import generator
from fedqssl.federated.server.validate import check_model
from fedqssl.runs.cells import Cell
from fedqssl.runs.folder import RunFolder
from fedqssl.runs.lifecycle import ENGINES
from fedqssl.studies.attacks.attacks import ATTACKS, Attack
from fedqssl.studies.attacks.backdoor import Own, reference_images, success
from fedqssl.studies.attacks.uploads import hostile_upload, malicious_clients

PREFIX = "attack-"
BACKDOOR = "backdoor"
BACKDOOR_FILE = "backdoor.json"


@dataclass(frozen=True, eq=False)
class AttackedEngine:
    """Carries what another engine carries, with the uploads of hostile clients in place of their honest ones.

    Args:
        honest: the engine that trains the clients.
        attack: what the hostile ones send.
        bits: by client.
        context: where attackers that train find images.
    """

    honest: Engine
    attack: Attack
    bits: Mapping[str, int]
    context: Simulation | None = None

    def train_clients(self, payloads: Mapping[str, bytes], job: Job) -> tuple[Replies, dict[str, str]]:
        """See :class:`fedqssl.engines.engine.Engine`. Training for a client's own evaluation is nobody's upload."""
        replies, failed = self.honest.train_clients(payloads, job)
        if job.return_model:
            return replies, failed
        hostile = [n for n in malicious_clients(self.bits) if n in replies]
        uploads = {n: upload for n, (upload, _) in replies.items()}
        for name in hostile:
            draws = generator(job.task.seed, "attack", name, job.round_number)
            upload = hostile_upload(
                self.attack, name, payloads, uploads, self.bits, hostile, job.task, draws, self._own(name)
            )
            metrics = replies[name][1]
            claimed = metrics.samples if self.attack.samples is None else self.attack.samples
            replies[name] = upload, replace(metrics, samples=claimed)
        return replies, failed

    def _own(self, name: str) -> Own | None:
        if self.context is None or self.attack.name != BACKDOOR:
            return None
        return Own(self.context.task, self.context.client(name).images, reference_images(self.context))


def _attacked(attack: Attack, pool: Pool[Simulation]) -> AbstractContextManager[Engine]:
    algorithm = pool.shared.algorithm
    if algorithm.check is not check_model:
        raise ValueError(f"{algorithm.name}'s clients send no models; attacks are written for models")
    return nullcontext(AttackedEngine(InProcess(pool), attack, pool.shared.bits, pool.shared))


@dataclass(frozen=True)
class AttackedCell(Cell):
    """A cell whose engine is one of these: a worker process that reads one imports this module.

    ``backdoor.json`` says how often the trigger of the backdoor works in the end; where nobody planted it, how often by chance.
    """

    def ended(self, out: Path) -> None:
        """Try the trigger on the run's last model, where the attack is the backdoor or none."""
        path = self.folder(out) / BACKDOOR_FILE
        if path.is_file() or self.config.engine not in (f"{PREFIX}{BACKDOOR}", f"{PREFIX}none"):
            return
        last = RunFolder.open(self.folder(out)).latest()
        if last is not None and last.aggregated is not None:
            rate = success(build_simulation(self.config), last.aggregated)
            path.write_text(json.dumps({"success": rate}) + "\n", encoding="utf-8")


def _register() -> None:
    for attack in ATTACKS.values():
        ENGINES[f"{PREFIX}{attack.name}"] = lambda pool, attack=attack: _attacked(attack, pool)  # type: ignore[misc]


_register()

__all__ = ["BACKDOOR", "BACKDOOR_FILE", "PREFIX", "AttackedCell", "AttackedEngine"]
