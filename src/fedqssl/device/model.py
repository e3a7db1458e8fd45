"""A device file as a model: load, logits, predictions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from fedqssl.device.card import markdown
from fedqssl.device.format import DeviceFileError, Manifest, decode, encode
from fedqssl.device.framing import read_file
from fedqssl.device.pictures import batches
from fedqssl.device.prediction import Prediction, named, several
from fedqssl.evaluation.features import extract_features, features_in_order
from fedqssl.evaluation.local import LowBitClassifier, empty_classifier
from fedqssl.lowbit import LowBitOptions, Precision, keep_ready, load_bytes, to_bytes, to_lowbit
from fedqssl.lowbit.container import ContainerError, read_header
from fedqssl.models.contrast import with_contrast
from fedqssl.models.features import feature_dim, features_of
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import MODELS, build_model
from fedqssl.ssl.objectives import get_objective


@dataclass(frozen=True, eq=False, repr=False)
class DeviceModel:
    """A personal low-bit model with its classifier, ready to use; :func:`load` makes one."""

    manifest: Manifest
    extractor: fx.GraphModule
    classifier: LowBitClassifier | None

    def logits(self, images: Tensor, batch_size: int = 500) -> Tensor:
        """Logits (N, classes) of uint8 images (N, C, H, W) of the model's own size."""
        if len(images) == 1 and images.dtype == torch.uint8 and images.ndim == 4:  # the checks take as long as a layer
            found = features_in_order(self.extractor, images, 1, images.device)
        else:
            found = extract_features(self.extractor, images, batch_size)
        return found if self.classifier is None else self.classifier.logits(found)

    def probabilities(self, images: Tensor, batch_size: int = 500) -> Tensor:
        """``softmax(logits)``."""
        return self.logits(images, batch_size).softmax(1)

    def keep_ready(self) -> None:
        """Keep what kernels take instead of unpacking codes for every batch: faster, in more memory; the results are the same."""
        for part in (self.extractor, *([] if self.classifier is None else [self.classifier.model])):
            keep_ready(part)

    def predict(self, images: Any, top: int = 1, batch_size: int = 64) -> list[Prediction]:
        """Classify pictures of any size.

        Args:
            images: one picture or several; each a path, encoded bytes, a pillow image, a uint8 array (H, W[, C]) or a uint8
                tensor (C, H, W). The path of a folder stands for all pictures below it.
            top: number of classes to return for each picture.
            batch_size: pictures in memory at a time.

        Raises:
            DataError: a picture cannot be read; the message names it.
        """
        if top < 1 or batch_size < 1:
            raise ValueError(f"top and batch_size must be at least 1, not {top} and {batch_size}")
        files: list[str | None] = []

        def noted(items: Iterable[Any]) -> Iterator[Any]:
            for item in items:
                files.append(str(item) if isinstance(item, (str, Path)) else None)
                yield item

        found: list[Prediction] = []
        for batch in batches(noted(several(images)), self.manifest.size, self.manifest.channels, batch_size):
            found += self.answers(self.probabilities(batch), top)
        return [replace(answer, file=file) for answer, file in zip(found, files, strict=True)]

    def __repr__(self) -> str:
        m = self.manifest
        return f"<DeviceModel {m.model} for {m.client}: {m.bits} bits, {len(m.class_names)} classes, {m.size}x{m.size} images>"

    def answers(self, probabilities: Tensor, top: int) -> list[Prediction]:
        """Name the largest probabilities of each row."""
        values, places = probabilities.topk(min(top, probabilities.shape[1]), dim=1)
        names = self.manifest.class_names
        return named(values.tolist(), places.tolist(), names)

    def to_bytes(self) -> bytes:
        """The device file; the same model gives the same bytes."""
        return pack_device(self.manifest.model_dump(), self.extractor, self.classifier)

    def card(self) -> str:
        """The model card, as Markdown."""
        try:
            return markdown(self.manifest, len(self.to_bytes()))
        except (KeyError, TypeError, ValueError) as error:
            raise DeviceFileError(f"the model card of this file cannot be written: {error!r} is missing") from error


def pack_device(values: dict[str, Any], extractor: fx.GraphModule, classifier: LowBitClassifier | None) -> bytes:
    """A device file from a manifest's values (lengths are filled in) and its models."""
    body, head = to_bytes(extractor), b"" if classifier is None else to_bytes(classifier.model, exact=True)
    scale = 1.0 if classifier is None else classifier.scale
    lengths = {"extractor_bytes": len(body), "classifier_bytes": len(head), "scale": scale}
    return encode(Manifest.model_validate({**values, **lengths}), body, head)


def _check_size(manifest: Manifest) -> None:
    """Reject a manifest whose network is far larger than its container, before the network is built."""
    with torch.device("meta"):
        counted = build_model(manifest.model, manifest.width, manifest.channels)
    bits = sum(p.numel() for p in counted.parameters()) * manifest.bits
    if bits // 8 > 2 * manifest.extractor_bytes + 4096:
        raise DeviceFileError("the manifest's width does not fit the weights that follow; export the model again")


def architecture(manifest: Manifest, trust: bool = False) -> SelfSupervisedNetwork:
    """The float network that a device file was converted from; its weights do not matter."""
    own = manifest.model not in MODELS
    if own and not trust:
        raise DeviceFileError(
            f"this model's backbone is {manifest.model!r}, code that loading would import and run; if you trust the file, "
            "load it with trust=True (on the command line --trust)"
        )
    if not own:
        _check_size(manifest)
    encoder = build_model(manifest.model, manifest.width, manifest.channels, manifest.size)
    dim = int(encoder.feature_dim)  # type: ignore[arg-type]
    if manifest.supervised:
        return SelfSupervisedNetwork(encoder, nn.Linear(dim, len(manifest.class_names)))
    return SelfSupervisedNetwork(encoder, get_objective(manifest.objective).heads(dim))


def _extractor(manifest: Manifest, network: SelfSupervisedNetwork, options: LowBitOptions) -> fx.GraphModule:
    """What a device needs of the network, in its bits; a supervised one is needed whole."""
    model, image = to_lowbit(network, Precision.for_bits(manifest.bits), options), (manifest.channels, manifest.size)
    extractor = model if manifest.supervised else features_of(model, manifest.features, *image)
    extractor = with_contrast(extractor, manifest.contrast)
    pooled = manifest.features == "pooled"
    dim = int(network.encoder.feature_dim) if pooled else feature_dim(extractor, *image)  # type: ignore[arg-type]
    if dim != manifest.feature_dim:
        raise DeviceFileError(
            f"the backbone {manifest.model!r} gives {dim} features here, {manifest.feature_dim} in the file"
        )
    return extractor


def _filled(manifest: Manifest, body: bytes, head: bytes, trust: bool) -> DeviceModel:
    precision = Precision.for_bits(manifest.bits)
    extractor = _extractor(manifest, architecture(manifest, trust), _options(body))
    load_bytes(extractor, body)
    extractor.eval()
    if manifest.supervised:
        return DeviceModel(manifest, extractor, None)
    linear = empty_classifier(manifest.feature_dim, len(manifest.class_names), precision)
    load_bytes(linear, head)
    linear.eval()
    return DeviceModel(manifest, extractor, LowBitClassifier(linear, manifest.scale))


def _options(body: bytes) -> LowBitOptions:
    try:
        return LowBitOptions.from_json(read_header(body)["options"])
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ContainerError(f"the model's description is not valid: {error}") from error


def from_bytes(data: bytes, trust: bool = False) -> DeviceModel:
    """The model in a device file's bytes; see :func:`load`."""
    manifest, body, head = decode(data)
    with torch.random.fork_rng():
        return _filled(manifest, body, head, trust)


def load(path: str | Path, *, trust: bool = False) -> DeviceModel:
    """Load a device file.

    Args:
        path: a file written by ``fedqssl export``.
        trust: allow importing a backbone that the file names as ``package.module:Class``, which runs its code.

    Raises:
        DeviceFileError: one line that names the file and says why it cannot be used.
    """
    path = Path(path)
    try:
        return from_bytes(read_file(path), trust)
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        raise DeviceFileError(f"{path}: {' '.join(str(error).split())}") from error


__all__ = ["DeviceModel", "Prediction", "from_bytes", "load", "pack_device"]
