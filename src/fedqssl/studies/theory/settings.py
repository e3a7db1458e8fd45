"""Settings of the checks of the analysis: dimensions, bitwidths, rounds, seeds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from fedqssl.studies.theory.data import Sources

Say = Callable[[str], None]

SLOPE_BITS = range(4, 11)
"""Bitwidths of the slope fits: below, 2^R - 1 is not 2^R; above, errors of steps become too small to see."""


@dataclass(frozen=True)
class Settings:
    """``--dim D --clients N --rank M --bits R.. --rounds T --seeds S``; ``rank`` None is the number of clients."""

    dim: int = 32
    clients: int = 4
    rank: int | None = None
    bits: tuple[int, ...] = tuple(range(2, 13))
    rounds: int = 150
    seeds: int = 4

    def __post_init__(self) -> None:
        Sources(self.dim, self.clients)
        if not 1 <= self.m <= self.dim:
            raise ValueError(f"rank m must lie in 1..{self.dim}, the dimension of the data; not {self.m}")
        wrong = [r for r in self.bits if isinstance(r, bool) or not isinstance(r, int) or not 1 <= r <= 16]
        if wrong or not self.bits:
            raise ValueError(f"bits R must be whole numbers from 1 to 16, not {', '.join(map(str, wrong)) or 'none'}")
        if self.rounds < 10:
            raise ValueError(f"rounds must be at least 10, not {self.rounds}")
        if self.seeds < 2:
            raise ValueError(f"at least 2 seeds are needed for confidence intervals, not {self.seeds}")

    @property
    def m(self) -> int:
        """Rank of w."""
        return self.clients if self.rank is None else self.rank

    @property
    def sources(self) -> Sources:
        """The data construction of these sizes."""
        return Sources(self.dim, self.clients)

    @property
    def slope_bits(self) -> tuple[int, ...]:
        """Bitwidths of the slope fits: those in 4..10, or all if fewer than three are."""
        inside = tuple(r for r in self.bits if r in SLOPE_BITS)
        return inside if len(inside) >= 3 else self.bits

    @property
    def training_bits(self) -> tuple[int, ...]:
        """At most four of the bitwidths, spread over them, for the checks that train."""
        last = len(self.bits) - 1
        return tuple(sorted({self.bits[round(i * last / 3)] for i in range(4)}))

    @property
    def middle_bits(self) -> int:
        """The bitwidth closest to 8, for checks at one bitwidth."""
        return min(self.bits, key=lambda r: abs(r - 8))

    def to_json(self) -> dict[str, object]:
        """For ``theory.json``."""
        s = self.sources
        return {
            **asdict(self),
            **{"rank": self.m, "bits": list(self.bits)},
            "tau": s.tau,
            "mu": s.mu,
            "majority_per_class": s.majority,
            "minority_per_class": s.minority,
            "asymptotic_regime": s.clients <= self.dim**0.05,
        }


def silent(line: str) -> None:
    """Say nothing."""
