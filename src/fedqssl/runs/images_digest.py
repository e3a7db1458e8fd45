"""A digest of all pixels and labels of a run: images may be moved, but not exchanged."""

from __future__ import annotations

import functools
import hashlib

from torch import Tensor

from fedqssl.config import RunConfig
from fedqssl.data.from_config import load_split, server_images, training_split
from fedqssl.data.images import ImageSet
from fedqssl.data.mapped import raw

_READ = ("data", "data_dir", "images", "image_size", "on_bad", "group", "buffer", "buffer_images")


def images_digest(train: ImageSet, test: ImageSet, public: Tensor | None) -> str:
    """SHA-256 of training and test images with their labels, and of the server's own images, if it has some."""
    digest = hashlib.sha256()
    for tensor in (train.images, train.labels, test.images, test.labels, public):
        if tensor is not None:
            for piece in raw(tensor):
                digest.update(piece)
    return digest.hexdigest()


def digest_of(config: RunConfig) -> str:
    """The digest of the images that a configuration names; they are read once for all configurations that share them."""
    where = tuple((name, getattr(config, name)) for name in _READ)
    return _digest_of(where, config.evaluation.holdout, config.partition == "natural")


@functools.lru_cache(maxsize=4)
def _digest_of(where: tuple[tuple[str, object], ...], holdout: float, natural: bool) -> str:
    kind = "natural" if natural else "iid"
    given = {name: value for name, value in where if not (name == "buffer_images" and dict(where)["buffer"] is None)}
    config = RunConfig.model_validate({**given, "evaluation.holdout": holdout, "partition": kind, "clients": 1})
    train, _ = training_split(config)
    return images_digest(train, load_split(config, "test"), server_images(config, train.images.shape[1]))


__all__ = ["digest_of", "images_digest"]
