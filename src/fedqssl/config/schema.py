"""The settings of a run: names, types, defaults and limits; ``sections`` has its tables."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, field_validator, model_validator

from fedqssl.accelerators import check_name
from fedqssl.config.keys import flat, nearest_key, nested, none, one_of_two
from fedqssl.config.sections import (
    AggregationConfig,
    Count,
    DistillConfig,
    EvaluationConfig,
    FedProxConfig,
    LowBitConfig,
    MaybeCount,
    MaybePath,
    MaybePositive,
    Positive,
    PrivacyConfig,
    Section,
    ServerConfig,
    SslConfig,
    ViewsConfig,
    Word,
)

FULL = 32
MAX_BITS = 16
MAX_IMAGE_SIZE = 512
BUFFER_IMAGES = 500
MOST_CLIENTS = 1_000_000


class ConfigError(ValueError):
    """A setting is wrong or unknown; the message names it and says what is allowed."""


def parse_bits(value: object) -> tuple[int, ...]:
    """``"4,6,8"``, ``"4x500,8x500"``, ``[4, 6, 8]`` or ``8`` -> bitwidths, each 1..16 or 32.

    Raises:
        ValueError: the message says what is allowed and what was found.
    """
    if isinstance(value, str):
        words = (part.strip() for part in value.strip().strip("[]").split(","))
        parts: list[object] = [part for word in words if word for part in _repeated(word)]
    elif isinstance(value, Sequence):
        parts = list(value)
    else:
        parts = [value]
    if not parts:
        raise ValueError("needs one bitwidth for all clients or one for each, like 4,6,8; found none")
    return tuple(_one_bitwidth(part) for part in parts)


def _repeated(word: str) -> list[str]:
    """``4x500``: 500 clients of 4 bits."""
    bits, _, count = word.partition("x")
    return [bits] * int(count) if count.isdecimal() and 0 < int(count) <= MOST_CLIENTS else [word]


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


class RunConfig(Section):
    """All settings of a run.

    Example:
        >>> RunConfig(clients=3, bits="4,6,8").bits
        (4, 6, 8)
    """

    data: Word = "scenes"
    """Dataset by name (``fedqssl list datasets``), or ``folder:PATH``, ``parquet:PATH``, ``hf:PATH_OR_NAME``, ``arrays:PATH``."""
    data_dir: MaybePath = None
    """Where official archives are stored or downloaded to."""
    images: MaybeCount = None
    """Limit on the training images used; by default all."""
    image_size: Annotated[int, Field(ge=8, le=MAX_IMAGE_SIZE)] = 32
    """Side that every image is resized to (centre square): 64 or 96 keep finer details and cost 4 or 9 times as much."""
    image_contrast: Literal["as_is", "stretch"] = "as_is"
    """``stretch``: every image gets the same brightness and contrast before a network sees it, in training, evaluation and device
    files; for photos in changing light. Supervised algorithms take images as they are."""
    on_bad: Literal["error", "skip"] = "error"
    """Whether a corrupt image is an error (which names it) or is skipped with a warning."""
    group: Literal["none", "prefix", "folder"] = "none"
    """For ``folder:``: photos of one burst (names with the same prefix, or one innermost folder) are never split."""
    clients: Count = 10
    """Number of clients; if only ``bits`` is given, the length of that list."""
    bits: tuple[int, ...] = Field(default=(8,), validate_default=True)
    """Bitwidth of each client, or one for all; ``4x500,8x500`` stands for 500 clients each."""
    devices: MaybePath = None
    """Device table (docs/cost.md): ``bits`` then become the most that each device can afford, as ``fedqssl plan`` finds."""
    partition: Literal["iid", "dirichlet", "classes", "skew", "natural"] = "dirichlet"
    """How images are distributed to clients (``fedqssl list partitions``)."""
    beta: Positive = 0.1
    """For ``partition = "dirichlet"``: the smaller, the more skewed."""
    classes_per_client: Count = 2
    """For ``partition = "classes"``."""
    minority: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """For ``partition = "skew"``: the share of each class that is spread over the clients that do not own it."""
    buffer_ratio: Annotated[Annotated[float, Field(gt=0, lt=1)] | None, BeforeValidator(none)] = 0.1
    """Share of the training images that goes to the server's unlabeled buffer D_g; none if ``buffer`` is given."""
    buffer: Annotated[Word | None, BeforeValidator(none)] = None
    """Instead of ``buffer_ratio``: data of the server's own for its buffer, written as for ``data``; all training images are then
    the clients'."""
    buffer_images: Count = BUFFER_IMAGES
    """For ``buffer``: how many of its images, always the same ones; all if it has fewer."""
    buffer_draw: Literal["first", "last"] = "first"
    """For ``buffer_ratio``: whether the buffer is drawn before the clients or after them. With ``last``, clients are the same for
    every ratio, but for the images that the buffer takes."""

    algorithm: Word = "fed_qssl"
    """By name (``fedqssl list algorithms``)."""
    objective: Literal["simclr", "simsiam", "dcl", "vicreg", "byol"] = "simclr"
    """Self-supervised objective (``fedqssl list objectives``)."""
    model: Word = "resnet18"
    """Backbone by name (``fedqssl list models``), or ``package.module:Class``."""
    width: Count = 16
    """Channels of the model's first stage."""

    rounds: Count = 10
    """Communication rounds."""
    local_epochs: MaybeCount = 1
    """E: epochs that a client trains in each round; none if ``local_steps`` is given."""
    local_steps: MaybeCount = None
    """Instead of ``local_epochs``: steps that a client trains in each round, however many images it has."""
    batch_size: Annotated[int, Field(ge=2)] = 128
    """Images in a batch; each gives two views."""
    lr: Positive = 0.3
    """Learning rate of the clients' SGD."""
    lr_schedule: Literal["constant", "cosine", "step"] = "constant"
    """Over rounds: ``cosine`` to zero, or ``step``: x0.3 at 30, 60 and 90%."""
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that take part in a round."""
    min_clients: Count = 1
    """A round with fewer valid uploads is an error."""
    clusters: Count = 1
    """Models that the server trains, each for clients with one kind of images (docs/how-to/clusters.md); 1: one for all."""
    clusters_check: MaybeCount = None
    """For ``clusters``: after so many rounds in its cluster a client is looked at again, and may move; by default never."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of all random choices."""
    threads: Count = 1
    """Torch threads of each worker."""
    workers: Count = 2
    """Processes that train clients at the same time, on the CPU."""
    device: Word = "cpu"
    """What clients and server compute on: ``cpu``, ``cuda`` (all GPUs), ``cuda:N``, or ``auto`` (GPUs if there are any).
    ``mps`` is refused: it lacks float64. Another device may give other bytes (docs/how-to/gpu.md)."""
    workers_per_gpu: Count = 1
    """For ``device = "cuda"``: processes on each GPU; they take the place of ``workers``."""
    engine: Word = "in_process"
    """The engine: ``in_process``, or ``flower-sim`` for Flower's simulation on Ray."""
    client_cpus: Positive = 1.0
    """For ``engine = "flower-sim"``: cores that Ray reserves for each client."""
    client_gpus: Annotated[float, Field(ge=0)] = 0.0
    """For ``engine = "flower-sim"``: GPUs that Ray reserves for each client, like 0.5; with ``device = "cuda"``, 0 stands for
    1 / ``workers_per_gpu``."""
    deadline: MaybePositive = None
    """Seconds after which a round continues without the clients that have not replied (Flower; with ``clock``, simulated ones).
    By default real machines have four times as long as the slowest of them usually takes, at least five minutes; a simulation
    waits."""
    clock: MaybePath = None
    """Device table (docs/cost.md) of a simulated clock: its speeds give rounds their seconds; late clients miss ``deadline``."""
    availability: MaybePath = None
    """For ``clock``: a CSV file of client,start,end that says when clients are there, in simulated seconds; by default always."""
    track: Literal["none", "tensorboard", "mlflow", "wandb"] = "none"
    """Tracker that also receives each round's figures; needs the extra of the same name."""

    ssl: SslConfig = SslConfig()
    server: ServerConfig = ServerConfig()
    aggregation: AggregationConfig = AggregationConfig()
    lowbit: LowBitConfig = LowBitConfig()
    fedprox: FedProxConfig = FedProxConfig()
    distill: DistillConfig = DistillConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    views: ViewsConfig = ViewsConfig()
    features: Literal["pooled", "grid2", "stages", "pyramid"] = "pooled"
    """What probes, neighbours and devices see of the model: its last maps averaged, averaged by quarters, beside a grid of a
    stage in the middle, or beside a coarse and a fine grid of it (``pyramid``), whose weights the labels decide."""

    @model_validator(mode="before")
    @classmethod
    def _known_names(cls, values: Any) -> Any:
        """Accept dotted keys; reject unknown ones and suggest the nearest name; a list of bits alone sets ``clients``."""
        if not isinstance(values, Mapping):
            return values
        given = flat({name: _tables(value, given=True) for name, value in values.items()})
        check_names(given)
        if "bits" in given and "clients" not in given:
            bits = parse_bits_named(given["bits"])
            given["clients"] = len(bits) if len(bits) > 1 else cls.model_fields["clients"].default
        return nested(one_of_two(given))

    @field_validator("device", mode="after")
    @classmethod
    def _device(cls, value: str) -> str:
        return check_name(value)

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
        if self.buffer is None and self.buffer_images != BUFFER_IMAGES:
            raise ValueError("buffer_images is for buffer=DATA; for a share of data's own images use buffer_ratio")
        if self.availability is not None and self.clock is None:
            raise ValueError("availability is in seconds of the simulated clock; give clock=TABLE, too")
        if self.min_clients > self.clients:
            raise ValueError(f"min_clients = {self.min_clients} is more than the number of clients, {self.clients}")
        if len(self.bits) != self.clients:
            object.__setattr__(self, "bits", self.bits * self.clients)  # validation ends here: frozen from now on
        return self

    @property
    def local_work(self) -> str:
        """What a client trains in a round, in words: ``2 epochs`` or ``40 steps``."""
        count, what = (self.local_steps, "step") if self.local_epochs is None else (self.local_epochs, "epoch")
        return f"{count} {what}{'' if count == 1 else 's'}"

    def participants(self, clients: int) -> int:
        """Clients of a round: ``ceil(fraction * clients)``, at least ``min_clients``."""
        share = math.ceil(round(self.fraction * clients, 9))  # 0.07 of 100 is 7, not 7.000000000000001
        return max(share, min(self.min_clients, clients))

    def bits_for(self, names: Sequence[str]) -> dict[str, int]:
        """Bitwidth of each client by name, in the order of ``bits``.

        With ``partition = "natural"`` the data determine the number of clients; a single bitwidth then applies to all of them.

        Raises:
            ConfigError: if the bitwidths differ and there is not one for each name.
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


def _tables(value: object, given: bool = False) -> object:
    return value.model_dump(exclude_unset=given) if isinstance(value, BaseModel) else value


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
    """Pydantic's errors on one line: ``name what-is-wrong, not value``."""
    lines = []
    for finding in error.errors():
        name = ".".join(str(part) for part in finding["loc"] if not str(part).startswith(("function-", "constrained-")))
        text = finding["msg"].removeprefix("Value error, ")
        if finding["type"] == "value_error":
            lines.append(f"{name} {text}".strip())
        else:
            text = text.removeprefix("Input ").removeprefix("String ").split(", unable to parse")[0]
            lines.append(f"{name} {text}, not {_short(finding['input'])}")
    return "; ".join(lines)


def _short(value: object) -> str:
    """A value in an error; of a long one its type, or its beginning."""
    if not isinstance(value, (str, int, float, list, tuple, dict, type(None))):
        return f"a value of type {type(value).__name__}"
    text = repr(value) if isinstance(value, str) else " ".join(reprlib.repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def make_config(values: Mapping[str, Any]) -> RunConfig:
    """A checked configuration from plain or dotted keys.

    Raises:
        ConfigError: one line that names every invalid setting.
    """
    try:
        return RunConfig.model_validate(dict(values))
    except ValidationError as error:
        raise ConfigError(readable(error)) from None


__all__ = ["ConfigError", "RunConfig", "known_keys", "make_config", "parse_bits", "readable"]
