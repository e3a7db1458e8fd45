"""From honest uploads to a hostile one: a container of the client's own bits that passes the checks of the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fedqssl.federated.optimizers.pseudo_gradient import step_from
from fedqssl.federated.server.validate import check_model
from fedqssl.federated.state import State, read_payload
from fedqssl.federated.task import Task
from fedqssl.lowbit import load_bytes, to_bytes
from fedqssl.lowbit.policy import state_of
from fedqssl.quant import compand_pack, compand_scale
from fedqssl.studies.attacks.attacks import Attack, Known, none
from fedqssl.studies.attacks.backdoor import Own

FIFTH = 5


def malicious_clients(bits: Mapping[str, int]) -> tuple[str, ...]:
    """A fifth of the clients, at least one, spread over their bits: of ten, one of the fewest and one of the most."""
    order = sorted(bits, key=lambda name: (bits[name], name))
    count = max(len(order) // FIFTH, 1)
    step = (len(order) - 1) / max(count - 1, 1)
    return tuple(sorted(order[round(i * step)] for i in range(count)))


def hostile_upload(
    attack: Attack,
    name: str,
    sent: Mapping[str, bytes],
    uploads: Mapping[str, bytes],
    bits: Mapping[str, int],
    malicious: Sequence[str],
    task: Task,
    draws: torch.Generator,
    own: Own | None = None,
) -> bytes:
    """What ``name`` sends in place of its honest upload.

    Args:
        attack: the attack.
        name: the attacker.
        sent: what the clients of the round received, by client.
        uploads: what they all would send, honest models, by client.
        bits: by client.
        malicious: who attacks.
        task: what all share.
        draws: the attacker's randomness; codes are rounded stochastically, as by an honest client.
        own: images, for attacks that train.
    """

    def read(payload: bytes, client: str) -> State:
        return read_payload(payload, bits[client], task)

    if attack.model is none:
        return uploads[name]
    honest = {n: step_from(read(sent[n], n), read(uploads[n], n)) for n in sorted(uploads) if n not in malicious}
    known = Known(read(sent[name], name), read(uploads[name], name), honest, len(malicious), draws, own)
    payload = encoded(attack.model(known), uploads[name], bits[name], task, draws)
    check_model(payload, bits[name], task)
    return payload


def encoded(state: State, like: bytes, bits: int, task: Task, draws: torch.Generator) -> bytes:
    """A state as a container of so many bits; codes are rounded stochastically, with the scales of a model that they fit in."""
    model = task.converted(bits)
    load_bytes(model, like)
    for name, entry in state_of(model).items():
        if entry.role not in ("quantized", "averaged") or name not in state:
            continue
        x = state[name].reshape(entry.shape)
        if entry.weight is None:
            entry.assign(x)
        else:
            m = max(compand_scale(x, entry.weight.compander), entry.weight.m)
            packed = compand_pack(x, bits, m, entry.weight.compander, "stochastic", generator=draws)
            entry.weight.store(packed, m)
    return to_bytes(model)


__all__ = ["encoded", "hostile_upload", "malicious_clients"]
