"""What the tables and figures of the paper consist of; and our own, which ``table_plus`` leads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from fedqssl.federated.algorithms import get_algorithm
from fedqssl.studies.attacks import ATTACKS
from fedqssl.studies.paper import paper

SUPERVISED = ("fed_avg", "fed_prox", "fed_paq")
SELF_SUPERVISED = ("fed_simclr", "fed_simsiam", "fed_qssl")
FULL = ("fed_simclr", "fed_qssl")
CONTROLS = ("local_only", "server_only", "central", "untrained")


@dataclass(frozen=True)
class Row:
    """An algorithm at a precision (a key of ``Scale.bits``); ``foreign``: the buffer is not from the clients' dataset."""

    algorithm: str
    precision: str
    foreign: bool = False

    @property
    def title(self) -> str:
        """As the paper prints it."""
        name = get_algorithm(self.algorithm).title
        remarks = (["Full"] if self.precision == "full" else []) + (["foreign buffer"] if self.foreign else [])
        return f"{name} ({', '.join(remarks)})" if remarks else name

    def to_json(self) -> dict[str, object]:
        """Plain values; ``foreign`` only where it holds."""
        return {k: v for k, v in asdict(self).items() if v is not False}


DATASETS = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
"""How titles print the paper's datasets."""
EMBEDDED = ("scenes", "digits")
"""Images that can only stand in for them."""


@dataclass(frozen=True)
class Table:
    """One table: rows in groups that a line separates; the ``title`` leaves out the dataset, which a scale may replace.

    ``method`` is the algorithm that the others are compared with; ``scales`` those at which the table is run, all if empty.
    """

    name: str
    title: str
    dataset: str
    precision: str
    groups: tuple[tuple[Row, ...], ...]
    paper: paper.Accuracies = field(default_factory=dict)
    method: str = "fed_qssl"
    scales: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[Row, ...]:
        """All rows in order."""
        return tuple(row for group in self.groups for row in group)


@dataclass(frozen=True)
class AblationFigure:
    """Accuracy of one or more rows over the values of a setting (``Scale.points``).

    ``counts_server``: the horizontal axis is how many bit operations the server spent in all rounds, by the ledger.
    ``also``: another setting that all its points share, with its value.
    """

    name: str
    title: str
    short: str
    setting: str
    axis: str
    logarithmic: bool = True
    dataset: str = "cifar10"
    rows: tuple[Row, ...] = (Row("fed_qssl", "config1"),)
    counts_server: bool = False
    also: tuple[str, str] | None = None


@dataclass(frozen=True)
class CostFigure:
    """Cost of local training per bit configuration, with local accuracy beside it; ``quantity``: operations or memory."""

    name: str
    short: str
    quantity: str
    dataset: str = "cifar10"
    rows: tuple[Row, ...] = tuple(Row("fed_qssl", p) for p in ("config1", "config2", "full"))

    @property
    def title(self) -> str:
        """With what stands beside it."""
        return f"{self.short[0].lower()}{self.short[1:]}, and local accuracy of Fed-QSSL"


@dataclass(frozen=True)
class AttackedRow(Row):
    """A row with ``aggregation.robust``, and then batch-norm statistics of the buffer; a fifth of its clients attacks."""

    robust: str = "none"
    attack: str = "none"

    @property
    def method(self) -> str:
        """What ``--only`` calls the server part: the word of ``aggregation.robust``, or the algorithm."""
        return self.algorithm if self.robust == "none" else self.robust

    @property
    def title(self) -> str:
        """The algorithm, and what takes the place of its average."""
        title = get_algorithm(self.algorithm).title
        return title if self.robust == "none" else f"{title} with {self.robust}"


@dataclass(frozen=True)
class AttackTable:
    """Server parts (rows) against attacks (columns), on embedded images; not part of ``all``."""

    name: str
    title: str
    methods: tuple[tuple[str, str], ...]
    attacks: tuple[str, ...]
    precision: str = "config1"
    scales: tuple[str, ...] = ("smoke", "small")

    @property
    def rows(self) -> tuple[AttackedRow, ...]:
        """Every method under every attack."""
        return tuple(
            AttackedRow(algorithm, self.precision, robust=robust, attack=attack)
            for algorithm, robust in self.methods
            for attack in self.attacks
        )


Experiment = Table | AblationFigure | CostFigure | AttackTable


CLIENTS = {
    "config1": "20% 4-bit, 30% 6-bit, 30% 8-bit and 20% 12-bit clients",
    "config2": "50% 6-bit and 50% 12-bit clients",
    "low": "30% 2-bit, 30% 3-bit and 40% 4-bit clients (not in the paper)",
}
"""What a precision means, as titles print it."""


def _rows(algorithms: tuple[str, ...], precision: str, foreign: bool = False) -> tuple[Row, ...]:
    return tuple(Row(algorithm, precision, foreign) for algorithm in algorithms)


def _of_paper(name: str, dataset: str, precision: str, algorithms: tuple[str, ...], numbers: paper.Accuracies) -> Table:
    """A table of the paper: its algorithms in low bits, then at full precision, then our controls."""
    groups = (_rows(algorithms, precision), _rows(FULL, "full"), _rows(CONTROLS, precision))
    return Table(name, CLIENTS[precision], dataset, precision, groups, numbers)


def _of_our_own(name: str, precision: str, groups: tuple[tuple[Row, ...], ...]) -> Table:
    """A table about our own algorithm, for runs that are long enough to tell."""
    scales = ("smoke", "medium")
    return Table(name, CLIENTS[precision], "cifar10", precision, groups, method="fed_qssl_plus", scales=scales)


_PLUS = ("fed_qssl_plus", "fed_qssl", "fed_simclr")
_FOREIGN = ("fed_qssl_plus", "fed_qssl", "server_only")

TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        _of_paper("table1", "cifar10", "config1", SUPERVISED + SELF_SUPERVISED, paper.TABLE1),
        _of_paper("table2", "cifar10", "config2", SUPERVISED + SELF_SUPERVISED, paper.TABLE2),
        _of_paper("table3", "cifar100", "config2", SELF_SUPERVISED, paper.TABLE3),
        Table(
            *("table_low", CLIENTS["low"], "cifar10", "low"),
            groups=(_rows(("fed_simclr", "fed_qssl"), "low"), _rows(("server_only", "untrained"), "low")),
        ),
        _of_our_own(
            *("table_plus", "config1"),
            (
                _rows(_PLUS, "config1"),
                _rows(_PLUS, "full"),
                _rows(CONTROLS, "config1"),
                _rows(_FOREIGN, "config1", True),
            ),
        ),
        _of_our_own(
            *("table_plus_low", "low"),
            (_rows(_PLUS, "low"), _rows(("server_only", "untrained"), "low"), _rows(_FOREIGN, "low", True)),
        ),
    )
}


def _over(
    name: str,
    what: str,
    short: str,
    setting: str,
    axis: str,
    logarithmic: bool = True,
    also: tuple[str, str] | None = None,
) -> AblationFigure:
    return AblationFigure(name, f"Fed-QSSL over {what}", short, setting, axis, logarithmic, also=also)


FIGURES: dict[str, AblationFigure | CostFigure] = {
    figure.name: figure
    for figure in (
        CostFigure("figure1", "Bit operations of local training", "operations"),
        CostFigure("figure2", "Memory of local training", "memory"),
        _over(
            "figure3", "the Dirichlet parameter", "Label skew of the clients", "beta", "Dirichlet β (small is skewed)"
        ),
        _over(
            *("figure4", "the size of the server's buffer", "Size of the server's buffer"),
            *("buffer_ratio", "buffer / all training images"),
            also=("buffer_draw", "last"),  # so that all points have the same clients
        ),
        _over(
            "figure5", "the number of local epochs", "Local epochs", "local_epochs", "local epochs E", logarithmic=False
        ),
        AblationFigure(
            "figure_server",
            "what federation adds at equal server work: Fed-QSSL and the server alone",
            "Server work",
            "server.dequantize_epochs",
            "bit operations of the server in all rounds",
            logarithmic=False,
            rows=(Row("fed_qssl", "config1"), Row("server_only", "config1")),
            counts_server=True,
        ),
        _over(
            *(
                "figure_temperature",
                "the temperature of the aggregation weights",
                "Temperature of the aggregation weights",
            ),
            *("aggregation.temperature", "temperature of softmax(-loss / temperature)"),
        ),
    )
}

_ROBUST = ("median", "trimmed", "krum", "clip", "fltrust", "embedding")

ATTACK_TABLE = AttackTable(
    "attacks",
    "hostile clients, a fifth of all",
    (
        *(("fed_qssl_plus", "none"), ("fed_simclr", "none"), ("fed_qssl", "none")),
        *(("fed_qssl_plus", robust) for robust in _ROBUST),
    ),
    tuple(ATTACKS),
)

EXPERIMENTS: Mapping[str, Experiment] = {**TABLES, **FIGURES, ATTACK_TABLE.name: ATTACK_TABLE}


def at_scale(experiment: Experiment, scale: str) -> bool:
    """Whether an experiment is run at this scale."""
    return not isinstance(experiment, Table | AttackTable) or not experiment.scales or scale in experiment.scales


def words_of(experiment: Experiment) -> tuple[str, ...]:
    """What ``--only`` may name: algorithms; of the attacks, server parts and attacks."""
    if isinstance(experiment, AttackTable):
        return tuple(dict.fromkeys([*(row.method for row in experiment.rows), *experiment.attacks]))
    return tuple(row.algorithm for row in experiment.rows)


def chosen(experiment: Experiment, only: frozenset[str] | None) -> tuple[Row, ...]:
    """The rows that ``--only`` names. Of the attacks, server parts and attacks are chosen separately, all if none is named."""
    if only is None:
        return experiment.rows
    if not isinstance(experiment, AttackTable):
        return tuple(row for row in experiment.rows if row.algorithm in only)
    attacks = only & set(experiment.attacks) or set(experiment.attacks)
    methods = only & {row.method for row in experiment.rows} or {row.method for row in experiment.rows}
    return tuple(row for row in experiment.rows if row.attack in attacks and row.method in methods)


def datasets_of(experiment: Experiment) -> tuple[str, ...]:
    """The paper's datasets that an experiment uses: its own, and CIFAR-100 for foreign buffers; attacks need none."""
    if isinstance(experiment, AttackTable):
        return ()
    foreign = any(row.foreign for row in experiment.rows)
    return (experiment.dataset, "cifar100") if foreign else (experiment.dataset,)
