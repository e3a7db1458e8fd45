"""``fedqssl reproduce attacks``: which runs, the table from made-up ones, and real ones at scale ``smoke``."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fake_runs import fake_run
from fedqssl.cli.main import app
from fedqssl.config import load_run_config
from fedqssl.federated.protocol import protocol
from fedqssl.runs import lifecycle, resume
from fedqssl.studies.attacks import ATTACKS
from fedqssl.studies.paper.attack_table import fill_attacks
from fedqssl.studies.paper.catalogue import ATTACK_TABLE, EXPERIMENTS
from fedqssl.studies.paper.plan import Plan
from fedqssl.studies.paper.reproduce import request
from fedqssl.studies.paper.scales import SMALL, SMOKE

runner = CliRunner()


def test_every_method_under_every_attack_differs_in_that_alone():
    plan = Plan(SMALL, {})
    cells = plan.cells(ATTACK_TABLE, [0])
    assert len(cells) == len({c.name for c in cells}) == 9 * len(ATTACKS) == 108
    one, two = (
        next(c.config for c in cells if c.name == f"attacks-fed_simclr-{a}-seed0") for a in ("none", "sign_flip")
    )
    assert one.model_copy(update={"engine": two.engine}) == two and two.engine == "attack-sign_flip"
    assert one.fraction == 1 and one.clients == 10 and len(set(one.bits)) == 4
    trusted = next(c.config for c in cells if c.name == "attacks-fltrust-none-seed0")
    assert trusted.algorithm == "fed_qssl_plus" and trusted.aggregation.robust == "fltrust"
    assert (trusted.aggregation.batch_norm, one.aggregation.batch_norm) == ("buffer", "average")


def test_requests():
    wanted = request(["attacks"], "small", only=["fltrust", "fed_qssl", "none", "alie"])
    assert {c.name for c in wanted.all_cells()} == {
        f"attacks-{m}-{a}-seed0" for m in ("fltrust", "fed_qssl") for a in ("none", "alie")
    }
    assert len(request(["attacks"], "small", only=["ipm"]).all_cells()) == 9
    assert ATTACK_TABLE.name not in {e.name for e in request(["all"], "smoke").experiments}
    assert {e.name for e in request(["all", "attacks"], "smoke").experiments} == set(EXPERIMENTS)
    with pytest.raises(ValueError, match="did you mean 'sign_flip'"):
        request(["attacks"], "small", only=["sign_flp"])
    with pytest.raises(ValueError, match="attacks is not run at scale paper"):
        request(["attacks"], "paper")
    with pytest.raises(ValueError, match="attacks are run on embedded images; leave out --data"):
        request(["attacks"], "small", data=["parquet:x"])


def test_losses_by_hand(tmp_path):
    """Clean 0.8 and 0.7 at two seeds, flipped 0.5 and 0.6: 20 points lost on average; missing runs are dashes."""
    plan = Plan(SMOKE, {})
    rows = {(row.method, row.attack): row for row in ATTACK_TABLE.rows}
    figures = {("fed_simclr", "none"): (0.8, 0.7), ("fed_simclr", "sign_flip"): (0.5, 0.6), ("krum", "alie"): (0.4,)}
    figures[("krum", "backdoor")] = (0.6,)
    for key, values in figures.items():
        for seed, value in enumerate(values):
            cell = plan.attacked(rows[key], seed)
            fake_run(cell.folder(tmp_path), cell.config, value)
    for (method, attack), rate in {("krum", "backdoor"): 0.75, ("fed_simclr", "none"): 0.02}.items():
        cell = plan.attacked(rows[method, attack], 0)
        (cell.folder(tmp_path) / "backdoor.json").write_text(json.dumps({"success": rate}))
    found = fill_attacks(ATTACK_TABLE, plan, tmp_path)
    flipped = next(r for r in found.records() if r["attack"] == "sign_flip")
    assert flipped["global"] == 55 and flipped["loss"]["mean"] == 20 and flipped["loss"]["low"] < 0
    grid = found.grid()
    assert grid.columns == ("Server", "none", "sign flip", "ALIE", "backdoor")
    assert grid.groups[0] == (
        ("Fed-SimCLR", "75.00 ± 7.07", "55.00 ± 7.07 (-20.0)", "–", "–"),
        ("Fed-QSSL+ with krum", "–", "–", "40.00", "60.00; trigger 75%"),
    )
    assert any("2 to 2% where nobody planted" in note for note in grid.notes)
    assert {r["attack"]: r.get("trigger") for r in found.records()}["backdoor"] == 75
    assert len(found.to_json()["missing"]) == 9 * len(ATTACKS) - 4
    assert {p.name for p in found.write(tmp_path)} == {f"attacks.{e}" for e in ("json", "md", "csv", "tex")}


def test_the_committed_table_is_that_of_the_committed_cells():
    """And of this version's settings. Of every cell its accuracies are kept, one line each; the folders were too many."""
    out = Path(__file__).parents[3] / "docs" / "bench" / "attacks"
    table = json.loads((out / "attacks.json").read_text())
    with (out / "cells.csv").open(newline="") as file:
        accuracies = {line["cell"]: 100 * float(line["global"]) for line in csv.DictReader(file)}
    rows = [row for row in table["rows"] if row["seed_list"]]
    made = sum(len(row["seed_list"]) for row in rows)
    assert made == len(accuracies) > 100
    for row in rows:
        name = row["algorithm"] if row["robust"] == "none" else row["robust"]
        cells = [accuracies[f"attacks-{name}-{row['attack']}-seed{seed}"] for seed in row["seed_list"]]
        assert row["global"] == pytest.approx(sum(cells) / len(cells), abs=1e-3)
    now = {c.name: protocol(c.config) for c in Plan(SMALL, {}).cells(ATTACK_TABLE, [0])}
    assert {row["protocol"] for row in rows} <= set(now.values())


def test_for_real_in_two_processes(tmp_path):
    """Two cells in worker processes, then collected; their folders name the attack and other commands do not know it."""
    words = ["reproduce", "attacks", "--scale", "smoke", "--only", "embedding,none,negative_statistics"]
    more = ["--out", str(tmp_path), "--jobs", "2"]
    result = runner.invoke(app, [*words, *more])
    assert result.exit_code == 0, result.output
    rows = {r["attack"]: r for r in json.loads((tmp_path / "attacks.json").read_text())["rows"]}
    assert rows.keys() == {"none", "negative_statistics"} and rows["negative_statistics"]["loss"] is not None
    folder = tmp_path / "cells" / "attacks-embedding-negative_statistics-seed0"
    assert load_run_config(folder).engine == "attack-negative_statistics"
    (line,) = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    assert list(line["rejected"]) == ["client-00"] and "a variance of -1e+03" in line["rejected"]["client-00"]
    before = (tmp_path / "attacks.md").read_text()
    (tmp_path / "attacks.md").unlink()
    result = runner.invoke(app, [*words, *more, "--collect"])
    assert result.exit_code == 0 and (tmp_path / "attacks.md").read_text() == before


def test_only_the_study_knows_its_engines(tmp_path, monkeypatch):
    plain = {name: made for name, made in lifecycle.ENGINES.items() if not name.startswith("attack-")}
    assert set(plain) == {"in_process", "flower-sim"}
    monkeypatch.setattr(lifecycle, "ENGINES", plain)
    cell = Plan(SMOKE, {}).attacked(ATTACK_TABLE.rows[1], 0)
    fake_run(tmp_path / "run", cell.config)
    (tmp_path / "run" / "result.json").unlink()
    with pytest.raises(lifecycle.RunError, match="unknown engine 'attack-sign_flip'"):
        resume(tmp_path / "run")
