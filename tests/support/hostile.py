"""Uploads that pass the checks of the wire and say what no training can have given: ``(upload, draws) -> upload``."""

import random

import torch

from forging import with_tensors

EXTREMES = (0.0, -0.0, 1e-45, 1e-30, 1e-6, 0.5, 1.0, 7.0, 99.0, 1e3, 1e4, 65504.0, 1e6, 1e12, 1e18, 1e30, 3e38)


def named(ending: str, value: float):
    """All values of the tensors whose names end so."""

    def change(tensors):
        found = [name for name in tensors if name.endswith(ending) and tensors[name].is_floating_point()]
        assert found or ending == ".scale"  # full precision has none
        for name in found:
            tensors[name] = torch.full_like(tensors[name], value, dtype=torch.float32)

    return lambda upload: with_tensors(upload, change)


def gains(value: float):
    """Batch-norm gains: vectors whose names end in ``weight``."""

    def change(tensors):
        for name, x in tensors.items():
            if name.endswith(".weight") and x.dim() == 1:
                tensors[name] = torch.full_like(x, value, dtype=torch.float32)

    return lambda upload: with_tensors(upload, change)


def constant_weights(upload: bytes) -> bytes:
    """All codes the same, or all weights of a full-precision model."""

    def change(tensors):
        for name, x in tensors.items():
            if name.endswith(".codes"):
                tensors[name] = torch.full_like(x, 255)
            elif x.dim() > 1:
                tensors[name] = torch.full_like(x, 0.1)

    return with_tensors(upload, change)


def several(*changes):
    def changed(upload: bytes) -> bytes:
        for change in changes:
            upload = change(upload)
        return upload

    return changed


HOSTILE = {
    "negative variances": named(".running_var", -1000.0),
    "slightly negative variances": named(".running_var", -1.0),
    "huge variances": named(".running_var", 1e30),
    "huge means": named(".running_mean", 1e30),
    "huge gains": gains(1e30),
    "no gains": gains(0.0),
    "huge biases": named(".bias", -1e30),
    "constant weights": constant_weights,
    "no scales": named(".scale", 0.0),
    "NaN from infinities": several(gains(3e38), named(".running_var", 3e38), named(".running_mean", -3e38)),
}


def random_upload(upload: bytes, seed: int) -> bytes:
    """Some tensors with extreme values, all entries or a few of them, of either sign; codes of random bytes."""
    draws, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    share = draws.choice((0.05, 0.3, 1.0))

    def change(tensors):
        for name in sorted(tensors):
            if draws.random() > share:
                continue
            x = tensors[name]
            if x.dtype == torch.uint8:
                byte = draws.choice((None, 0, 85, 255))
                new = torch.randint(256, x.shape, generator=noise) if byte is None else torch.full(x.shape, byte)
                tensors[name] = new.to(torch.uint8)
            else:
                value = draws.choice(EXTREMES) * (1 if name.endswith(".scale") else draws.choice((1, -1)))
                new = x.float().clone()
                every = draws.random() < 0.5
                new.view(-1)[0 if not every else slice(None)] = value
                tensors[name] = new.clamp(max=1 - 2.0**-20) if name.endswith(".scale") else new

    return with_tensors(upload, change)
