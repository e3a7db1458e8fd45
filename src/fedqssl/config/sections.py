"""The tables of a run's settings (``ssl.*``, ``server.*``, ...): names, types, defaults and limits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from fedqssl.config.keys import none

Word = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Epochs = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
MaybeCount = Annotated[Count | None, BeforeValidator(none)]
MaybeEpochs = Annotated[Epochs | None, BeforeValidator(none)]
MaybePositive = Annotated[Positive | None, BeforeValidator(none)]
MaybePath = Annotated[Path | None, BeforeValidator(none)]


class Section(BaseModel):
    """Base of every table of settings: frozen, finite numbers only, no unknown names, no true or false where a number belongs."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_flags(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("takes a number or a word, not true or false")
        return value


class SslConfig(Section):
    """The self-supervised objective (``ssl.*``)."""

    temperature: Positive = 0.5
    """tau of InfoNCE (Sec. 2)."""
    momentum: Annotated[float, Field(ge=0, le=0.999)] = 0.99
    """For ``objective=byol``: the share that its target network keeps of itself in each step; it starts each round anew."""


class ServerConfig(Section):
    """The server's work on its buffer (``server.*``)."""

    dequantize_epochs: MaybeEpochs = 1
    """Epochs of full-precision fine-tuning for every received model; none if ``server.steps`` is given."""
    steps: MaybeCount = None
    """Instead of ``server.dequantize_epochs``: full-precision steps on the buffer in a round, in all. Fed-QSSL divides them
    equally between the received models (at least 1 each); algorithms that train one model there spend them all on it."""
    requantize_epochs: Epochs = 1
    """Epochs of low-bit fine-tuning of the aggregate, once per bitwidth."""
    requantize_start: Literal["average", "codes"] = "average"
    """Where the float copies of that fine-tuning start: at the aggregate, or at what its codes stand for."""
    lr: MaybePositive = None
    """Learning rate on the server; by default that of the clients."""
    threads: MaybeCount = None
    """Torch threads while the server trains one model (``fed_refine``, ``fed_qssl_plus``, ``server_only``, ``central``), when no
    worker is busy; by default ``threads``. As with ``threads``, another number gives other bytes."""
    optimizer: Literal["none", "momentum", "adam", "fedexp"] = "none"
    """How the server uses the aggregate: adopt it, step towards it with momentum or Adam (Reddi et al. 2021), or step beyond it,
    the farther the more the clients' steps differ (FedExP, Jhunjhunwala et al. 2023)."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """For ``server.optimizer``: beta of momentum, beta1 of Adam."""
    optimizer_lr: MaybePositive = None
    """For ``server.optimizer``: the step size, by default 1 for momentum, 0.01 for Adam; for FedExP the largest, by default 3."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Moving average of the aggregate over rounds: the share of the average kept in each round; 0 turns it off."""


class AggregationConfig(Section):
    """How received models are weighted (``aggregation.*``)."""

    temperature: Positive = 1.0
    """T of ``p = softmax(-L_DQ / T)``; the paper uses 1."""
    weights: Literal["algorithm", "bits", "agreement", "mask"] = "algorithm"
    """What the algorithm's weights are multiplied by, tensor by tensor. ``algorithm``: nothing. ``bits``: the precision of a
    client's update, so that few bits count less. ``agreement``: the cosine to the model before the round (L-DAWA). ``mask``: 1
    where a client of fewer bits moved an entry in the same direction as the clients of more bits, else 0 (after ProWD)."""
    robust: Literal["none", "median", "trimmed", "krum", "clip", "fltrust", "embedding"] = "none"
    """What takes the place of the average, against hostile clients. ``none``: nothing. ``median``, ``trimmed``: of every entry,
    the median or the mean without the extreme fifths (Yin et al. 2018). ``krum``: the average without the fifth of the clients
    that are farthest from the others (Blanchard et al. 2017). ``clip``: no step longer than the median (Sun et al. 2019).
    ``fltrust``: steps count by their angle to the server's own on its buffer, compared within a bitwidth (Cao et al. 2021).
    ``embedding``: clients whose models see the buffer's images unlike all others are left out (after Qian et al. 2024)."""
    max_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The most that a client's share of images may count where shares are weights: clients only claim how many images they have.
    What is cut off goes to the others, by their shares; 1 cuts nothing."""
    batch_norm: Literal["average", "buffer"] = "average"
    """The aggregate's batch-norm statistics: the average of the clients', or measured anew on the server's buffer, where no
    client has a say in them."""


def _names(value: object) -> object:
    """On the command line, names have commas between them; ``none`` stands for no name at all."""
    if not isinstance(value, str):
        return value
    return () if none(value) is None else tuple(part.strip() for part in value.strip("[] ").split(",") if part.strip())


Names = Annotated[tuple[Word, ...], BeforeValidator(_names)]


class LowBitConfig(Section):
    """Choices in low-bit training (``lowbit.*``); see ``LowBitOptions`` and ``LowBitSGD``."""

    weights: Literal["level", "value", "literal"] = "level"
    """The input of a convolution."""
    rule: Literal["stored", "residual", "latent"] = "stored"
    """What a client stores for each weight: s bits (``stored``, the paper), up to 4 bits more that say where in its cell it is
    (``residual``), or a float copy as well (``latent``)."""
    scale: Literal["max", "round", "grow", "ema"] = "grow"
    """What happens to a layer's scale while a client trains: ``round`` keeps it; ``grow`` keeps it where a batch norm absorbs it
    and lets it follow the weights' norm elsewhere (classifiers, last layers of heads)."""
    rounding: Literal["nearest", "stochastic"] = "stochastic"
    """Rounding of the weight update."""
    gradient_centres: Literal["quantile", "mean"] = "quantile"
    """What stands for the entries of a quantized gradient: quantiles (the paper), or means of cells, which keep sums and lose far
    less of the largest entries."""
    activation_clip: Positive = 4.0
    """c of the activation ``clip(z / c, 0, 1)``."""
    skip: Names = ()
    """Layers that stay in floats at every client and on the server, with everything inside them: names or patterns with commas
    between them, like encoder.conv1,heads.*; a layer that has no low-bit counterpart must be among them."""


class FedProxConfig(Section):
    """Settings of ``algorithm = "fed_prox"`` (``fedprox.*``)."""

    mu: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the proximal term ``mu/2 |w - w_received|^2``."""


class DistillConfig(Section):
    """Settings of ``algorithm = "fed_distill"`` (``distill.*``)."""

    temperature: Positive = 0.1
    """T of the clients' similarities: the smaller, the more only the most similar images count."""


class PrivacyConfig(Section):
    """Differential privacy of whole clients (``privacy.*``); docs/security.md says what it protects, and from whom."""

    client_epsilon: MaybePositive = None
    """The epsilon that the models of a whole run may cost a client, with ``privacy.delta``; none: no noise is added. For
    algorithms whose server needs sums only."""
    delta: Annotated[float, Field(gt=0, lt=1)] = 1e-5
    """The probability that epsilon is exceeded; should be far below 1 / clients."""
    clip: Positive = 1.0
    """The largest norm of a client's update; longer ones are shortened. The noise is proportional to it."""


class EvaluationConfig(Section):
    """What is measured, and how often (``evaluation.*``)."""

    knn_every: Epochs = 1
    """Rounds between kNN measurements of the aggregated model; 0 turns them off."""
    probe_images: MaybeCount = None
    """Limit on the training images of the closing linear probe; by default all, at most 50,000."""
    clients: MaybeCount = None
    """Limit on the clients whose own accuracy is measured, with its controls; they are drawn. By default all, at most 500."""
    controls: Literal["all", "none"] = "all"
    """Whether the result is compared with simple classifiers on the same images and with the untrained network."""
    holdout: Annotated[float, Field(ge=0, le=0.5)] = 0.2
    """Share of each client's images that it is tested on, and of a folder without ``test/`` that becomes the test set; a new run
    on images without labels holds out none."""
    classifier: Literal["regression", "sgd"] = "regression"
    """How a client's s-bit classifier is made: ``regression`` on the codes that its device sees, or ``sgd`` in its bits."""
    probe: Literal["cross_validated", "fixed"] = "cross_validated"
    """Weight decay of the closing linear probe: ``cross_validated`` on the training images, or ``fixed`` at 1e-4."""


def _range(value: object) -> object:
    """On the command line, a range is two numbers with a comma between them."""
    return tuple(part.strip() for part in value.strip("[]() ").split(",")) if isinstance(value, str) else value


MaybeShare = Annotated[Annotated[float, Field(ge=0, le=1)] | None, BeforeValidator(none)]
MaybeRange = Annotated[Annotated[tuple[Positive, Positive], BeforeValidator(_range)] | None, BeforeValidator(none)]


class ViewsConfig(Section):
    """What a view of an image may change (``views.*``); what is not set is the preset's (``fedqssl.ssl.presets``)."""

    preset: Literal["objects", "shapes", "colors", "signs", "textures", "documents", "none", "auto"] = "objects"
    """The kind of images: ``objects`` (SimCLR's views), ``shapes`` (nothing mirrored, crops from 40%), ``colors`` (colours tell
    things apart), ``signs`` (as shapes, larger crops), ``textures`` (small crops), ``documents`` (as signs, colours do not
    count), ``none`` (crops alone). ``auto``: a short training with each of the first three, and the clients' labels decide (on
    one machine; ``shapes`` without labels)."""
    scale: MaybeRange = None
    """Range of the cropped share of the image's area, like 0.2,1."""
    ratio: MaybeRange = None
    """Range of the crop's width / height, like 0.75,1.33."""
    flip: MaybeShare = None
    """Probability of a horizontal flip; 0 where left and right mean different things."""
    brightness: MaybeShare = None
    """Largest change of brightness, as a share."""
    contrast: MaybeShare = None
    """Largest change of contrast, as a share."""
    saturation: MaybeShare = None
    """Largest change of saturation, as a share."""
    hue: Annotated[Annotated[float, Field(ge=0, le=0.5)] | None, BeforeValidator(none)] = None
    """Largest turn of the hue, as a share of the colour circle."""
    jitter: MaybeShare = None
    """Probability that a view gets these four changes."""
    grayscale: MaybeShare = None
    """Probability that a view turns grey."""
    size: MaybeCount = None
    """Side of the views, by default that of the images; smaller ones train faster. Evaluation is always at full size."""

    @model_validator(mode="after")
    def _increasing(self) -> ViewsConfig:
        for name, top in (("scale", 1.0), ("ratio", math.inf)):
            found = getattr(self, name)
            if found is not None and not found[0] <= found[1] <= top:
                limit = " up to 1" if top == 1 else ""
                raise ValueError(
                    f"{name} takes two increasing numbers{limit}, like 0.5,1; not {found[0]:g},{found[1]:g}"
                )
        return self


__all__ = [
    "AggregationConfig",
    "DistillConfig",
    "EvaluationConfig",
    "FedProxConfig",
    "LowBitConfig",
    "PrivacyConfig",
    "Section",
    "ServerConfig",
    "SslConfig",
    "ViewsConfig",
]
