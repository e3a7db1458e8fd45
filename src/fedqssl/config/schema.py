"""The settings of a run: names, types, defaults and limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, field_validator, model_validator

from fedqssl.config.keys import flat, nearest_key, nested

FULL = 32
MAX_BITS = 16


class ConfigError(ValueError):
    """A setting is wrong or unknown; the message names it and says what is allowed."""


def _none(value: object) -> object:
    """On the command line, ``none`` takes a limit away."""
    return None if isinstance(value, str) and value.strip().lower() == "none" else value


Word = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
Epochs = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
MaybeCount = Annotated[Count | None, BeforeValidator(_none)]
MaybePositive = Annotated[Positive | None, BeforeValidator(_none)]
MaybePath = Annotated[Path | None, BeforeValidator(_none)]


def parse_bits(value: object) -> tuple[int, ...]:
    """``"4,6,8"``, ``[4, 6, 8]`` or ``8`` -> bitwidths, each 1..16 or 32.

    Raises:
        ValueError: says what is allowed and what was found.
    """
    if isinstance(value, str):
        parts: list[object] = [part.strip() for part in value.strip().strip("[]").split(",") if part.strip()]
    elif isinstance(value, Sequence):
        parts = list(value)
    else:
        parts = [value]
    if not parts:
        raise ValueError("needs one bitwidth for all clients or one for each, like 4,6,8; found none")
    return tuple(_one_bitwidth(part) for part in parts)


def _one_bitwidth(part: object) -> int:
    bits = part
    if isinstance(part, str):
        try:
            bits = int(part)
        except ValueError:
            bits = None
    if isinstance(bits, bool) or not isinstance(bits, int) or not (1 <= bits <= MAX_BITS or bits == FULL):
        raise ValueError(f"takes whole numbers from 1 to {MAX_BITS}, or {FULL} for full precision; not {part!r}")
    return bits


class _Section(BaseModel):
    """What every table of settings shares: frozen, finite numbers, no unknown names, no flags in place of numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_flags(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("takes a number or a word, not true or false")
        return value


class SslConfig(_Section):
    """The self-supervised objective (``ssl.*``)."""

    temperature: Positive = 0.5
    """tau of InfoNCE (Sec. 2)."""


class ServerConfig(_Section):
    """The server's work on its buffer (``server.*``)."""

    dequantize_epochs: Epochs = 1
    """Full-precision fine-tuning epochs of every received model."""
    requantize_epochs: Epochs = 1
    """Low-bit fine-tuning epochs of the aggregated model, once per bitwidth."""
    lr: MaybePositive = None
    """Learning rate on the server; by default the clients'."""
    optimizer: Literal["none", "momentum", "adam"] = "none"
    """What the server does with the aggregate: takes it, or steps towards it with momentum or Adam (Reddi et al. 2021)."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of ``server.optimizer``: beta of momentum, beta1 of Adam."""
    optimizer_lr: MaybePositive = None
    """Of ``server.optimizer``: its step size; by default 1 for momentum and 0.01 for Adam."""
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Moving average of the aggregate over rounds: the share of itself that it keeps in a round; 0 is none."""


class AggregationConfig(_Section):
    """How received models are weighted (``aggregation.*``)."""

    temperature: Positive = 1.0
    """T of ``p = softmax(-L_DQ / T)``; the paper's is 1."""


class LowBitConfig(_Section):
    """Readings of low-bit training (``lowbit.*``); see ``LowBitOptions`` and ``LowBitSGD``."""

    weights: Literal["level", "value", "literal"] = "level"
    """What enters a convolution."""
    rule: Literal["stored", "residual", "latent"] = "stored"
    """What a client keeps per weight."""
    scale: Literal["max", "round", "ema"] = "round"
    """What a layer's scale does between rounds."""
    rounding: Literal["nearest", "stochastic"] = "stochastic"
    """Rounding of the weight update."""
    activation_clip: Positive = 4.0
    """c of the activation ``clip(z / c, 0, 1)``."""


class FedProxConfig(_Section):
    """Of ``algorithm = "fed_prox"`` (``fedprox.*``)."""

    mu: Annotated[float, Field(ge=0)] = 0.01
    """Weight of the proximal term ``mu/2 |w - w_received|^2``."""


class EvaluationConfig(_Section):
    """What is measured, and how often (``evaluation.*``)."""

    knn_every: Epochs = 1
    """Rounds between kNN monitors of the aggregated model; 0 is never."""
    probe_images: MaybeCount = None
    """Limit on the training images of the closing linear probe; by default all."""
    classifier: Literal["regression", "sgd"] = "regression"
    """How a client's s-bit classifier is made: ``regression`` on the codes that its device sees, or ``sgd`` in its bits."""


def _range(value: object) -> object:
    """On the command line, a range is two numbers with a comma between them."""
    return tuple(part.strip() for part in value.strip("[]() ").split(",")) if isinstance(value, str) else value


MaybeShare = Annotated[Annotated[float, Field(ge=0, le=1)] | None, BeforeValidator(_none)]
MaybeRange = Annotated[Annotated[tuple[Positive, Positive], BeforeValidator(_range)] | None, BeforeValidator(_none)]


class ViewsConfig(_Section):
    """What a view of an image may change (``views.*``); what is not set is the preset's (``fedqssl.ssl.presets``)."""

    preset: Literal["objects", "signs", "textures", "documents", "none"] = "objects"
    """The kind of images: ``objects`` (SimCLR's views), ``signs`` (large crops, nothing mirrored), ``textures`` (small crops),
    ``documents`` (as signs, colours do not count), ``none`` (crops alone)."""
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
    hue: Annotated[Annotated[float, Field(ge=0, le=0.5)] | None, BeforeValidator(_none)] = None
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


class RunConfig(_Section):
    """Everything that a run is told.

    Example:
        >>> RunConfig(clients=3, bits="4,6,8").bits
        (4, 6, 8)
    """

    data: Word = "scenes"
    """Dataset by name (``fedqssl list datasets``), or ``folder:PATH`` or ``parquet:PATH``."""
    data_dir: MaybePath = None
    """Where official archives are, or are downloaded to."""
    images: MaybeCount = None
    """Limit on the training images used; by default all."""
    on_bad: Literal["error", "skip"] = "error"
    """A corrupt image is an error that names it, or is left out with a warning."""
    clients: Count = 10
    """Number of clients; if only ``bits`` is given, as many as it lists."""
    bits: tuple[int, ...] = Field(default=(8,), validate_default=True)
    """Bitwidth of each client, or one for all."""
    devices: MaybePath = None
    """Device table (docs/cost.md): ``bits`` then become the most that each device can afford, as ``fedqssl plan`` says."""
    partition: Literal["iid", "dirichlet", "classes", "skew", "natural"] = "dirichlet"
    """How images are dealt to clients (``fedqssl list partitions``)."""
    beta: Positive = 0.1
    """Of ``partition = "dirichlet"``: small is skewed."""
    classes_per_client: Count = 2
    """Of ``partition = "classes"``."""
    minority: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Of ``partition = "skew"``: share of each class spread over clients that do not own it."""
    buffer_ratio: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share of the training images that becomes the server's unlabeled buffer D_g."""

    algorithm: Word = "fed_qssl"
    """By name (``fedqssl list algorithms``)."""
    objective: Literal["simclr", "simsiam", "dcl", "vicreg"] = "simclr"
    """Self-supervised objective (``fedqssl list objectives``)."""
    model: Word = "resnet18"
    """By name (``fedqssl list models``), or ``package.module:Class``."""
    width: Count = 16
    """Channels of the model's first stage."""

    rounds: Count = 10
    """Communication rounds."""
    local_epochs: Count = 1
    """E: epochs of a client between two rounds."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Images in a batch; each gives two views."""
    lr: Positive = 0.3
    """Learning rate of the clients' SGD."""
    lr_schedule: Literal["constant", "cosine", "step"] = "constant"
    """Over rounds: ``cosine`` to zero, or ``step``: x0.3 at 30, 60 and 90%."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that take part in a round."""
    min_clients: Count = 1
    """A round with fewer valid updates is an error."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Of everything random."""
    threads: Count = 1
    """Torch threads of each role."""
    workers: Count = 2
    """Processes that train clients at the same time."""
    engine: Word = "in_process"
    """What carries the messages: ``in_process``, or ``flower-sim`` for Flower's simulation on Ray."""
    client_cpus: Positive = 1.0
    """Of ``engine = "flower-sim"``: cores that Ray sets aside for one client."""
    deadline: MaybePositive = None
    """Seconds after which a round goes on without the clients that have not replied, where messages travel."""
    track: Literal["none", "tensorboard", "mlflow", "wandb"] = "none"
    """Where else each round's figures go; needs the extra of the same name."""

    ssl: SslConfig = SslConfig()
    server: ServerConfig = ServerConfig()
    aggregation: AggregationConfig = AggregationConfig()
    lowbit: LowBitConfig = LowBitConfig()
    fedprox: FedProxConfig = FedProxConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    views: ViewsConfig = ViewsConfig()
    features: Literal["pooled", "grid2", "stages"] = "pooled"
    """What probes, neighbours and devices see of the model: its last maps averaged, averaged by quarters, or beside those of a
    stage in the middle."""

    @model_validator(mode="before")
    @classmethod
    def _known_names(cls, values: Any) -> Any:
        """Accept dotted keys; refuse unknown ones with the nearest name; a list of bits alone sets ``clients``."""
        if not isinstance(values, Mapping):
            return values
        given = flat({name: _tables(value) for name, value in values.items()})
        check_names(given)
        if "bits" in given and "clients" not in given:
            bits = parse_bits_named(given["bits"])
            given["clients"] = len(bits) if len(bits) > 1 else cls.model_fields["clients"].default
        return nested(given)

    @field_validator("bits", mode="before")
    @classmethod
    def _bits(cls, value: object) -> tuple[int, ...]:
        return parse_bits(value)

    @model_validator(mode="after")
    def _one_each(self) -> RunConfig:
        """One bitwidth for each client; a single one is repeated."""
        if len(self.bits) not in (1, self.clients):
            raise ValueError(
                f"bits lists {len(self.bits)} bitwidths for {self.clients} clients; give 1 for all or {self.clients}"
            )
        if self.min_clients > self.clients:
            raise ValueError(f"min_clients = {self.min_clients} is more than the {self.clients} clients there are")
        if len(self.bits) != self.clients:
            object.__setattr__(self, "bits", self.bits * self.clients)  # validation ends here: frozen from now on
        return self

    def participants(self, clients: int) -> int:
        """Clients of a round: ``ceil(fraction * clients)``, at least ``min_clients``."""
        share = math.ceil(round(self.fraction * clients, 9))  # 0.07 of 100 is 7, not 7.000000000000001
        return max(share, min(self.min_clients, clients))

    def bits_for(self, names: Sequence[str]) -> dict[str, int]:
        """Bitwidth of each client by name, in the order of ``bits``.

        With ``partition = "natural"`` the data decide how many clients there are; one bitwidth for all then serves any number.

        Raises:
            ConfigError: if the bitwidths differ and are not as many as the names.
        """
        if len(set(self.bits)) == 1:
            return dict.fromkeys(names, self.bits[0])
        if len(names) != len(self.bits):
            raise ConfigError(
                f"the data have {len(names)} clients, but bits lists {len(self.bits)}; give 1 or {len(names)}"
            )
        return dict(zip(names, self.bits, strict=True))


def parse_bits_named(value: object) -> tuple[int, ...]:
    """As :func:`parse_bits`, with the setting's name in front of errors."""
    try:
        return parse_bits(value)
    except ValueError as error:
        raise ValueError(f"bits {error}") from None


def known_keys() -> list[str]:
    """All settings, dotted: ``rounds``, ``ssl.temperature``, ..."""
    return list(flat({name: _tables(field.default) for name, field in RunConfig.model_fields.items()}))


def _tables(value: object) -> object:
    return value.model_dump() if isinstance(value, BaseModel) else value


def check_names(given: Iterable[str]) -> None:
    """Raise an error with the nearest name for the first dotted key that is not a setting."""
    known = known_keys()
    for key in given:
        inside = [k for k in known if k.startswith(f"{key}.")]
        if inside:
            raise ValueError(f"{key!r} is a table, not a value; its settings are {', '.join(inside)}")
        if key not in known:
            raise ValueError(f"unknown setting {key!r}{nearest_key(key, known)}")


def readable(error: ValidationError) -> str:
    """Pydantic's findings as one line of ``name what-is-wrong, not value``."""
    lines = []
    for finding in error.errors():
        name = ".".join(str(part) for part in finding["loc"] if not str(part).startswith(("function-", "constrained-")))
        text = finding["msg"].removeprefix("Value error, ")
        if finding["type"] == "value_error":
            lines.append(f"{name} {text}".strip())
        else:
            text = text.removeprefix("Input ").removeprefix("String ").split(", unable to parse")[0]
            lines.append(f"{name} {text}, not {finding['input']!r}")
    return "; ".join(lines)


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """A checked configuration from plain or dotted keys.

    Raises:
        ConfigError: one line that names every wrong setting.
    """
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(readable(error)) from None


__all__ = ["ConfigError", "RunConfig", "known_keys", "make_config", "parse_bits", "readable"]
