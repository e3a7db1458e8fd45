"""What Flower's simulation on Ray adds to a round: the same clients are trained in process and through Ray, alternating."""

from __future__ import annotations

import time
from statistics import median_high

from fedqssl.config import RunConfig
from fedqssl.engines.in_process import InProcess
from fedqssl.engines.pool import Pool
from fedqssl.federated.context import build_simulation
from fedqssl.runs.lifecycle import ENGINES
from fedqssl.runs.round import first_checkpoint, learning_rate
from fedqssl.studies.bench.records import Record, settings_of, value_rows


def run(config: RunConfig, repeats: int = 7) -> Record:
    """Wall seconds of a round's client phase on both engines after one warm-up round, and of starting the simulation."""
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
    pairs = [b - a for a, b in list(zip(*seconds.values(), strict=True))[1:]]
    found = {f"round's client phase, {name} (s, median)": median_high(each[1:]) for name, each in seconds.items()}
    found["difference of neighbours (s, median)"] = median_high(pairs)
    found["largest difference (s)"] = max(pairs)
    found["start of the simulation (s)"] = started
    settings = settings_of(config, "clients", "workers", "model", "width", "images", "data")
    settings = {"repeats": repeats, **settings, "images": config.images or 0}
    return Record("flower", value_rows(found), settings=settings)
