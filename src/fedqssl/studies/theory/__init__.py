"""The paper's analysis (Sec. 4, App. A) as runnable checks, in float64; imports nothing above ``fedqssl.evaluation``.

Start with ``checks``, which runs them; ``lemma1``, ``theorem1`` and ``theorem2`` are one check each.

>>> import torch
>>> from fedqssl.studies.theory.model import optimum
>>> from fedqssl.studies.theory.representability import representability
>>> w = optimum(torch.diag(torch.tensor([4.0, 1.0, 0.5], dtype=torch.float64)), m=2)
>>> representability(w).round().tolist()
[1.0, 1.0, 0.0]
"""

from fedqssl.studies.theory.checks import CHECKS, claim_folder, run_checks, write
from fedqssl.studies.theory.settings import Settings

__all__ = ["CHECKS", "Settings", "claim_folder", "run_checks", "write"]
