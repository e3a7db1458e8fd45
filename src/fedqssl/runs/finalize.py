"""The end of a run: accuracies, every client's own model, plots, ``summary.md`` and ``result.json``."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from fedqssl.evaluation.controls import WORDS
from fedqssl.federated.context import Context
from fedqssl.federated.optimizers.clusters import clusters_of, models_of
from fedqssl.federated.protocol import protocol
from fedqssl.runs.checksums import write_sums
from fedqssl.runs.controls import run_controls, steps_taken
from fedqssl.runs.equipment import Equipment
from fedqssl.runs.evaluate import NO_LABELS, evaluate, evaluated, unmeasured
from fedqssl.runs.folder import Checkpoint, RunFolder, write_atomically
from fedqssl.runs.plots import draw
from fedqssl.runs.result import MANY, ClientResult, RunResult, percent
from fedqssl.runs.round import learning_rate
from fedqssl.runs.shared_models import FEW
from fedqssl.units import bytes_text

FLEET = "fleet"
"""What the setting ``data`` says in a run of a fleet."""


def finalize(context: Context, checkpoint: Checkpoint, equipment: Equipment) -> RunResult:
    """Evaluate, hand every client its model, write the result."""
    config, folder, progress = context.config, equipment.folder, equipment.progress
    accuracies, rounds = equipment.accuracies, checkpoint.rounds_done
    why = unmeasured(context)
    sample = evaluated(context)
    few = f"evaluating {len(sample):,} of {len(context.bits):,} clients, drawn by the seed (evaluation.clients)"
    progress.say(why or ("evaluating" if len(sample) == len(context.bits) else few))
    own = {name: checkpoint.payloads[name] for name in sample}
    if context.task.supervised:  # section 8: the client's own model after local training
        rate = learning_rate(config, rounds - 1)
        replies, failed = equipment.engine.train_clients(own, context.job(rounds, rate, return_model=True))
        for name, reason in sorted(failed.items()):
            progress.say(f"warning: {name} was not trained on its own images after the last round: {reason}")
        own = {**own, **{name: payload for name, (payload, _) in replies.items()}}
    handed_out = {name: checkpoint.payloads[name] for name in sample}
    clustered = {f"cluster {c}": model for c, model in models_of(checkpoint.server_state).items()}
    models = clustered or handed_out if checkpoint.aggregated is None else {"": checkpoint.aggregated}
    total, local = evaluate(context, equipment.pool, models, own if accuracies is None else {})
    if accuracies is not None:
        local = accuracies(context, own)
    controls, own_controls = run_controls(context, equipment.pool)
    homes = _hand_out(context, folder, checkpoint)
    of = clusters_of(checkpoint.server_state)
    clients = {
        name: _client_result(context, checkpoint, name, local.get(name), own_controls.get(name), of.get(name))
        for name in homes
    }
    known = [c.local_accuracy for c in clients.values() if c.local_accuracy is not None]
    result = RunResult(
        folder=folder.path,
        algorithm=config.algorithm,
        dataset=config.data,
        seed=config.seed,
        rounds=rounds,
        global_accuracy=total,
        local_accuracy=sum(known) / len(known) if known else None,
        clients=clients,
        bytes_up=sum(c.bytes_up for c in clients.values()),
        bytes_down=sum(c.bytes_down for c in clients.values()),
        client_seconds=checkpoint.totals.client_seconds,
        server_seconds=checkpoint.totals.server_seconds,
        peak_memory_bytes=equipment.pool.peak_memory(),
        protocol=protocol(config) + ("" if rounds == config.rounds else f"-stopped-{rounds}"),
        controls=controls,
        steps=steps_taken(context, rounds),
        knn_gain=_knn_gain(folder),
    )
    figures = draw(context, folder)
    if not figures:
        progress.say("no plots; for curves.png and partition.png install matplotlib: pip install 'fedqssl[plots]'")
    folder.write("summary.md", summary(result, figures, why))
    _write_result(folder, checkpoint, result)
    return result


def _write_result(folder: RunFolder, checkpoint: Checkpoint, result: RunResult) -> None:
    """Digests of the final files first: what has a ``result.json`` is finished."""
    text = result.to_json()
    contents = {f"clients/{name}/model.fqssl": checkpoint.payloads[name] for name in result.clients}
    if folder.metrics.exists():
        contents[folder.metrics.name] = folder.metrics.read_bytes()
    write_sums(folder.path, {**contents, "result.json": text.encode()})
    folder.write("result.json", text)


def _knn_gain(folder: RunFolder) -> float | None:
    known = [(line.get("knn"), line.get("untrained_knn")) for line in folder.lines()]
    gains = [knn - untrained for knn, untrained in known if knn is not None and untrained is not None]
    return gains[-1] if gains else None


def _hand_out(context: Context, folder: RunFolder, checkpoint: Checkpoint) -> list[str]:
    """Write every client's model to ``clients/<name>/model.fqssl``; this is the last model that the client receives.

    In large fleets equal models are one file on disk with a name in every client's folder.
    """
    names, written = sorted(context.bits), dict[bytes, Path]()
    for name in names:
        home, payload = folder.path / "clients" / name, checkpoint.payloads[name]
        home.mkdir(parents=True, exist_ok=True)
        path = home / "model.fqssl"
        if len(names) > FEW and payload in written and _linked(written[payload], path):
            continue
        write_atomically(path, payload)
        written[payload] = path
    return names


def _linked(source: Path, path: Path) -> bool:
    """Whether a file got a second name; not on file systems without links or with few of them."""
    try:
        path.unlink(missing_ok=True)
        os.link(source, path)
    except OSError:
        return False
    return True


def _client_result(
    context: Context,
    checkpoint: Checkpoint,
    name: str,
    accuracy: float | None,
    controls: Mapping[str, float] | None,
    cluster: int | None,
) -> ClientResult:
    totals = checkpoint.totals
    up, received = totals.up.get(name, 0), totals.down.get(name, 0)
    received += len(checkpoint.payloads[name]) if context.algorithm.federates else 0
    return ClientResult(context.bits[name], context.sizes[name], accuracy, up, received, controls, cluster)


def summary(result: RunResult, figures: list[str], unmeasured: str | None = None) -> str:
    """``summary.md``; ``unmeasured`` says why there are no accuracies."""
    lines = [f"# {result.headline()}", ""]
    lines += [line for line in (result.verdict(), "") if result.controls is not None]
    lines += [f"{unmeasured[0].upper()}{unmeasured[1:]}.", ""] if unmeasured else []
    lines += _rows(result)
    if len(result.clients) <= MANY:
        lines += [line for c, names in result.clusters().items() for line in ("", f"Cluster {c}: {', '.join(names)}.")]
    if result.controls is not None:
        own = {name: percent(found) for name, found in result.local_controls().items()}
        lines += ["", "| control | of the global accuracy | of the mean local accuracy |", "|---|---|---|"]
        lines += [f"| {WORDS[n]} | {percent(found)} | {own.get(n, '-')} |" for n, found in result.controls.items()]
    lines += ["", *_explained(result), "", *(f"![{name}]({name})" for name in figures), ""]
    return "\n".join([*lines, *_next_commands(result, labeled=unmeasured != NO_LABELS)]) + "\n"


def _rows(result: RunResult) -> list[str]:
    """A row per client; in large fleets one per bitwidth."""
    if len(result.clients) > MANY:
        head, rows = result.distributions()
        note = f"{len(result.clients):,} clients; `fedqssl report {result.folder} --client NAME` shows one of them."
        return [note, "", f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(r)} |" for r in rows)]
    lines = ["| client | bits | images | local accuracy | untrained | best control | sent | received |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for name, c in result.clients.items():
        cells = name, c.bits, c.samples, percent(c.local_accuracy), c.untrained(), c.control()
        lines.append(f"| {' | '.join(map(str, (*cells, bytes_text(c.bytes_up), bytes_text(c.bytes_down))))} |")
    return lines


def _explained(result: RunResult) -> list[str]:
    """A sentence for each number."""
    total = f"{bytes_text(result.bytes_up)} ({result.bytes_up:,} bytes) sent by clients"
    down = f"{bytes_text(result.bytes_down)} ({result.bytes_down:,} bytes) received"
    return [
        "- **Global accuracy**: a linear classifier on the server's model in full precision, tested on the test images.",
        "- **Local accuracy**: each client's own classifier, in its own bits, on its own held-out images.",
        "- **Untrained**, **best control**: what random weights, or the best method without pre-training, reach there.",
        f"- **Sent** and **received**: the models of all rounds; {total}, {down}.",
        f"- **Protocol**: `{result.protocol}` stands for settings and images; runs that have it in common can be compared. "
        f"The seed was {result.seed}.",
    ]


def _next_commands(result: RunResult, labeled: bool) -> list[str]:
    folder, client = shlex.quote(str(result.folder)), next(iter(result.clients), "NAME")
    if result.dataset == FLEET:
        own = f"clients/{client}/state/device.fqssl"
        return [
            "## Next",
            "",
            f"Clients whose photos have labels keep a classifier beside them: `{own}` in the fleet folder on their machine.",
            "",
            "```",
            f"fedqssl report {folder}",
            f"fedqssl predict {own} IMAGES_OR_FOLDER",
            f"fedqssl serve {own}",
            "```",
        ]
    labels = "" if labeled else " --data folder:LABELED_PHOTOS"
    return [
        "## Next",
        "",
        "```",
        f"fedqssl probe {folder} --client {client}{labels}",
        f"fedqssl export {folder} --client {client}{labels} --out {client}.fqssl",
        f"fedqssl predict {client}.fqssl IMAGES_OR_FOLDER",
        "```",
    ]
