"""One thread and passive waiting, so that tests measure code and not the scheduler."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch

torch.set_num_threads(1)
