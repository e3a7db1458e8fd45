"""Numbers of tables by hand, and how they are written."""

import re
from pathlib import Path

import pytest

from fake_runs import fake_run
from fedqssl.federated.algorithms import ALGORITHMS
from fedqssl.runs.cells import CellError, State, claimed, state_of
from fedqssl.runs.measured import Spread, paired
from fedqssl.runs.text_table import Grid, bits_text, tex, to_csv
from fedqssl.studies.paper import paper
from fedqssl.studies.paper.catalogue import EXPERIMENTS, FIGURES, TABLES, AblationFigure, Row
from fedqssl.studies.paper.figures import plot
from fedqssl.studies.paper.plan import Plan
from fedqssl.studies.paper.reproduce import request
from fedqssl.studies.paper.scales import SCALES, SMALL
from fedqssl.studies.paper.tables import fill

TEX = Path(__file__).parents[4] / "shared" / "paper" / "fed-qssl.tex"
SMOKE = Plan(SCALES["smoke"], {})


def test_mean_deviation_and_paired_interval_by_hand():
    a, b = Spread({0: 50.0, 1: 54.0, 2: 52.0, 3: 10.0}), Spread({0: 48.0, 1: 50.0, 2: 49.0, 7: 0.0})
    assert Spread({0: 50.0, 1: 54.0, 2: 52.0}).mean == 52 and Spread({0: 50.0, 1: 54.0, 2: 52.0}).deviation == 2
    found = paired(a, b)  # differences 2, 4, 3: mean 3, deviation 1, t(2) = 4.303
    assert found.mean == pytest.approx(3) and found.seeds == 3
    assert found.high - found.mean == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    assert found.mean - found.low == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    one = paired(Spread({0: 50.0}), b)
    assert (one.mean, one.low, one.seeds) == (2.0, None, 1)
    assert paired(Spread({5: 1.0}), b) is None and Spread({}).mean is None and Spread({0: 1.0}).deviation is None


@pytest.mark.skipif(not TEX.exists(), reason="the paper's source is not here")
def test_the_papers_numbers_are_verbatim():
    names = {"FedAvg": "fed_avg", "FedProx": "fed_prox", "FedPAQ": "fed_paq", "Fed-SimCLR": "fed_simclr"}
    names |= {"Fed-SimSiam": "fed_simsiam", "Fed-QSSL": "fed_qssl"}
    blocks = re.findall(r"\\begin\{tabular\}.*?\\end\{tabular\}", TEX.read_text(), re.S)[:3]
    for block, ours, low in zip(
        blocks, (paper.TABLE1, paper.TABLE2, paper.TABLE3), ("config1", "config2", "config2"), strict=True
    ):
        plain = block.replace(r"\textbf{", "").replace("}", "")
        rows = re.findall(r"(Fed[\w-]+)( \(Full\))? & ([\d.]+) & ([\d.]+)", plain)
        theirs = {(names[n], "full" if full else low): (float(g), float(near)) for n, full, g, near in rows}
        assert theirs == ours


def test_every_table_has_the_papers_rows_and_controls_and_only_known_algorithms():
    for table in TABLES.values():
        rows = {(row.algorithm, row.precision) for row in table.rows}
        assert set(table.paper) <= rows and len(set(table.rows)) == len(table.rows)
        assert {"server_only", "untrained"} <= {row.algorithm for row in table.rows}
    ours = {"fed_refine", "fed_distill", "fed_seq"}  # neither in the paper nor our default
    assert {row.algorithm for e in EXPERIMENTS.values() for row in e.rows} == set(ALGORITHMS) - ours


def test_scale_medium_compares_at_equal_work():
    """Every row: the same steps of each client and of the server in all, the same images, network and evaluation."""
    plan = Plan(SCALES["medium"], {})
    cells = {row: plan.cell("cifar10", row, 0).config for row in TABLES["table_plus"].rows}
    for row, config in cells.items():
        once = row.algorithm == "untrained"
        turns = config.fraction * config.rounds
        assert once or (turns * config.local_steps >= 1000 and turns == 25), row
        assert once or config.rounds * config.server.steps == 500, row
        assert config.images is None and (config.model, config.batch_size, config.features) == ("resnet9", 32, "stages")
        assert (config.evaluation.classifier, config.evaluation.probe) == ("regression", "cross_validated")
        assert (config.buffer, config.buffer_images) == (("cifar100", 500) if row.foreign else (None, 500))
        assert row.foreign or config.buffer_ratio == 0.01
    assert len({plan.cell("cifar10", row, 0).name for row in cells}) == len(cells)
    with pytest.raises(ValueError, match="table_plus is not run at scale small; experiments there: table1, "):
        request(["table_plus"], "small")


@pytest.mark.parametrize("name", ["small", "paper"])
def test_larger_scales_keep_the_papers_structure(name):
    plan = Plan(SCALES[name], {})
    first = plan.cell("cifar10", Row("fed_qssl", "config1"), 0).config
    assert first.clients == 10 and first.bits == (4, 4, 6, 6, 6, 8, 8, 8, 12, 12)
    assert (first.partition, first.beta, first.model, first.data) == ("dirichlet", 0.1, "resnet18", "cifar10")
    assert plan.cell("cifar10", Row("fed_qssl", "config2"), 0).config.bits == (6,) * 5 + (12,) * 5
    assert plan.cell("cifar10", Row("fed_qssl", "low"), 0).config.bits == (2,) * 3 + (3,) * 3 + (4,) * 4
    assert plan.cell("cifar100", Row("fed_qssl", "full"), 0).config.bits == (32,) * 10
    assert plan.cell("cifar100", Row("fed_qssl", "full"), 0).config.data == "cifar100"
    for figure in ("figure3", "figure4", "figure5"):
        assert len(plan.cells(EXPERIMENTS[figure], [0])) >= 3
    cells = plan.cells(EXPERIMENTS["figure4"], [0])
    assert {c.config.buffer_draw for c in cells} == {"last"} and all("buffer_draw=last" in c.name for c in cells)
    if name == "paper":
        assert (first.rounds, first.local_epochs, first.width) == (100, 20, 64)
        assert plan.cell("cifar100", Row("fed_qssl", "config2"), 0).config.local_epochs == 5


def test_tables_share_cells_and_settings_of_one_algorithm_reach_it_alone():
    plan = Plan(SMALL, {"cifar10": "parquet:here"})
    one, two = (set(plan.cells(TABLES[name], [0])) for name in ("table1", "table2"))
    assert {cell.name for cell in one & two} == {"cifar10-full-fed_simclr-seed0", "cifar10-full-fed_qssl-seed0"}
    assert {cell.config.data for cell in one} == {"parquet:here"}
    base = next(iter(plan.points(EXPERIMENTS["figure3"], 0)))
    assert base[2] in one  # beta = 0.1 is table 1's own cell
    import dataclasses

    tuned = Plan(dataclasses.replace(SMALL, algorithms={"fed_avg": {"lr": 0.07}}), {})
    assert tuned.cell("cifar10", Row("fed_avg", "config1"), 0).config.lr == 0.07
    assert tuned.cell("cifar10", Row("fed_qssl", "config1"), 0).config.lr != 0.07


def test_titles_name_the_images_that_were_used():
    assert Plan(SCALES["small"], {}).called("cifar100") == "CIFAR-100"
    for data in ({}, {"cifar10": "scenes"}):  # as asked for, or as cells that are there say
        assert Plan(SCALES["smoke"], data).called("cifar10") == "scenes in place of CIFAR-10"
    assert Plan(SCALES["smoke"], {"cifar10": "parquet:x"}).called("cifar10") == "CIFAR-10"


def test_a_table_from_made_up_runs(tmp_path):
    made = {"fed_qssl": (0.60, 0.64), "fed_simclr": (0.55, 0.57), "server_only": (0.5,)}
    for algorithm, values in made.items():
        for seed, value in enumerate(values):
            cell = SMOKE.cell("cifar10", Row(algorithm, "low"), seed)
            fake_run(cell.folder(tmp_path), cell.config, value)
    filled = fill(TABLES["table_low"], SMOKE, tmp_path)
    rows = {row["algorithm"]: row for row in filled.to_json()["rows"]}
    assert rows["fed_qssl"]["global"] == 62 and rows["fed_qssl"]["seeds"] == 2
    assert rows["fed_qssl"]["global_deviation"] == pytest.approx(2.8284, abs=1e-3)
    found = rows["fed_simclr"]["fed_qssl_minus_global"]  # 5 and 7
    assert found["mean"] == 6 and found["high"] == pytest.approx(6 + 12.706, abs=1e-2) and found["seeds"] == 2
    assert rows["server_only"]["fed_qssl_minus_global"]["low"] is None
    assert rows["fed_qssl"]["local_by_bits"] == {"2": 70.0, "3": 70.0, "4": 70.0}
    assert filled.to_json()["missing"] == [{"algorithm": "untrained", "precision": "low"}]
    assert "control: untrained" in filled.grid().notes[-1]


def test_points_of_a_figure_are_compared_at_the_seeds_they_share(tmp_path):
    """The base point has three seeds, one of them an outlier; a point with seed 0 only must not be compared with their mean."""
    figure = FIGURES["figure4"]
    base, *others = SMOKE.scale.points["figure4"]
    assert isinstance(figure, AblationFigure)
    for seed, accuracy in ((0, 0.3), (1, 0.9), (2, 0.6)):
        for _, value, cell in SMOKE.points(figure, seed):
            if value == base or seed == 0:
                fake_run(cell.folder(tmp_path), cell.config, accuracy)
    found = plot(figure, SMOKE, tmp_path).points
    assert [(p["buffer_ratio"], p["global"], p["seeds"]) for p in found] == [(v, 30.0, 1) for v in (base, *others)]


def test_a_cell_with_other_settings_is_refused_by_name(tmp_path):
    cell = SMOKE.cell("cifar10", Row("fed_qssl", "low"), 0)
    fake_run(cell.folder(tmp_path), cell.config.model_copy(update={"lr": 0.9, "workers": 7}))
    with pytest.raises(CellError, match=r"lr 0\.9, now 0\.3; server\.lr.*choose another --out") as error:
        state_of(cell, tmp_path)
    assert "workers" not in str(error.value)
    (cell.folder(tmp_path) / "config.toml").unlink()
    assert state_of(cell, tmp_path) is State.NEW


def test_a_folder_is_one_commands_at_a_time(tmp_path):
    with claimed(tmp_path), pytest.raises(CellError, match="another command"), claimed(tmp_path):
        pass
    with claimed(tmp_path):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(CellError, match="cannot be written"), claimed(tmp_path / "file"):
        pass


def test_texts():
    grid = Grid("50% & more", ("a_b", "c"), ((("x|y", "1.00 ± 0.50"),), (("z", "–"),)), ("note",), "t")
    assert grid.markdown().splitlines()[2:6] == [
        "| a_b | c |",
        "| --- | ---: |",
        "| x\\|y | 1.00 ± 0.50 |",
        "| z | – |",
    ]
    latex = grid.latex()
    assert r"\caption{50\% \& more}\label{t}" in latex and r"x|y & 1.00 $\pm$ 0.50 \\ \hline" in latex
    assert tex("a\\b{_}") == r"a\textbackslash{}b\{\_\}"
    assert to_csv([{"a": 1, "b": None}, {"a": "x,y", "c": 2.5}]) == 'a,b,c\n1,,\n"x,y",,2.5\n'
    assert bits_text((4, 4, 6, 32)) == "2x4,6,32" and bits_text((32, 32)) == "32"
