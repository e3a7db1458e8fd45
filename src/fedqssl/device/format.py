"""The device file: one model, its classifier and all that is needed to use them, versioned and checksummed.

Layout: a header (:mod:`fedqssl.header`) with the mark ``b"FQDEV\\0"``; then the
length of the manifest (uint32), the manifest (JSON), the extractor's container and the classifier's
(``fedqssl.lowbit.container``: packed codes, scales, batch norm). A codebook is named, not stored: bits, scale, compander
and reading of the weights determine it.
"""

from __future__ import annotations

import json
import struct
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedqssl.header import Header
from fedqssl.lowbit.container import MAGIC as CONTAINER_MAGIC
from fedqssl.models.contrast import Contrast
from fedqssl.models.features import Features

MAX_BYTES = 1 << 30
MAX_MANIFEST = 1 << 22
_LENGTH = struct.Struct("<I")

Count = Annotated[int, Field(ge=1, le=1 << 31)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]


class DeviceFileError(ValueError):
    """These bytes are not a device file that can be used; the message says why."""


HEADER = Header(
    b"FQDEV\0",
    1,
    DeviceFileError,
    "not a device file; make one with fedqssl export RUN --client NAME",
    older="; export the model again",
    damaged="; copy it again",
)


class Manifest(BaseModel):
    """The description stored in a device file.

    Args:
        model: backbone by name, or ``package.module:Class``.
        width: channels of its first stage.
        channels: of an image, 1 or 3.
        size: height and width that images are resized to (centre square, bilinear).
        normalisation: pixels enter as ``value / 255``; the batch norms do the rest.
        objective: used in training; names the heads, which the file leaves out (``supervised``: the classifier is kept).
        bits: of weights and activations.
        scale: features are divided by it before the classifier.
        features: what the classifier sees of the network (``fedqssl.models.features``).
        contrast: what happens to an image first (``fedqssl.models.contrast``).
        feature_dim: length of a feature vector.
        class_names: by label.
        protocol: of the run that produced it.
        client: the client that it belongs to.
        card: the values of the model card.
        extractor_bytes: length of the first container.
        classifier_bytes: length of the second; 0 if the model ends in its classifier.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    model: Text
    width: Count
    channels: Literal[1, 3]
    size: Annotated[int, Field(ge=1, le=4096)]
    normalisation: Literal["value / 255"] = "value / 255"
    objective: Text
    bits: Annotated[int, Field(ge=1, le=32)]
    scale: Annotated[float, Field(gt=0)] = 1.0
    features: Features = "pooled"
    contrast: Contrast = "as_is"
    feature_dim: Count
    class_names: list[Text]
    protocol: Text
    client: Text
    card: dict[str, Any]
    extractor_bytes: Count
    classifier_bytes: Annotated[int, Field(ge=0, le=1 << 31)]

    @model_validator(mode="after")
    def _some_classes(self) -> Manifest:
        if not self.class_names:
            raise ValueError("class_names is empty")
        return self

    @property
    def without_labels(self) -> tuple[str, ...]:
        """Classes that the classifier has seen no example of, and hardly ever answers; none if the card does not say."""
        data = self.card.get("data")
        counts = data.get("labels by class") if isinstance(data, dict) else None
        if not isinstance(counts, list) or len(counts) != len(self.class_names):
            return ()
        return tuple(name for name, count in zip(self.class_names, counts, strict=True) if count == 0)

    @property
    def supervised(self) -> bool:
        """Whether the model ends in the classifier that it was trained with."""
        return self.objective == "supervised"


def encode(manifest: Manifest, extractor: bytes, classifier: bytes) -> bytes:
    """The bytes of a device file; equal parts give equal bytes."""
    values = manifest.model_dump()
    for key in ("features", "contrast"):
        if values[key] == Manifest.model_fields[key].default:  # as in files from before the key
            del values[key]
    text = json.dumps(values, sort_keys=True, ensure_ascii=False, allow_nan=False).encode()
    rest = _LENGTH.pack(len(text)) + text + extractor + classifier
    return HEADER.wrap(rest)


def decode(data: bytes) -> tuple[Manifest, bytes, bytes]:
    """Manifest, extractor and classifier of a device file.

    Raises:
        DeviceFileError: one line that says why these bytes cannot be used.
    """
    if data[:6] == CONTAINER_MAGIC:
        raise DeviceFileError("this is a run's model without a classifier; make a device file with fedqssl export")
    rest = HEADER.unwrap(data, MAX_BYTES)
    if len(rest) < _LENGTH.size:
        raise DeviceFileError("the manifest is missing; export the model again")
    (size,) = _LENGTH.unpack_from(rest)
    start = _LENGTH.size + size
    if size > MAX_MANIFEST or start > len(rest):
        raise DeviceFileError(f"a manifest of {size} bytes is impossible; export the model again")
    try:
        manifest = Manifest.model_validate(json.loads(rest[_LENGTH.size : start]))
    except ValidationError as error:
        found = error.errors()[0]
        where = ".".join(map(str, found["loc"])) or "the manifest"
        raise DeviceFileError(f"{where} in the manifest is not valid: {found['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise DeviceFileError("the manifest cannot be read; export the model again") from error
    parts = manifest.extractor_bytes + manifest.classifier_bytes
    if start + parts != len(rest):
        raise DeviceFileError(f"the manifest announces {parts} bytes of models, but {len(rest) - start} follow it")
    middle = start + manifest.extractor_bytes
    return manifest, rest[start:middle], rest[middle:]


__all__ = ["DeviceFileError", "Manifest", "decode", "encode"]
