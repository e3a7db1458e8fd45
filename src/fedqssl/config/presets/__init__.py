"""Ready-made configurations, one TOML file each; the first line of a file is its description."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Preset:
    """A ready-made configuration."""

    name: str
    description: str
    text: str


def _read(name: str) -> Preset:
    text = (files(__name__) / f"{name}.toml").read_text(encoding="utf-8")
    return Preset(name, text.partition("\n")[0].lstrip("# "), text)


NAMES = ("quickstart", "photos", "smoke", "cifar10-small", "cifar10-medium", "cifar10-paper", "cifar100-paper")
PRESETS: dict[str, Preset] = {name: _read(name) for name in NAMES}

__all__ = ["NAMES", "PRESETS", "Preset"]
