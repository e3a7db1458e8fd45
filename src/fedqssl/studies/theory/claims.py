"""A claim: the statement, the measurement, and whether it holds."""

from __future__ import annotations

Claim = dict[str, object]


def claim(statement: str, measured: str, holds: bool) -> Claim:
    """One entry of a part's ``claims`` in ``theory.json``."""
    return {"statement": statement, "measured": measured, "holds": bool(holds)}
