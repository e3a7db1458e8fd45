"""fedqssl: federated self-supervised pre-training in each device's own bits.

Start with :func:`run`, :func:`resume` and :func:`load`. The packages form layers, and imports only go down: see
``docs/architecture.md``. ``fedqssl.quant`` and ``fedqssl.lowbit`` are useful on their own.
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
    """Run a preset or a TOML file: ``fedqssl.run("quickstart", bits=[4, 8], out="runs/a")``.

    Args:
        source: name of a preset (``fedqssl list presets``), or the path of a TOML file.
        out: the run's folder; a new one, unless ``overwrite`` is set.
        overwrite: replace the run in ``out``, if there is one.
        say: receives the lines of progress.
        settings: change settings by keyword; dotted keys go in a dictionary, as in ``**{"ssl.temperature": 0.2}``.
    """
    from pathlib import Path

    from fedqssl.config import load_config
    from fedqssl.runs import start

    return start(load_config(source, settings), Path(out), overwrite=overwrite, say=say)


def resume(folder: str | Path, *, exact: bool = False, say: Callable[[str], None] = print) -> RunResult:
    """Resume an interrupted run, bit for bit; the result of a finished run is only read.

    Args:
        folder: the run's folder, as given to ``out``.
        exact: other kernels, threads, versions or instructions than the run began with are an error, not a warning.
        say: receives the lines of progress.
    """
    from pathlib import Path

    from fedqssl.runs import resume as resume_run

    return resume_run(Path(folder), exact=exact, say=say)


def load(path: str | Path, *, trust: bool = False) -> DeviceModel:
    """Load a device file written by ``fedqssl export``: ``fedqssl.load("phone.fqssl").predict("photos/", top=3)``.

    Args:
        path: the ``.fqssl`` file.
        trust: allow importing the backbone that the file names as ``package.module:Class``, which runs its code.
    """
    from fedqssl.device import load as load_device

    return load_device(path, trust=trust)
