"""Explicit randomness: one generator per (seed, purpose)."""

from __future__ import annotations

import hashlib

import torch


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A generator that depends on the seed and on every word of its purpose, and on nothing else."""
    text = "/".join(map(str, ("theory", seed, *purpose)))
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big"))
