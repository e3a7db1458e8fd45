"""HTML and SVG elements from Python values; text is escaped unless it is already markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


class Markup(str):
    """Text that is already HTML; only :func:`el` and :func:`join` make it."""

    __slots__ = ()


Child = str | float | None


def _text(value: Child) -> str:
    if isinstance(value, Markup):
        return value
    return "" if value is None else html.escape(str(value))


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return html.escape(str(value))


def el(tag: str, *children: Child, **attributes: object) -> Markup:
    """An element. ``class_`` is ``class``, ``aria_label`` is ``aria-label``; None and False leave an attribute out.

    Example:
        >>> el("p", "a < b", class_="note")
        '<p class="note">a &lt; b</p>'
    """
    words = [tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        name = name.rstrip("_").replace("_", "-")
        words.append(name if value is True else f'{name}="{_attribute(value)}"')
    start = " ".join(words)
    if tag in ("br", "img", "meta", "link"):
        return Markup(f"<{start}>")
    return Markup(f"<{start}>{''.join(map(_text, children))}</{tag}>")


def join(parts: Iterable[Child], between: str = "") -> Markup:
    """Elements one after the other."""
    return Markup(_text(between).join(map(_text, parts)))


def raw(text: str) -> Markup:
    """Markup from a file of this package; never from a run."""
    return Markup(text)


def table(head: Sequence[str], rows: Iterable[Sequence[Child]], caption: str | None = None) -> Markup:
    """A table whose head sorts it; every column but the first is aligned as numbers."""
    top = el("tr", *(el("th", name, scope="col") for name in head))
    body = [
        el("tr", *(el("th" if i == 0 else "td", cell, scope="row" if i == 0 else None) for i, cell in enumerate(row)))
        for row in rows
    ]
    title = el("caption", caption) if caption else None
    inner = el("table", title, el("thead", top), el("tbody", *body))
    return el("div", inner, class_="scroll", tabindex="0", role="region", aria_label=caption or "table")


def figure(
    name: str,
    title: str,
    drawing: Markup,
    *,
    note: Child = None,
    legend: Child = None,
    data: Markup | None = None,
    wide: bool = False,
) -> Markup:
    """A card with a drawing, what it shows, and its numbers as a table to unfold."""
    caption = el("figcaption", el("h3", title), el("p", note, class_="note") if note else None)
    more = el("details", el("summary", "Numbers"), data) if data is not None else None
    return el(
        "figure", caption, legend, drawing, more, id=name, class_="card wide" if wide else "card", data_figure=name
    )


def section(name: str, title: str, *children: Child, lead: Child = None) -> Markup:
    """A part of the page that the menu leads to."""
    words = el("p", lead, class_="lead") if lead else None
    return el("section", el("h2", title), words, *children, id=name)


def grid(*cards: Child, loose: bool = False) -> Markup:
    """Cards side by side, as many as fit; ``loose`` ones keep their own heights."""
    return el("div", *cards, class_="grid loose" if loose else "grid")


__all__ = ["Child", "Markup", "el", "figure", "grid", "join", "raw", "section", "table"]
