"""The models of a checkpoint without a row per client: clients of the same bits usually have the same model.

Clients that began with the same model are a group, listed once in ``clients.json``. A checkpoint then names one file per group,
and one for every client whose model is not its group's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FEW = 200
"""Up to this number of clients, a checkpoint lists each with its file, as those of older versions do."""
Groups = Sequence[Sequence[str]]


@dataclass(frozen=True)
class SharedModels:
    """The models of clients: ``common`` of each group, and ``own`` of the others."""

    groups: Groups
    common: Sequence[bytes]
    own: Mapping[str, bytes]

    def by_client(self) -> dict[str, bytes]:
        """The model of every client."""
        found = {name: model for names, model in zip(self.groups, self.common, strict=True) for name in names}
        return found | dict(self.own)


def groups_of(models: Mapping[str, bytes]) -> Groups:
    """Clients that have the same model; a model that only one client has makes no group."""
    found: dict[bytes, list[str]] = {}
    for name, model in models.items():
        found.setdefault(model, []).append(name)
    return [names for names in found.values() if len(names) > 1]


def share(models: Mapping[str, bytes], groups: Groups | None) -> SharedModels:
    """Models by group, for those of before or, if there are none or a client of theirs is gone, for new ones."""
    if len(models) <= FEW:
        return SharedModels((), (), models)
    if groups is None or not all(name in models for names in groups for name in names):
        groups = groups_of(models)
    common = [Counter(models[name] for name in names).most_common(1)[0][0] for names in groups]
    usual = {name: model for names, model in zip(groups, common, strict=True) for name in names}
    own = {name: model for name, model in models.items() if usual.get(name) != model}
    return SharedModels(groups, common, own)


__all__ = ["FEW", "Groups", "SharedModels", "groups_of", "share"]
