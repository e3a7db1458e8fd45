"""What Flower's simulation on Ray adds to a round: the same clients' training in process and through it, in turns."""

from __future__ import annotations

import time

from fedqssl.config import RunConfig
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.context import build_simulation
from fedqssl.runs.lifecycle import ENGINES
from fedqssl.runs.round import first_checkpoint, learning_rate
from fedqssl.studies.bench.records import Record


def run(config: RunConfig, repeats: int = 7) -> Record:
    """Wall seconds of a round's client phase on both engines after one round of warm-up, and of the simulation's start."""
    context = build_simulation(config)
    payloads, rate = first_checkpoint(context).payloads, learning_rate(config, 0)
    began = time.monotonic()
    pool = Pool(context, min(config.workers, len(context.bits)))
    with pool, ENGINES["flower-sim"](pool) as simulated:
        started = time.monotonic() - began
        engines = {"in process": InProcess(pool), "flower-sim": simulated}
        seconds: dict[str, list[float]] = {name: [] for name in engines}
        for number in range(repeats + 1):
            for name, engine in engines.items():
                began = time.monotonic()
                engine.train_clients(payloads, context.job(number, rate))
                seconds[name].append(time.monotonic() - began)
    pairs = sorted(b - a for a, b in list(zip(*seconds.values(), strict=True))[1:])
    rows: list[dict[str, str | int | float | None]] = [
        {"what": f"round's client phase, {name} (s, median)", "value": _median(found[1:])}
        for name, found in seconds.items()
    ]
    rows.append({"what": "difference of neighbours (s, median)", "value": _median(pairs)})
    rows.append({"what": "largest difference (s)", "value": pairs[-1]})
    rows.append({"what": "start of the simulation (s)", "value": started})
    settings: dict[str, str | int | float] = {"repeats": repeats, "clients": config.clients, "workers": config.workers}
    settings |= {"model": config.model, "width": config.width, "images": config.images or 0, "data": config.data}
    return Record("flower", rows, settings=settings)


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]
