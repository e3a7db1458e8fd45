"""The device file: one model, its classifier and all that is needed to use them, versioned and checksummed.

The layout is that of :mod:`fedqssl.device.framing`: a manifest, the extractor's container and the classifier's
(``fedqssl.lowbit.container``: packed codes, scales, batch norm). A codebook is named, not stored: bits, scale, compander
and reading of the weights determine it.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from fedqssl.device.framing import HEADER, DeviceFileError, framed, parts, separated
from fedqssl.models.contrast import Contrast
from fedqssl.models.features import Features

Count = Annotated[int, Field(ge=1, le=1 << 31)]
Text = Annotated[str, Field(min_length=1, max_length=1000)]


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
    return framed(text, extractor + classifier)


def decode(data: bytes) -> tuple[Manifest, bytes, bytes]:
    """Manifest, extractor and classifier of a device file.

    Raises:
        DeviceFileError: one line that says why these bytes cannot be used.
    """
    text, models = separated(data)
    try:
        manifest = Manifest.model_validate(json.loads(text))
    except ValidationError as error:
        found = error.errors()[0]
        where = ".".join(map(str, found["loc"])) or "the manifest"
        raise DeviceFileError(f"{where} in the manifest is not valid: {found['msg']}") from error
    except (ValueError, RecursionError) as error:
        raise DeviceFileError("the manifest cannot be read; export the model again") from error
    return manifest, *parts(models, manifest.extractor_bytes, manifest.classifier_bytes)


__all__ = ["HEADER", "DeviceFileError", "Manifest", "decode", "encode"]
