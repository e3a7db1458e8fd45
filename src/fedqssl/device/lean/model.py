"""A device file as a model, without torch: load, logits, predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedqssl.device.framing import DeviceFileError, read_file
from fedqssl.device.lean.layers import Kernels, Linear
from fedqssl.device.lean.networks import NETWORKS, Network, features
from fedqssl.device.lean.pictures import one_picture, stretched
from fedqssl.device.lean.tensors import NEEDS_TORCH, Array, Container, LeanManifest, decode
from fedqssl.device.prediction import Prediction, named, several

PIXELS = 64 * 32 * 32
"""Pixels in a batch at most: small devices have little memory."""


class LeanModel:
    """A personal low-bit model with its classifier, ready to use; :func:`load` makes one.

    Args:
        manifest: what the file says about the model.
        network: the backbone.
        classifier: behind the features.
    """

    def __init__(self, manifest: LeanManifest, network: Network, classifier: Linear) -> None:
        self.manifest, self._network, self._classifier = manifest, network, classifier

    @property
    def variant(self) -> str:
        """Which of the compiled kernels compute: ``avx512``, ``avx2``, ``neon_dot``, ``neon`` or ``portable``."""
        return self._network.kernels.variant

    def logits(self, images: Array, batch_size: int = 500) -> Array:
        """Logits (N, classes) of uint8 images (N, C, H, W) of the model's own size."""
        m, images = self.manifest, np.asarray(images)
        if images.ndim != 4 or images.dtype != np.uint8 or len(images) == 0:
            kind = f"{images.dtype} {images.shape}"
            raise ValueError(f"images must be uint8 (N > 0, C, H, W), not {kind}; undo the division by 255")
        if images.shape[1] != m.channels:
            raise ValueError(f"images must have {m.channels} channels, not {images.shape[1]}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        count = max(1, min(batch_size, PIXELS // (images.shape[2] * images.shape[3])))
        rows = (images[i : i + count].transpose(0, 2, 3, 1) for i in range(0, len(images), count))
        return np.concatenate([self._answer(np.ascontiguousarray(part)) for part in rows])

    def _answer(self, pixels: Array) -> Array:
        if self.manifest.contrast == "stretch":
            pixels = stretched(pixels)
        found = features(self._network, pixels, "pooled" if self.manifest.supervised else self.manifest.features)
        return self._classifier(found if self.manifest.supervised else found / np.float32(self.manifest.scale))

    def probabilities(self, images: Array, batch_size: int = 500) -> Array:
        """``softmax(logits)``."""
        logits = self.logits(images, batch_size)
        powers = np.exp(logits - logits.max(1, keepdims=True))
        shares: Array = powers / powers.sum(1, keepdims=True)
        return shares

    def keep_ready(self) -> None:
        """Keep what kernels take instead of unpacking codes for every batch: faster, in more memory; the results are the same."""
        for weight in (*self._network.weights, self._classifier.weight):
            weight.keep = True

    def predict(self, images: Any, top: int = 1, batch_size: int = 64) -> list[Prediction]:
        """Classify pictures of any size.

        Args:
            images: one picture or several; each a path, encoded bytes, a pillow image or a uint8 array (H, W[, C]). The path of
                a folder stands for all pictures below it.
            top: number of classes to return for each picture.
            batch_size: pictures in memory at a time.

        Raises:
            DataError: a picture cannot be read; the message names it.
        """
        if top < 1 or batch_size < 1:
            raise ValueError(f"top and batch_size must be at least 1, not {top} and {batch_size}")
        found: list[Prediction] = []
        for files, batch in self._batches(several(images), batch_size):
            answers = self._named(self.probabilities(batch), top)
            found += [replace(answer, file=file) for answer, file in zip(answers, files, strict=True)]
        return found

    def _batches(self, images: Iterable[Any], batch_size: int) -> Iterator[tuple[list[str | None], Array]]:
        files: list[str | None] = []
        waiting: list[Array] = []
        for number, item in enumerate(images):
            files.append(str(item) if isinstance(item, (str, Path)) else None)
            waiting.append(one_picture(item, f"image {number}", self.manifest.size, self.manifest.channels))
            if len(waiting) == batch_size:
                yield files, np.stack(waiting).transpose(0, 3, 1, 2)
                files, waiting = [], []
        if waiting:
            yield files, np.stack(waiting).transpose(0, 3, 1, 2)

    def _named(self, probabilities: Array, top: int) -> list[Prediction]:
        places = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
        values = np.take_along_axis(probabilities, places, axis=1)
        return named(values.tolist(), places.tolist(), self.manifest.class_names)

    def __repr__(self) -> str:
        m = self.manifest
        return f"<LeanModel {m.model} for {m.client}: {m.bits} bits, {len(m.class_names)} classes, {m.size}x{m.size} images>"


def _check_supported(manifest: LeanManifest, options: dict[str, Any]) -> None:
    """Refuse what only the runtime with torch can load."""
    reasons = {
        f"the backbone {manifest.model!r}": manifest.model not in NETWORKS,
        "full precision (32 bits)": manifest.bits > 16,
        "layers in floats (lowbit.skip)": bool(options.get("skip")),
        "the activation quantizer 'tanh'": options.get("activation_quantizer", "uniform") != "uniform",
        "inputs that are not 8-bit images": options.get("quantize_input", True) is not True,
    }
    for what, found in reasons.items():
        if found:
            raise DeviceFileError(f"the runtime without torch does not know {what}{NEEDS_TORCH}")


def from_bytes(data: bytes) -> LeanModel:
    """The model in a device file's bytes; see :func:`load`."""
    manifest, body, head = decode(data)
    kernels, container = Kernels(), Container(body, manifest.bits)
    _check_supported(manifest, container.options)
    network = Network(container, kernels)
    if manifest.width > len(body):
        raise DeviceFileError("the manifest's width does not fit the weights that follow; export the model again")
    dim = NETWORKS[manifest.model](network, manifest.width, manifest.channels)
    classes = len(manifest.class_names)
    if manifest.supervised:
        classifier = Linear(container, "heads", (classes, dim), kernels)
        container.check_complete()
    else:
        container.check_complete()
        container = Container(head, manifest.bits)
        classifier = Linear(container, "0", (classes, manifest.feature_dim), kernels)
        container.check_complete()
    model = LeanModel(manifest, network, classifier)
    _check_features(model, dim)
    return model


def _check_features(model: LeanModel, dim: int) -> None:
    m = model.manifest
    kind = "pooled" if m.supervised else m.features
    if kind != "pooled":
        dim = features(model._network, np.zeros((1, m.size, m.size, m.channels), np.uint8), kind).shape[1]
    if dim != m.feature_dim:
        raise DeviceFileError(f"the backbone {m.model!r} gives {dim} features here, {m.feature_dim} in the file")


def load(path: str | Path) -> LeanModel:
    """Load a device file without torch.

    Args:
        path: a file written by ``fedqssl export``.

    Raises:
        DeviceFileError: one line that names the file and says why it cannot be used.
    """
    path = Path(path)
    try:
        return from_bytes(read_file(path))
    except (ValueError, TypeError, MemoryError) as error:
        raise DeviceFileError(f"{path}: {' '.join(str(error).split())}") from error


__all__ = ["LeanModel", "from_bytes", "load"]
