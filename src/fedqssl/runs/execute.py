"""Start, continue and finish a run: Algorithm 1's loop over rounds, with a checkpoint after each."""

from __future__ import annotations

import json
import math
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fedqssl import __version__
from fedqssl.config import RunConfig, load_config, protocol, to_toml
from fedqssl.engines.context import Context, build_context
from fedqssl.engines.in_process import InProcess
from fedqssl.federated.algorithms import ALGORITHMS, Algorithm, Round
from fedqssl.federated.randomness import generator
from fedqssl.federated.state import write_state
from fedqssl.lowbit import to_bytes
from fedqssl.quant import kernels
from fedqssl.runs.evaluate import client_accuracies, global_accuracy, knn_monitor
from fedqssl.runs.folder import Checkpoint, RunError, RunFolder
from fedqssl.runs.plots import draw
from fedqssl.runs.result import ClientResult, RunResult

Say = Callable[[str], None]


def start(config: RunConfig, out: Path, *, overwrite: bool = False, say: Say = print) -> RunResult:
    """Run a configuration in a new folder."""
    _check(config)
    context = build_context(config)
    folder = RunFolder.create(out, overwrite)
    folder.write("environment.json", json.dumps(_environment(), indent=1) + "\n")
    folder.write("partition.json", json.dumps(context.partition.to_json()) + "\n")
    folder.write("config.toml", to_toml(config))  # last: what has a config.toml can be resumed
    return _continue(context, folder, say)


def resume(folder: Path, *, say: Say = print) -> RunResult:
    """Go on with a run where its last checkpoint stands; a finished run is only read."""
    found = RunFolder.open(folder)
    if (folder / "result.json").exists():
        say(f"{folder} is finished")
        return RunResult.read(folder)
    config = load_config(folder / "config.toml")
    context = build_context(config)
    stored = json.loads((folder / "partition.json").read_text())
    if stored != json.loads(json.dumps(context.partition.to_json())):
        raise RunError(f"the data behind {folder} have changed: they no longer give its partition.json")
    return _continue(context, found, say)


def _check(config: RunConfig) -> None:
    if config.algorithm not in ALGORITHMS:
        raise RunError(f"unknown algorithm {config.algorithm!r}; choose one of {', '.join(ALGORITHMS)}")
    if config.engine != "in_process":
        raise RunError(f"unknown engine {config.engine!r}; this version has in_process")


def _environment() -> dict[str, object]:
    return {
        "fedqssl": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "kernels": kernels.describe(),
    }


def learning_rate(config: RunConfig, round_number: int) -> float:
    """The clients' learning rate in a round: constant, half a cosine, or x0.3 at 30, 60 and 90% of the rounds."""
    done = round_number / config.rounds
    if config.lr_schedule == "cosine":
        return config.lr * 0.5 * (1 + math.cos(math.pi * done))
    if config.lr_schedule == "step":
        return config.lr * 0.3 ** sum(done >= mark for mark in (0.3, 0.6, 0.9))
    return config.lr


def sampled(context: Context, round_number: int) -> list[str]:
    """Names of the clients that take part in a round: a fraction of all, at least ``min_clients``."""
    names = sorted(context.bits)
    wanted = max(math.ceil(context.config.fraction * len(names)), min(context.config.min_clients, len(names)))
    order = torch.randperm(len(names), generator=generator(context.config.seed, "sampling", round_number))
    return sorted(names[i] for i in order[:wanted].tolist())


def _initial(context: Context) -> Checkpoint:
    """One float initialisation, quantized to each bitwidth."""
    payloads = {b: to_bytes(context.task.converted(b)) for b in sorted(set(context.bits.values()))}
    totals: dict[str, object] = {"up": {}, "down": {}, "client_seconds": 0.0, "server_seconds": 0.0}
    return Checkpoint(0, payloads, to_bytes(context.task.converted(32)), totals)


def _continue(context: Context, folder: RunFolder, say: Say) -> RunResult:
    config, algorithm = context.config, ALGORITHMS[context.config.algorithm]
    checkpoint = folder.latest() or _initial(context)
    folder.cut_metrics(checkpoint.rounds_done)
    if checkpoint.rounds_done:
        say(f"going on after round {checkpoint.rounds_done} of {config.rounds}")
    began, first = time.monotonic(), checkpoint.rounds_done
    with InProcess(context) as engine:
        for round_number in range(first, config.rounds):
            checkpoint, line = _round(context, engine, algorithm, checkpoint, round_number)
            folder.append_metrics(line)
            folder.save(checkpoint)
            passed = time.monotonic() - began
            left = passed / (round_number + 1 - first) * (config.rounds - round_number - 1)
            say(_progress(line, config.rounds, left))
    return _finish(context, folder, checkpoint, say)


def _progress(line: dict[str, object], rounds: int, left: float) -> str:
    knn = f"  kNN {100 * float(line['knn']):.1f}%" if isinstance(line["knn"], float) else ""
    traffic = (int(line["bytes_up"]) + int(line["bytes_down"])) / 2**20  # type: ignore[call-overload]
    return f"round {line['round']}/{rounds}  loss {line['loss']:.3f}{knn}  {traffic:.1f} MiB  {left:.0f} s left"


def _round(
    context: Context, engine: InProcess, algorithm: Algorithm, before: Checkpoint, round_number: int
) -> tuple[Checkpoint, dict[str, object]]:
    """One round of Algorithm 1: clients, then server; and its line in ``metrics.jsonl``."""
    config = context.config
    names = sampled(context, round_number)
    lr = learning_rate(config, round_number)
    sent = {n: before.payloads[context.bits[n]] for n in names}
    replies = engine.train(sent, round_number, lr)
    server_began = time.monotonic()
    server_lr = lr if config.server.lr is None else config.server.lr
    engine.server_round(round_number, server_lr)
    received = {n: payload for n, (payload, _) in replies.items()}
    samples = {n: metrics.samples for n, (_, metrics) in replies.items()}
    after = algorithm.server(received, context.bits, samples, engine, config.aggregation.temperature)
    aggregated = context.task.converted(32)
    write_state(aggregated, after.state)
    server_seconds = time.monotonic() - server_began
    client_seconds = sum(m.seconds for _, m in replies.values())
    totals = _totals(before.totals, sent, received, client_seconds, server_seconds)
    checkpoint = Checkpoint(round_number + 1, after.payloads, to_bytes(aggregated), totals)
    every = config.evaluation.knn_every
    knn = knn_monitor(context, aggregated) if every and (round_number + 1) % every == 0 else None
    losses = [m.losses[-1] for _, m in replies.values() if m.losses]
    line = _metrics_line(round_number, lr, after, sum(losses) / max(len(losses), 1), knn)
    line |= {"client_loss": {n: list(m.losses) for n, (_, m) in replies.items()}}
    line |= {"bytes_up": sum(map(len, received.values())), "bytes_down": sum(map(len, sent.values()))}
    line |= {"client_seconds": client_seconds, "server_seconds": server_seconds}
    return checkpoint, line


def _metrics_line(round_number: int, lr: float, after: Round, loss: float, knn: float | None) -> dict[str, object]:
    return {
        "round": round_number + 1,
        "lr": lr,
        "loss": loss,
        "dequantize_loss": after.losses,
        "weights": after.weights,
        "knn": knn,
    }


def _totals(
    before: dict[str, object],
    sent: dict[str, bytes],
    received: dict[str, bytes],
    client_seconds: float,
    server_seconds: float,
) -> dict[str, object]:
    """Running totals: bytes by client are the lengths of the buffers."""
    up, down = dict(before["up"]), dict(before["down"])  # type: ignore[call-overload]
    for name in sent:
        down[name] = down.get(name, 0) + len(sent[name])
    for name in received:
        up[name] = up.get(name, 0) + len(received[name])
    return {
        "up": up,
        "down": down,
        "client_seconds": float(before["client_seconds"]) + client_seconds,  # type: ignore[arg-type]
        "server_seconds": float(before["server_seconds"]) + server_seconds,  # type: ignore[arg-type]
    }


def _finish(context: Context, folder: RunFolder, checkpoint: Checkpoint, say: Say) -> RunResult:
    """Evaluate, hand every client its model, write the result."""
    config = context.config
    say("evaluating")
    total = global_accuracy(context, checkpoint.aggregated)
    local = client_accuracies(context, checkpoint.payloads)
    up: dict[str, int] = checkpoint.totals["up"]  # type: ignore[assignment]
    down: dict[str, int] = checkpoint.totals["down"]  # type: ignore[assignment]
    clients = {}
    for name in sorted(context.bits):
        home = folder.path / "clients" / name
        home.mkdir(parents=True, exist_ok=True)
        payload = checkpoint.payloads[context.bits[name]]
        (home / "model.fqssl").write_bytes(payload)
        images = len(context.partition.clients[name].train)
        received = down.get(name, 0) + len(payload)  # the last model is handed out too
        clients[name] = ClientResult(context.bits[name], images, local.get(name), up.get(name, 0), received)
    known = [c.local_accuracy for c in clients.values() if c.local_accuracy is not None]
    result = RunResult(
        folder=folder.path,
        algorithm=config.algorithm,
        dataset=config.data,
        seed=config.seed,
        rounds=config.rounds,
        global_accuracy=total,
        local_accuracy=sum(known) / len(known) if known else None,
        clients=clients,
        bytes_up=sum(c.bytes_up for c in clients.values()),
        bytes_down=sum(c.bytes_down for c in clients.values()),
        client_seconds=float(checkpoint.totals["client_seconds"]),  # type: ignore[arg-type]
        server_seconds=float(checkpoint.totals["server_seconds"]),  # type: ignore[arg-type]
        peak_memory_bytes=_peak_memory(),
        protocol=protocol(config),
    )
    figures = draw(context, folder)
    if not figures:
        say("no plots: install matplotlib (pip install 'fedqssl[plots]') to get curves.png and partition.png")
    folder.write("summary.md", summary(result, figures))
    folder.write("result.json", result.to_json())
    return result


def _peak_memory() -> int:
    """Largest resident size of this process or of one of its workers."""
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return 1024 * max(resource.getrusage(kind).ru_maxrss for kind in kinds)


def summary(result: RunResult, figures: list[str]) -> str:
    """``summary.md``."""
    lines = [f"# {result.headline()}", "", f"Protocol `{result.protocol}`, seed {result.seed}.", ""]
    lines += ["| client | bits | images | local accuracy | bytes up | bytes down |", "|---|---|---|---|---|---|"]
    for name, c in result.clients.items():
        accuracy = "no labels" if c.local_accuracy is None else f"{100 * c.local_accuracy:.1f}%"
        lines.append(f"| {name} | {c.bits} | {c.samples} | {accuracy} | {c.bytes_up} | {c.bytes_down} |")
    lines += ["", f"Bytes up {result.bytes_up}, down {result.bytes_down}.", ""]
    lines += [f"![{name}]({name})" for name in figures] + [""]
    return "\n".join(lines)
