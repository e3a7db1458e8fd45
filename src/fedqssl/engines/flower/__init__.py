"""Flower carries the same bytes: a ServerApp's and a ClientApp's side of it, and its simulation on Ray as an engine.

Nothing here knows algorithms. ``wire`` says what is in a message, ``exchange`` sends and waits, ``patience`` how long, ``client``
is the ClientApp, ``engine`` turns an exchange into an engine, ``simulation`` runs all of it on Ray with ``simulated`` clients.
Real machines: :mod:`fedqssl.deploy`.
"""

from __future__ import annotations

import importlib.util
import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path

from fedqssl.data.pixels import MissingExtraError

LARGEST = 8 << 20
"""Bytes after which a log begins anew."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
"""No telemetry, no update checks, nothing installed at run time; for this process and those that it starts."""


def check_flower() -> None:
    """Raise a one-line error that names the extra if it is not installed; call it before importing Flower."""
    for name in ("flwr", "ray", "cryptography"):
        if importlib.util.find_spec(name) is None:
            raise MissingExtraError(f"this needs {name}: pip install 'fedqssl[flower]'")
    os.environ.update(QUIET)


def hush(log: Path | None = None) -> None:
    """Keep the log output of Flower and Ray off the terminal, or in a file: we print what users should see ourselves."""
    for name in ("flwr", "ray"):
        logging.getLogger(name).setLevel(logging.CRITICAL if log is None else logging.WARNING)
    if log is not None:
        flower = logging.getLogger("flwr")
        flower.handlers[:] = [RotatingFileHandler(log, maxBytes=LARGEST, backupCount=2, delay=True)]
        flower.propagate = False


__all__ = ["check_flower", "hush"]
