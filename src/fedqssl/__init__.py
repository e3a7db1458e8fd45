"""fedqssl: federated self-supervised pre-training in each device's own bits.

>>> run = fedqssl.run("smoke", say=lambda line: None)
>>> run.clients["client-00"].export("client-00.fqssl").exists()
True

The packages form layers, and imports only go down: see ``docs/architecture.md``. ``fedqssl.quant`` and ``fedqssl.lowbit`` are
useful on their own. Nothing heavy is imported before it is used.
"""

__version__ = "0.1.0"

from fedqssl.api.functions import compare, export, load, predict, probe, report, resume, run, sweep
from fedqssl.api.planning import plan
from fedqssl.api.run import Run

__all__ = ["Run", "compare", "export", "load", "plan", "predict", "probe", "report", "resume", "run", "sweep"]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
