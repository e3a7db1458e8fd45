"""Objects that a setting names by import path, ``package.module:NAME``: a user's own model or algorithm."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


def closest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name closest to this one, if any is close."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def nearest(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """``"; did you mean 'x'?"`` with the closest known name, or ``otherwise`` if none is close."""
    found = closest(name, known)
    return f"; did you mean {found!r}?" if found else otherwise


def one_line(error: BaseException, limit: int = 300) -> str:
    """The error's type and message on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:limit]


@contextmanager
def _working_folder_importable() -> Iterator[None]:
    """The ``fedqssl`` command does not search the working folder for modules; it is added last, so that it shadows nothing."""
    folder = os.getcwd()
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def imported(spec: str, kind: str, error_class: type[Exception]) -> object:
    """The object behind ``package.module:NAME``; every error message begins with ``kind`` ("model", "algorithm").

    Raises:
        error_class: the module cannot be imported or has no such name; one line that says what to do.
    """
    module_name, _, attribute = spec.partition(":")
    try:
        with _working_folder_importable():
            module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise error_class(
            f"{kind} {spec!r}: cannot import {module_name!r} ({error}); is its folder on PYTHONPATH?"
        ) from None
    except Exception as error:  # whatever the user's code raises
        raise error_class(f"{kind} {spec!r}: {module_name!r} fails when imported ({one_line(error)})") from error
    found: object = getattr(module, attribute, None)
    if found is None:
        raise error_class(f"{kind} {spec!r}: {module_name} has no {attribute!r}{nearest(attribute, dir(module))}")
    return found


__all__ = ["closest", "imported", "nearest", "one_line"]
