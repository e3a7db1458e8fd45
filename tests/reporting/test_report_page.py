"""What the page says, its limits, and what it says of bad input."""

import json
import re
import resource
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedqssl.cli.main import main
from fedqssl.evaluation.collapse import Collapse
from fedqssl.federated.context import build_simulation
from fedqssl.federated.state import read_payload
from fedqssl.reporting import write_report
from fedqssl.reporting.clients_section import rank_correlation
from fedqssl.reporting.data import ReportError, read_run, short_best
from fedqssl.reporting.fleet_figures import clock_figures, clusters_figure
from fedqssl.reporting.layers import LayerErrors, layer_errors
from fedqssl.reporting.overview import differences
from fedqssl.reporting.svg import el
from fedqssl.runs.find import find_runs

SECTIONS = [
    "curves",
    "weights",
    "clients",
    "partition",
    "pictures",
    "ledger",
    "layers",
    "collapse",
    "protocol",
    "files",
]
FIGURES = [
    "loss",
    "accuracy",
    "controls",
    "dequantize",
    "weights-figure",
    "weights-bits",
    "accuracy-bits",
    "accuracy-images",
    "accuracy-classes",
    "gain",
    "labels",
    "sizes",
    "feature-map",
    "pixel-map",
    "cost-operations",
    "cost-memory",
    "cost-model",
    "layer-errors",
    "median-errors",
    "effective-rank",
    "alignment",
    "uniformity",
]


class Page(HTMLParser):
    """Ids, figures, links and balance of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.figures, self.links, self.loads, self.open = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.ids += [values["id"]] if "id" in values else []
        self.figures += [values["data-figure"]] if "data-figure" in values else []
        self.links += [values["href"]] if tag == "a" else []
        self.loads += [
            v for k, v in attributes if k in ("src", "srcset", "poster", "data") or (tag == "link" and k == "href")
        ]
        if tag not in ("meta", "link", "br", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def report(path: Path, out=None, trust=False) -> str:
    return write_report(path, out, trust=trust).read_text()


def fails(arguments, capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["report", *map(str, arguments)])
    said = capsys.readouterr().err
    assert stop.value.code == 2 and said.startswith("error: ") and said.count("\n") == 1
    return said


def test_a_real_run_has_every_part_and_figure(real):
    text = report(real)
    page = Page(text)
    assert page.open == [] and len(page.ids) == len(set(page.ids))
    assert [name for name in page.ids if name in SECTIONS] == SECTIONS
    assert page.figures == FIGURES
    assert page.loads[0] == "data:," and all(uri.startswith("data:image/png;base64,") for uri in page.loads[1:])
    assert len(page.loads) > 60 and "@import" not in text and "url(" not in text
    assert "http://" not in text and "https://" not in text
    words = re.sub(r'src="[^"]*"', "", text[text.index("<main") : text.index("<footer")])
    assert not re.search(r"\b(nan|inf|None)\b", words)
    for link in page.links:
        assert link[1:] in page.ids if link.startswith("#") else (real / link).is_file()
    result = json.loads((real / "result.json").read_text())
    assert f"{100 * result['global_accuracy']:.1f}%" in text and result["protocol"] in text


def test_links_work_from_another_folder(real, tmp_path):
    text = report(real, tmp_path / "deep" / "page.html")
    links = [link for link in Page(text).links if not link.startswith("#")]
    assert links and all((tmp_path / "deep" / link).is_file() for link in links)


@pytest.mark.parametrize("done", [0, 3])
def test_a_run_in_progress_is_reported_as_far_as_it_is(made, done):
    run = made(clients=4, rounds=8, done=done)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"round": 4, "lo')
    text = report(run)
    assert f"not finished: round {done} of 8" in text and "when the run ends" in text
    assert ("No round is finished yet" in text) == (done == 0)
    assert "labels" in Page(text).figures


def test_a_collapse_is_told_in_plain_words(made):
    text = report(made(clients=2, rounds=2, rank=1.2))
    words = Collapse(0.2, -2.0, 1.2, 64).warning()
    assert words is not None and words in text and text.count('role="alert"') == 2  # on top, and in its own part


def test_names_from_outside_are_escaped(made):
    run = made(clients=4, rounds=2, names=["a&b", "c'2 onload=x", "c-3", "c-4"])
    data = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps({**data, "class_names": ["<script>alert(1)</script>", 'a"b']}))
    text = report(run)
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text and 'a"b' not in text
    assert "a&amp;b" in text and "a&b" not in text and "c'2" not in text
    assert Page(text).open == []
    with pytest.raises(ReportError, match="not a client's name"):
        report(made(clients=4, rounds=2, names=["<script>alert(1)", "c-2", "c-3", "c-4"]))
    assert el("title", "<b>", class_='"') == '<title class="&#34;">&lt;b&gt;</title>'


def test_data_without_labels(made):
    run = made(clients=3, rounds=2)
    data = json.loads((run / "data.json").read_text())
    (run / "data.json").write_text(json.dumps({**data, "labels": None, "classes": 0}))
    result = json.loads((run / "result.json").read_text())
    for client in result["clients"].values():
        client["local_accuracy"] = None
    (run / "result.json").write_text(json.dumps({**result, "global_accuracy": None, "local_accuracy": None}))
    text = report(run)
    assert "have no labels" in text and "The labels are unknown" in text and "gain" not in Page(text).figures


def test_labels_of_an_older_run_are_read_from_its_images(real, tmp_path):
    copy = tmp_path / "old"
    shutil.copytree(real, copy)
    noted = read_run(copy).labels
    (copy / "data.json").unlink()
    again = read_run(copy).labels
    assert noted is not None and again is not None
    assert again.train == noted.train and again.test == noted.test and again.class_names == noted.class_names


def test_layer_errors_are_those_of_the_loaded_models(real):
    run = read_run(real)
    found = layer_errors(run)
    assert isinstance(found, LayerErrors)
    folder = sorted((real / "checkpoints").glob("round-?????"))[-1]
    task = build_simulation(run.config).task
    whole = read_payload((folder / "aggregated.fqssl").read_bytes(), 32, task)
    for bits, errors in found.layers.items():
        own = read_payload((real / "clients" / found.clients[bits] / "model.fqssl").read_bytes(), bits, task)
        for e in errors:
            w, q = (s[f"{e.layer}.weight"].double() for s in (whole, own))
            assert e.handed_out == pytest.approx(float((q - w).norm() / w.norm()), rel=1e-5)
    medians = [sorted(e.rounding for e in errors)[len(errors) // 2] for _, errors in sorted(found.layers.items())]
    assert medians == sorted(medians, reverse=True)  # more bits, less error


def test_a_failing_ledger_is_a_sentence(made, monkeypatch):
    monkeypatch.setattr("fedqssl.reporting.costs._costs", lambda run: 1 / 0)
    assert "There is no ledger for this run: ZeroDivisionError" in report(made(clients=2, rounds=1))


def test_clusters_and_a_clock_have_their_figures(made, tmp_path):
    path = made("fleet", clients=4, rounds=3)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line["clusters"] = {f"client-{i:02d}": i % 2 for i in range(4)}
        line["cluster_distances"] = (
            {f"client-{i:02d}": [1.0 + i % 2, 2.0 - i % 2] for i in range(3)} if line["round"] == 1 else {}
        )
        line |= {"simulated_seconds": 60.0, "simulated_time": 60.0 * line["round"], "simulated_joules": 5.0}
        line["rejected"] = {"client-03": "it needs 2 min, and the deadline is 1 min (simulated)"}
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "result.json").unlink()
    run = read_run(path)
    whom, (time, energy) = clusters_figure(run), clock_figures(run)
    assert "cluster 0: 2 clients, cluster 1: 2 clients" in whom.note
    assert [row[0] for row in whom.rows] == ["client-00", "client-02", "client-01", "client-03"]
    assert [row[2:] for row in whom.rows][1:] == [[0, "1.000, 2.000"], [1, "2.000, 1.000"], [1, "–"]]
    assert [row[:2] for row in time.rows] == [["1", "60"], ["2", "120"], ["3", "180"]]
    assert "client-03 3" in time.note and "3 min for 3 rounds" in time.note
    assert [row[1] for row in energy.rows] == ["5", "10", "15"]
    page = write_report(path, tmp_path / "page.html").read_text()
    assert all(f'id="{name}"' in page for name in ("clusters", "clock", "energy"))


def test_rank_correlation_by_hand():
    assert rank_correlation([1, 2, 3], [10, 20, 15]) == pytest.approx(0.5)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) is None


def test_a_folder_of_runs(made, tmp_path):
    for name, words in {"a/s0": {}, "a/s1": {"seed": 1}, "b": {"algorithm": "fed_simclr", "done": 1}}.items():
        shutil.copytree(made(clients=3, rounds=2, **words), tmp_path / name)
    assert [p.relative_to(tmp_path).as_posix() for p in find_runs(tmp_path)] == ["a/s0", "a/s1", "b"]
    main_text = report(tmp_path)
    page = Page(main_text)
    assert "3 runs" in main_text and "2 of 3 finished; 2 protocols" in main_text
    assert {"run-0", "run-1", "run-2", "compare-global", "compare-knn"} <= set(page.ids)
    assert all(link[1:] in page.ids if link.startswith("#") else (tmp_path / link).is_file() for link in page.links)


def test_runs_of_a_folder_are_named_by_what_is_unusual(made, tmp_path):
    """A setting that most runs share is not repeated, so that what differs is not cut out of a long name."""
    settings = {"a": {}, "b": {"beta": 5.0}, "c": {"server.dequantize_epochs": 4}, "d": {"algorithm": "fed_simclr"}}
    for name, words in settings.items():
        shutil.copytree(made(clients=4, rounds=1, **words), tmp_path / name)
    named = differences([read_run(path) for path in find_runs(tmp_path)])
    assert named == [
        "Fed-QSSL",
        "Fed-QSSL, beta=5.0",
        "Fed-QSSL, server.dequantize_epochs=4",
        "Fed-SimCLR",
    ]


def test_the_protocol_says_what_the_algorithm_does(made):
    simclr = report(made(clients=2, rounds=1))
    assert "objective simclr, temperature" in simclr and "1 de-quantization epoch per client" in simclr
    assert "linear probe, uniform test set" in simclr and "1 round of 1 epoch" in simclr
    supervised = report(made(clients=2, rounds=1, algorithm="fed_avg"))
    assert "objective supervised" in supervised and "its own classifier, uniform test set" in supervised
    assert "objective supervised, temperature" not in supervised and "quantization epoch" not in supervised
    assert "averages by numbers of images" in supervised and "aggregation weights by" not in supervised
    masked = report(made(clients=2, rounds=1, algorithm="fed_avg", **{"aggregation.weights": "mask"}))
    assert "averages by numbers of images; aggregation weights by mask" in masked
    alone = report(made(clients=2, rounds=1, algorithm="local_only"))
    assert "mean over the clients&#39; models, linear probe" in alone and "<h1>Control: local only on" in alone
    assert "epochs of one model on the buffer" in report(made(clients=2, rounds=1, algorithm="server_only"))


OWN = """
from dataclasses import replace
from fedqssl.federated.algorithms import ALGORITHMS
MINE = replace(ALGORITHMS["local_only"], name="mine", title="My <own> averaging", objective="simsiam", control=False)
"""


def test_an_own_algorithm_brings_its_title_and_a_lost_one_is_still_reported(made, tmp_path, monkeypatch):
    run, spec = made(clients=2, rounds=1), "report_own_algorithm:MINE"
    (run / "config.toml").write_text(
        (run / "config.toml").read_text().replace('algorithm = "fed_qssl"', f'algorithm = "{spec}"')
    )
    lost = report(run, trust=True)
    assert f"<h1>{spec} on scenes</h1>" in lost and "There is no ledger for this run" in lost
    assert "can no longer be imported" in lost and Page(lost).open == []
    (run / "result.json").unlink()
    assert "unknown (runs with the same digits" in report(run)
    (tmp_path / "report_own_algorithm.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    found = report(run, trust=True)
    assert "<h1>My &lt;own&gt; averaging on scenes</h1>" in found and "objective simsiam" in found
    assert "cannot be imported" not in found and "unknown" not in found


def test_algorithms_of_one_title_are_told_apart(made, tmp_path, monkeypatch):
    for name in ("fed_qssl", "fed_simclr"):
        shutil.copytree(made(clients=2, rounds=1, algorithm=name), tmp_path / name)
    runs = [read_run(path) for path in find_runs(tmp_path)]
    assert differences(runs) == ["Fed-QSSL", "Fed-SimCLR"]
    monkeypatch.setattr("fedqssl.reporting.data.RunData.title", "the same")
    assert differences(runs) == ["fed_qssl", "fed_simclr"]


def test_runs_that_lost_their_partition_are_left_out(made, tmp_path, capsys):
    for name in ("a", "b"):
        shutil.copytree(made(clients=2, rounds=1), tmp_path / name)
    (tmp_path / "a" / "partition.json").unlink()
    assert "1 run" in report(tmp_path) and "run-1" not in Page(report(tmp_path)).ids
    (tmp_path / "b" / "partition.json").unlink()
    assert "partition.json" in fails([tmp_path], capsys)


def test_bytes_are_the_results(made):
    """The tile, the table and result.json say the same."""
    path = made(clients=2, rounds=2)
    run = read_run(path)
    assert run.bytes_moved == run.result.bytes_up + run.result.bytes_down
    (path / "result.json").unlink()
    assert read_run(path).bytes_moved == 2 * 2 * 2 * 50_000


def test_a_tie_with_guessing_is_no_better(older):
    path = older(clients=3, rounds=1)
    values, run = json.loads((path / "result.json").read_text()), read_run(path)
    for client in run.clients:
        values["clients"][client.name]["local_accuracy"] = client.guess + 3e-8  # a mean in single precision
    (path / "result.json").write_text(json.dumps(values))
    text = report(path)
    assert "Every client does better" not in text and "No better than their best control" in text
    assert "(commonest class " in text


def test_every_accuracy_has_its_controls(made, tmp_path):
    """In charts, tiles, tables and words; of a folder of runs, too."""
    path = made(clients=4, rounds=3)
    text, run = report(path), read_run(path)
    best, value = short_best(run.controls["global"])
    assert f"global, best control: {best} {100 * value:.1f}%" in text and "kNN, untrained: 25.0%" in text
    assert f"uniform test set; best control {best} {100 * value:.1f}%" in text and "; untrained 25.0%" in text
    figures = {
        name: text[text.index(f'data-figure="{name}"') :].partition("</figure>")[0] for name in Page(text).figures
    }
    for client in run.clients:
        best, value = client.best
        assert value == max(client.controls.values())
        for name in ("accuracy-bits", "accuracy-images", "accuracy-classes", "gain"):
            assert f"{client.name}, best control: {best} {100 * value:.1f}%" in figures[name]
        assert f"<td>{100 * client.untrained:.1f}%</td><td>{100 * value:.1f}% {best}</td>" in text
    for words in ("this run, global: 61.0%", "HOG, mean local:", "raw pixels, global:", "chance, global: 10.0%"):
        assert words in figures["controls"]
    gains = [100 * (c.accuracy - c.untrained) for c in run.clients if c.bits == 4]
    assert f"Mean gain over the untrained network, in points: 4 bits {sum(gains) / len(gains):+.1f}, " in text
    shutil.copytree(path, tmp_path / "a")
    overview = report(tmp_path)
    assert "best control 4" in overview and "untrained, mean: 25.0%" in overview
    assert f"{run.clients[0].name}, best control: " in overview


def test_a_run_that_was_not_worth_it_says_so_on_top(made):
    path = made(clients=2, rounds=2)
    values = json.loads((path / "result.json").read_text())
    (path / "result.json").write_text(json.dumps(values | {"global_accuracy": 0.9, "local_accuracy": 0.9}))
    text = report(path)
    assert 'class="lead">The global accuracy of 90.0% beats the best control' in text and 'role="alert"' not in text
    values |= {"global_accuracy": 0.2, "steps": 92}
    (path / "result.json").write_text(json.dumps(values))
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps({**v, 'knn': 0.2})}\n" for v in lines))
    text = report(path)
    alerts = re.findall(r'role="alert">([^<]*)<', text)
    assert (
        len(alerts) == 2 and "The global accuracy of 20.0% does not beat" in alerts[0] and "only 92 steps" in alerts[0]
    )
    assert alerts[1].startswith("kNN accuracy, 20.0%, is below the untrained network")


def test_runs_of_older_versions_have_the_guess(older):
    path = older(clients=3, rounds=2)
    page = Page(text := report(path))
    assert "controls" not in page.figures and "gain" in page.figures and page.open == []
    assert "best control: commonest class" in text and "untrained network" not in text and "kNN, untrained" not in text


def test_damaged_lines_are_left_out(made):
    path = made(clients=2, rounds=3)
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines[0] |= {"client_loss": None, "weights": [1], "collapse": {"alignment": 1.0, "dim": None}}
    (path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    (path / "environment.json").write_text("[1]")
    assert "loss" in Page(report(path)).figures


def test_each_writes_a_page_per_run(made, tmp_path, capsys):
    shutil.copytree(made(clients=2, rounds=1), tmp_path / "a")
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path), "--each"])
    assert stop.value.code == 0 and "full report" in (tmp_path / "report.html").read_text()
    assert capsys.readouterr().out.count("wrote") == 2 and (tmp_path / "a" / "report.html").is_file()


def test_bad_input_is_one_line(made, tmp_path, capsys):
    assert "no run in" in fails([tmp_path], capsys)
    assert "does not exist" in fails([tmp_path / "nowhere"], capsys)
    (tmp_path / "file").write_text("")
    assert "is a file" in fails([tmp_path / "file"], capsys)
    run = made(clients=2, rounds=1)
    assert "cannot be written" in fails([run, "--out", tmp_path / "file" / "report.html"], capsys)
    assert "is a folder" in fails([run, "--out", tmp_path], capsys)
    result = (run / "result.json").read_text()
    (run / "result.json").write_text('{"clients": 3}')
    assert "result.json cannot be read" in fails([run], capsys)
    (run / "result.json").write_text(result)
    (run / "partition.json").write_text("{")
    assert "partition.json cannot be read" in fails([run], capsys)
    (run / "config.toml").write_text("rounds = 0")
    assert "rounds" in fails([run], capsys)


def test_a_hundred_rounds_of_a_hundred_clients_take_seconds_and_five_megabytes(made):
    run = made(clients=100, rounds=100, classes=100, model="resnet18", width=16)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "fedqssl.cli.main", "report", str(run)], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # CPU time, torch's import included; 7.7 s measured on a busy machine
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 30
    assert (run / "report.html").stat().st_size < 5_000_000
