"""Work that hundreds of tests would repeat: the embedded images are drawn once per process, and a run's plots only where asked.

Only the images that a run loads are kept; ``fedqssl.data.scenes`` itself draws anew whenever a test calls it.
"""

from __future__ import annotations

import dataclasses
import functools

import pytest

from fedqssl.data import registry
from fedqssl.runs import finalize

DRAW = finalize.draw
PLOTS = ["curves.png", "partition.png"]


def _copied(draw):
    """The same images for the same arguments, in tensors of the caller's own."""
    kept = functools.cache(draw)

    def scenes(*arguments):
        found = kept(*arguments)
        return dataclasses.replace(found, images=found.images.clone(), labels=found.labels.clone())

    return scenes


def _not_drawn(context, folder) -> list[str]:
    for name in PLOTS:
        (folder.path / name).write_bytes(b"not drawn")
    return PLOTS


@pytest.fixture(scope="session", autouse=True)
def savings():
    """Before any other fixture, so that theirs profit, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "scenes", _copied(registry.scenes))
        patch.setattr(finalize, "draw", _not_drawn)
        yield


@pytest.fixture
def plots(monkeypatch):
    """Runs of this test draw their plots."""
    monkeypatch.setattr(finalize, "draw", DRAW)
