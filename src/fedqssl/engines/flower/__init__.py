"""Flower carries the same bytes: a ServerApp's and a ClientApp's side of it, and its simulation on Ray as an engine.

Nothing here knows an algorithm. ``wire`` says what is in a message, ``exchange`` sends and waits, ``client`` is the ClientApp,
``engine`` makes an engine of an exchange, ``simulation`` runs all of it on Ray. Real machines: :mod:`fedqssl.deploy`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from fedqssl.data.pixels import MissingExtraError

if TYPE_CHECKING:
    from fedqssl.engines.context import Context
    from fedqssl.engines.engine import Engine
    from fedqssl.engines.server_side import Tick


def check_flower() -> None:
    """One line that names the extra, if it is not installed."""
    try:
        import flwr  # noqa: F401
        import ray  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"this needs {error.name}: pip install 'fedqssl[flower]'") from error


def flower_simulation(context: Context, tick: Tick) -> AbstractContextManager[Engine]:
    """The engine ``flower-sim``."""
    check_flower()
    from fedqssl.engines.flower.simulation import FlowerSimulation

    return FlowerSimulation(context, tick)


__all__ = ["check_flower", "flower_simulation"]
