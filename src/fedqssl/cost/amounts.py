"""What is counted: bit operations and bytes of memory, as values that add up."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class BitOperations:
    """Bit operations: a multiply-accumulate of M-bit by K-bit numbers costs M * K (Sec. 1.1), 32 * 32 in floats.

    Args:
        forward: of the layers' products ``y = x w``.
        backward: of ``dL/dw = g x`` and ``dL/dx = g w``.
        objective: of the loss's own matrix products, forward and backward, which run in floats at every precision.
    """

    forward: int = 0
    backward: int = 0
    objective: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.forward + self.backward + self.objective

    def __add__(self, other: BitOperations) -> BitOperations:
        return BitOperations(
            self.forward + other.forward, self.backward + other.backward, self.objective + other.objective
        )

    def __mul__(self, times: int) -> BitOperations:
        return BitOperations(self.forward * times, self.backward * times, self.objective * times)


@dataclass(frozen=True)
class Memory:
    """Bytes that a client holds in a training step.

    Args:
        weights: packed codes, scales, batch norm, biases, statistics.
        activations: kept for the backward pass, the objective's own tensors included.
        gradients: of all weights, between backward pass and update: packed codes, centres, floats.
        optimizer: what the update rule keeps between steps.
        workspace: float views of the layer at work, in this implementation (an estimate; not part of ``total``).
    """

    weights: int
    activations: int
    gradients: int
    optimizer: int
    workspace: int = 0

    @property
    def total(self) -> int:
        """Everything that a step holds in the client's bits; the paper's memory consumption."""
        return self.weights + self.activations + self.gradients + self.optimizer

    @property
    def peak(self) -> int:
        """``total`` and the workspace: what a device needs with this implementation."""
        return self.total + self.workspace

    def parts(self) -> dict[str, int]:
        """Bytes by name, without the workspace."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "workspace"}


__all__ = ["BitOperations", "Memory"]
