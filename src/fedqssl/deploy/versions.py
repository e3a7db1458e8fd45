"""Which versions work together: the same major and minor version of fedqssl, and of Flower, on both sides."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version

from fedqssl import __version__

HEADER = "fedqssl-versions"
"""A client names its versions in this header of every request."""
PACKAGES = {"fedqssl": "fedqssl", "flwr": "Flower"}
"""Packages whose versions must agree, and what they are called."""


def own_versions() -> dict[str, str]:
    """The versions installed here."""
    try:
        flower = version("flwr")
    except PackageNotFoundError:
        flower = ""
    return {"fedqssl": __version__, "flwr": flower}


def versions_text(versions: dict[str, str]) -> str:
    """``fedqssl=0.4.0 flwr=1.41.0``, for a header."""
    return " ".join(f"{name}={number}" for name, number in versions.items() if number)


def read_versions(text: str) -> dict[str, str]:
    """Inverse of :func:`versions_text`; what is not a version is left out."""
    found = re.findall(r"([a-z]+)=(\d+\.\d+[0-9A-Za-z.+-]{0,40})(?: |$)", text[:200])
    return {name: number for name, number in found if name in PACKAGES}


def _release(text: str) -> tuple[int, ...]:
    """Major and minor version as numbers; empty if they cannot be read."""
    found = re.match(r"(\d{1,6})\.(\d{1,6})", text)
    return tuple(map(int, found.groups())) if found else ()


def disagreement(client: dict[str, str], server: dict[str, str]) -> str | None:
    """Why a client of these versions cannot take part, and which side to upgrade; None if it can.

    A package that a side does not name is not compared.
    """
    for name, called in PACKAGES.items():
        theirs, ours = client.get(name), server.get(name)
        if theirs is None or not ours or _release(theirs) == _release(ours):
            continue
        older, target = ("client", ours) if _release(theirs) < _release(ours) else ("server", theirs)
        return (
            f"the client has {called} {theirs or 'of an unknown version'}, but the server has {ours}; "
            f"upgrade the {older} to {called} {target}"
        )
    return None


__all__ = ["HEADER", "disagreement", "own_versions", "read_versions", "versions_text"]
