"""Layers that stay in floats (``lowbit.skip``): which modules and tensors a list of names and patterns means.

A pattern has ``*``, ``?`` or ``[...]`` in it, and ``*`` also stands for dots: ``heads.*`` means everything in the heads. A module
that is meant stays in floats with everything inside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from fedqssl.imported import nearest

MOST = 1000
"""Most entries of a list: it may come from a file of somebody else."""


def check_skip(skip: Sequence[str]) -> None:
    """Raise an error unless these can be names or patterns of modules."""
    if len(skip) > MOST:
        raise ValueError(f"skip lists {len(skip)} layers, more than {MOST}; use a pattern such as encoder.*")
    if not all(isinstance(name, str) and name for name in skip):
        raise ValueError("skip takes names of layers, or patterns such as heads.*")


def skipped_modules(model: nn.Module, skip: Iterable[str]) -> frozenset[str]:
    """The names of the modules that are meant.

    Raises:
        ValueError: an entry means no module of the model.
    """
    names = [name for name, _ in model.named_modules() if name]
    found: set[str] = set()
    for entry in skip:
        meant = [name for name in names if fnmatchcase(name, entry)]
        if not meant:
            of_layers = [name for name, module in model.named_modules() if name and not any(module.children())]
            examples = f"; layers are, for example, {', '.join(dict.fromkeys((*of_layers[:1], *of_layers[-1:])))}"
            inside = [name for name in names if name.endswith(f".{entry}")]
            hint = f"; did you mean {inside[0]!r}?" if inside else nearest(entry, names, examples)
            raise ValueError(f"lowbit.skip: no layer is called {entry!r}{hint}")
        found.update(meant)
    return frozenset(found)


def is_skipped(tensor: str, skip: Sequence[str]) -> bool:
    """Whether a tensor, by its name, belongs to a module that is meant or lies inside one."""
    parts = tensor.split(".")[:-1]
    return any(fnmatchcase(".".join(parts[: i + 1]), entry) for i in range(len(parts)) for entry in skip)


__all__ = ["check_skip", "is_skipped", "skipped_modules"]
