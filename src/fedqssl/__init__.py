"""fedqssl: federated self-supervised pre-training in each device's own bits.

The layers, from the bottom (imports only go down): ``quant`` (what an s-bit number is),
``lowbit`` (layers, optimiser, conversion), ``ssl``/``models``/``data``, ``evaluation``, ``bench``, ``cli``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fedqssl.device import DeviceModel
    from fedqssl.runs import RunResult


def run(
    source: str = "quickstart",
    *,
    out: str | Path,
    overwrite: bool = False,
    say: Callable[[str], None] = print,
    **settings: Any,
) -> RunResult:
    """Run a preset or a TOML file, with settings changed by keyword: ``fedqssl.run("quickstart", bits=[4, 8], out="runs/a")``.

    Dotted keys go in a dictionary: ``run("smoke", out=..., **{"ssl.temperature": 0.2})``.
    """
    from pathlib import Path

    from fedqssl.config import load_config
    from fedqssl.runs import start

    return start(load_config(source, settings), Path(out), overwrite=overwrite, say=say)


def resume(folder: str | Path, *, say: Callable[[str], None] = print) -> RunResult:
    """Go on with a run that was interrupted, to the bytes that it would have had; a finished one is only read."""
    from pathlib import Path

    from fedqssl.runs import resume as go_on

    return go_on(Path(folder), say=say)


def load(path: str | Path, *, trust: bool = False) -> DeviceModel:
    """Load a device file that ``fedqssl export`` wrote: ``fedqssl.load("phone.fqssl").predict("photos/", top=3)``.

    A backbone of your own (``package.module:Class``) is imported only with ``trust=True``.
    """
    from fedqssl.device import load as load_device

    return load_device(path, trust=trust)
