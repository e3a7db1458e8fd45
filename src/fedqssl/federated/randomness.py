"""Explicit randomness: every generator derives from (seed, purpose, client, round), so that no engine can change it."""

from __future__ import annotations

import hashlib

import torch


def derived_seed(seed: int, *purpose: object) -> int:
    """A 63-bit seed for this purpose, independent of all others."""
    text = "\x1f".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, *purpose: object) -> torch.Generator:
    """A CPU generator for this purpose."""
    return torch.Generator().manual_seed(derived_seed(seed, *purpose))
