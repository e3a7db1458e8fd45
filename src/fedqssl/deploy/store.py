"""What a client stores on its own disk, atomically: its split, the models received and sent in the last rounds, its own model.

No algorithm keeps an optimiser between rounds, so the model received in a round is the client's whole state;
a round that the server repeats after a crash gives the same bytes, and the stored reply can be sent again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from fedqssl.data.images import ImageSet
from fedqssl.federated.client import ClientMetrics
from fedqssl.files import read_json_or_none, write_atomically, write_json

KEEP = 2
"""Rounds kept: the last and the one before it."""


def round_key(*parts: object) -> str:
    """Digest of everything that a round's bytes depend on."""
    digest = hashlib.sha256()
    for part in parts:
        data = part if isinstance(part, bytes) else json.dumps(part, sort_keys=True).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


class Store:
    """A client's ``state`` folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # of somebody else's folder, which we may only use
            path.chmod(0o700)  # what was made by an older version, or copied

    def recall(self, key: str) -> tuple[bytes, ClientMetrics] | None:
        """The reply sent in this same round, if it was one of the last."""
        for folder in self._rounds():
            about = read_json_or_none(folder / "round.json")
            if isinstance(about, dict) and about.get("key") == key:
                sent = (folder / "sent.fqssl").read_bytes()
                if hashlib.sha256(sent).hexdigest() == about["sent"]:
                    metrics = about["metrics"]
                    return sent, ClientMetrics(**{**metrics, "losses": tuple(metrics["losses"])})
        return None

    def keep(self, key: str, received: bytes, sent: bytes, metrics: ClientMetrics) -> None:
        """Store a round, completely or not at all."""
        number = max((int(f.name.removeprefix("round-")) for f in self._rounds()), default=0) + 1
        final = self.path / f"round-{number:06d}"
        partial = final.with_name(final.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        write_atomically(partial / "received.fqssl", received)
        write_atomically(partial / "sent.fqssl", sent)
        digest = hashlib.sha256(sent).hexdigest()
        write_json(partial / "round.json", {"key": key, "sent": digest, "metrics": asdict(metrics)})
        os.replace(partial, final)
        for old in self._rounds()[KEEP:]:
            shutil.rmtree(old, ignore_errors=True)

    def _rounds(self) -> list[Path]:
        """Newest first."""
        return sorted((f for f in self.path.glob("round-??????") if f.is_dir()), reverse=True)

    def split(self, train: ImageSet, test: ImageSet) -> tuple[Tensor, Tensor]:
        """The client's own split: an image that was held out once stays held out, whatever data are added.

        Returns:
            Positions of the training and of the held-out images in ``train`` followed by ``test``.
        """
        held = read_json_or_none(self.path / "split.json")
        if held is None:
            write_json(self.path / "split.json", held := sorted(set(_digests(test))))
        back = torch.tensor([digest in set(held) for digest in _digests(train)], dtype=torch.bool)
        tests = torch.arange(len(train), len(train) + len(test))
        return (~back).nonzero().flatten(), torch.cat([tests, back.nonzero().flatten()])

    def own(self, name: str, data: bytes) -> None:
        """One of the client's own files: ``model.fqssl``, ``device.fqssl``."""
        write_atomically(self.path / name, data)


def _digests(data: ImageSet) -> list[str]:
    return [hashlib.sha256(image.contiguous().numpy().tobytes()).hexdigest()[:16] for image in data.images]
