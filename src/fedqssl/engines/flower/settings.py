"""Flower's environment: no telemetry, no look for updates, nothing installed at run time. Set before flwr is imported."""

from __future__ import annotations

import logging
import os

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}


def quiet(level: int = logging.ERROR) -> None:
    """For this process and those that it starts; ours to say, so whatever was set before is replaced."""
    os.environ.update(QUIET)
    logging.getLogger("flwr").setLevel(level)
