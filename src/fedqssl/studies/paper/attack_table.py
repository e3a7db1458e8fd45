"""The table of attacks from finished cells: global accuracy, and what an attack costs against the same run without it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from fedqssl.config.load import accuracy_settings
from fedqssl.federated.protocol import protocol
from fedqssl.runs.cells import read_json
from fedqssl.runs.measured import Difference, Measured, Spread, measure, paired, rounded, seeds_in
from fedqssl.runs.text_table import Grid, accuracy, bits_text, to_csv, write_texts
from fedqssl.studies.attacks import ATTACKS
from fedqssl.studies.attacks.engine import BACKDOOR, BACKDOOR_FILE
from fedqssl.studies.paper.catalogue import AttackedRow, AttackTable
from fedqssl.studies.paper.describe import protocol_line, scale_line
from fedqssl.studies.paper.plan import Plan

NONE = "none"


@dataclass(frozen=True)
class Attacked:
    """The table with its numbers."""

    table: AttackTable
    plan: Plan
    found: dict[AttackedRow, Measured]
    triggers: dict[AttackedRow, Spread]
    """How often the backdoor's trigger works, in percent; where nobody planted it, by chance."""

    def loss(self, row: AttackedRow) -> Difference | None:
        """The same server part without an attack minus this row, paired by seed."""
        clean = self.found.get(replace(row, attack=NONE))
        return None if clean is None or row.attack == NONE else paired(clean.globally, self.found[row].globally)

    def records(self) -> list[dict[str, Any]]:
        """The rows of ``attacks.json``; percentages, rounded to four decimals."""
        return [self._record(row) for row in self.table.rows if row in self.found]

    def _record(self, row: AttackedRow) -> dict[str, Any]:
        mine, loss = self.found[row], self.loss(row)
        return {
            **row.to_json(),
            **rounded(mine.accuracies()),
            "loss": None if loss is None else rounded(asdict(loss)),
            **rounded({"trigger": self.triggers[row].mean} if row in self.triggers else {}),
            "seed_list": sorted(mine.runs),
            "protocol": protocol(self.plan.attacked(row, 0).config),
        }

    def to_json(self) -> dict[str, Any]:
        """The contents of ``attacks.json``."""
        config = self.plan.attacked(self.table.rows[0], 0).config
        return {
            "name": self.table.name,
            "title": self.table.title,
            "scale": self.plan.scale.name,
            "rows": self.records(),
            "missing": [row.to_json() for row in self.table.rows if row not in self.found],
            "protocol": protocol_line(config),
            "settings": accuracy_settings(config),
        }

    def grid(self) -> Grid:
        """Server parts by attacks: accuracy, and points lost to the attack in brackets."""
        attacks = [name for name in self.table.attacks if any(row.attack == name for row in self.found)]
        methods = [row for row in self.table.rows if row.attack == NONE]
        lines = [
            (row.title, *(self._cell(replace(row, attack=attack)) for attack in attacks))
            for row in methods
            if any(replace(row, attack=attack) in self.found for attack in attacks)
        ]
        bits = bits_text(self.plan.scale.bits[self.table.precision])
        return Grid(
            f"{self.table.name}: {self.table.title}, bits {bits} ({self.plan.scale.name})",
            ("Server", *(ATTACKS[name].title for name in attacks)),
            (tuple(lines),),
            self._notes(),
            self.table.name,
        )

    def _cell(self, row: AttackedRow) -> str:
        if row not in self.found:
            return "–"
        spread, loss = self.found[row].globally, self.loss(row)
        lost = "" if loss is None else f" ({-loss.mean:+.1f})"
        trigger = self.triggers.get(row)
        works = "" if trigger is None or row.attack != BACKDOOR else f"; trigger {trigger.mean:.0f}%"
        return f"{accuracy(spread.mean, spread.deviation)}{lost}{works}"

    def _notes(self) -> tuple[str, ...]:
        config = self.plan.attacked(self.table.rows[0], 0).config
        seeds = sorted({seed for mine in self.found.values() for seed in mine.runs})
        return (
            "Global accuracy in percent, mean ± deviation over seeds; in brackets the difference from the run without attack.",
            "The hostile clients are a fifth of all: one of the fewest bits, and, of ten, one of the most.",
            f"Seeds: {', '.join(map(str, seeds))}.",
            *self._by_chance(),
            scale_line(self.plan)
            if self.plan.scale.name == "smoke"
            else "Embedded images, all clients in every round.",
            f"{protocol_line(config)}.",
        )

    def _by_chance(self) -> tuple[str, ...]:
        clean = [spread.mean or 0.0 for row, spread in self.triggers.items() if row.attack == NONE]
        if not clean or not any(row.attack == BACKDOOR for row in self.triggers):
            return ()
        rates = f"{min(clean):.0f} to {max(clean):.0f}%"
        return (f"trigger: images of other classes taken for its class; {rates} where nobody planted the backdoor.",)

    @property
    def empty(self) -> bool:
        """Whether no run is finished."""
        return not self.found

    def write(self, out: Path) -> list[Path]:
        """``attacks.json``, ``.md``, ``.csv``, ``.tex``."""
        texts = {
            "json": json.dumps(self.to_json(), indent=1) + "\n",
            "md": self.grid().markdown(),
            "csv": to_csv([_line(record) for record in self.records()]),
            "tex": self.grid().latex(),
        }
        return write_texts(self.table.name, texts, out)


def _line(record: dict[str, Any]) -> dict[str, Any]:
    """A record of the CSV: the loss in columns of its own."""
    lost = record["loss"] or {}
    return {
        **{k: v for k, v in record.items() if not isinstance(v, dict | list) and k != "loss"},
        "seed_list": " ".join(map(str, record["seed_list"])),
        "loss": lost.get("mean"),
        "loss_low": lost.get("low"),
        "loss_high": lost.get("high"),
    }


def fill_attacks(table: AttackTable, plan: Plan, out: Path) -> Attacked:
    """The table's finished runs."""
    seeds = seeds_in(out)
    found = {row: measure([plan.attacked(row, seed) for seed in seeds], out) for row in table.rows}
    done = {row: mine for row, mine in found.items() if mine.runs}
    rates = {row: _rates(row, mine, plan, out) for row, mine in done.items()}
    return Attacked(table, plan, done, {row: spread for row, spread in rates.items() if spread.count})


def _rates(row: AttackedRow, mine: Measured, plan: Plan, out: Path) -> Spread:
    """How often the trigger worked, by seed, in percent."""
    paths = {seed: plan.attacked(row, seed).folder(out) / BACKDOOR_FILE for seed in mine.runs}
    return Spread({seed: 100 * float(read_json(path)["success"]) for seed, path in paths.items() if path.is_file()})


__all__ = ["Attacked", "fill_attacks"]
