"""The paper's numbers, verbatim (Sec. 5, Tables 1 to 3), and what it says about its figures (which are not in its source)."""

from __future__ import annotations

from collections.abc import Mapping

Accuracies = Mapping[tuple[str, str], tuple[float, float]]
"""(algorithm, precision) -> (global, local) accuracy in percent."""

_FULL_CIFAR10: Accuracies = {
    ("fed_simclr", "full"): (40.76, 80.56),
    ("fed_qssl", "full"): (72.26, 90.01),
}

TABLE1: Accuracies = {
    ("fed_avg", "config1"): (17.70, 64.98),
    ("fed_prox", "config1"): (14.51, 68.46),
    ("fed_paq", "config1"): (16.68, 62.96),
    ("fed_simclr", "config1"): (39.09, 77.30),
    ("fed_simsiam", "config1"): (36.73, 76.87),
    ("fed_qssl", "config1"): (59.31, 82.50),
    **_FULL_CIFAR10,
}
"""CIFAR-10; 20% 4-bit, 30% 6-bit, 30% 8-bit and 20% 12-bit clients."""

TABLE2: Accuracies = {
    ("fed_avg", "config2"): (20.77, 66.64),
    ("fed_prox", "config2"): (18.70, 75.60),
    ("fed_paq", "config2"): (18.56, 76.57),
    ("fed_simclr", "config2"): (39.12, 77.43),
    ("fed_simsiam", "config2"): (36.44, 75.21),
    ("fed_qssl", "config2"): (62.26, 83.03),
    **_FULL_CIFAR10,
}
"""CIFAR-10; 50% 6-bit and 50% 12-bit clients."""

TABLE3: Accuracies = {
    ("fed_simclr", "config2"): (14.79, 23.46),
    ("fed_simsiam", "config2"): (12.24, 13.59),
    ("fed_qssl", "config2"): (21.44, 30.91),
    ("fed_simclr", "full"): (15.18, 30.26),
    ("fed_qssl", "full"): (28.75, 43.56),
}
"""CIFAR-100; 50% 6-bit and 50% 12-bit clients."""

SAYS = {
    "figure1": "in both forward and backward pass the computational cost of Fed-QSSL is much smaller than that of the full "
    "precision scheme; in low-bit configurations, the backward propagation is consuming more computation",
    "figure2": "Fed-QSSL achieves significant memory savings while still providing competitive accuracy",
    "figure3": "when increasing beta the global accuracy increases; the local accuracy, however, decreases",
    "figure4": "when a smaller global buffer is used the global accuracy deteriorates while the local accuracy remains mostly "
    "unchanged",
    "figure5": "as more training epochs are used in local training, Fed-QSSL achieves higher accuracy",
    "figure_server": "nothing; it has no such control",
    "figure_temperature": "nothing; its weights are softmax(-loss), a temperature of 1",
}
"""What the text says about each figure (Sec. 5, Computation and Memory Saving; Ablation Study)."""
