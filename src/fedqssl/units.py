"""Human-readable amounts."""

from __future__ import annotations


def _scaled(value: float, step: float, names: tuple[str, ...]) -> str:
    i = 0
    while abs(value) >= step * 0.9995 and i < len(names) - 1:
        value /= step
        i += 1
    digits = 0 if i == 0 or abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{value:.{digits}f} {names[i]}".rstrip()


def bytes_text(count: float) -> str:
    """``1536`` -> ``1.50 KiB``."""
    return _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def operations_text(count: float) -> str:
    """``2.5e12`` -> ``2.50 T``."""
    return _scaled(count, 1000, ("", "k", "M", "G", "T", "P", "E"))


def seconds_text(seconds: float) -> str:
    """``0.02`` -> ``20 ms``; ``75`` -> ``1 min 15 s``; ``90000`` -> ``25.0 h``; ``1e6`` -> ``11.6 days``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.0995 or not seconds else f"{seconds * 1000:.1f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    if seconds < 3599.5:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:,.1f} days"


def joules_text(joules: float) -> str:
    """``0.0025`` -> ``2.50 mJ``."""
    for factor, name in ((1e-6, "uJ"), (1e-3, "mJ")):
        if joules < factor * 999.5:
            return f"{joules / factor:.3g} {name}"
    return f"{_scaled(joules, 1000, ('', 'k', 'M', 'G'))}J" if joules >= 999.5 else f"{joules:.3g} J"


def counted(number: int, thing: str) -> str:
    """``1 round``, ``2 rounds``, ``2 classes``."""
    return f"{number:,} {thing}{'' if number == 1 else 'es' if thing.endswith('s') else 's'}"


def ratio_text(full: float, ours: float) -> str:
    """How many times smaller than full precision: ``7.9x``; empty if there is nothing to compare."""
    return f"{full / ours:.1f}x" if ours else ""


__all__ = ["bytes_text", "counted", "joules_text", "operations_text", "ratio_text", "seconds_text"]
