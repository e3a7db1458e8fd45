"""One colour and one shape per bitwidth, the same in every chart; and how numbers are written.

Colours run from warm to cold and from light to dark (dark pages: the other way), so that their order survives every kind of
colour blindness and print.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from markupsafe import Markup

from fedqssl.plotting import FULL, FULL_COLOUR, LIGHT, bit_colours
from fedqssl.reporting.svg import SHAPES, Mark
from fedqssl.units import bytes_text, counted

_DARK = ((255, 196, 92), (255, 133, 112), (222, 120, 214), (140, 168, 255))


class Theme:
    """Colours and shapes of the bitwidths of a page."""

    def __init__(self, bits: Iterable[int]) -> None:
        self.bits = sorted(set(bits))
        self._low = [b for b in self.bits if b != FULL]

    def mark(self, bits: int) -> Mark:
        """The shape and the CSS class of a bitwidth."""
        return Mark("circle" if bits == FULL else SHAPES[self._low.index(bits) % len(SHAPES)], f"b{bits}")

    def legend(self) -> list[tuple[str, Mark]]:
        """All bitwidths."""
        return [(bits_words(b), self.mark(b)) for b in self.bits]

    def css(self) -> Markup:
        """Colours as custom properties, for light and dark pages."""
        light, dark = (
            "".join(f"--bit-{b}:{colour};" for b, colour in {**bit_colours(self._low, ramp), FULL: full}.items())
            for ramp, full in ((LIGHT, FULL_COLOUR), (_DARK, "#a5adba"))
        )
        kinds = "".join(f".b{b}{{--c:var(--bit-{b})}}" for b in {*self.bits, FULL})
        return Markup(f":root{{{light}}}@media(prefers-color-scheme:dark){{:root{{{dark}}}}}{kinds}")


def bits_words(bits: int) -> str:
    """``4 bits``, or ``fp32``."""
    return "fp32" if bits == FULL else f"{bits} bit" if bits == 1 else f"{bits} bits"


def percent(value: float | None, digits: int = 1) -> str:
    """``0.407`` -> ``40.7%``; a dash if it is unknown."""
    return "–" if value is None or not math.isfinite(value) else f"{100 * value:.{digits}f}%"


def percent_tick(value: float) -> str:
    """As short as possible, for an axis: ``40%``, ``2.5%``."""
    return f"{round(100 * value, 6):.6g}%"


def plain(value: float | None, digits: int = 3) -> str:
    """A number, a dash if it is unknown."""
    return "–" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def tick(value: float) -> str:
    """A number at an axis."""
    return f"{round(value, 9):,.6g}"


def size(count: float) -> str:
    """Human-readable bytes, a dash if they are unknown."""
    return "–" if math.isnan(count) else bytes_text(count)


__all__ = ["FULL", "Theme", "bits_words", "counted", "percent", "percent_tick", "plain", "size", "tick"]
