"""What earlier reports got wrong: shades, shares of fleets that grew, whiskers, cut tables and names, times, plurals."""

import json
import math
import re
import shutil

import pytest

from fedqssl.reporting import write_report
from fedqssl.reporting.charts import apart
from fedqssl.reporting.cost_section import layers
from fedqssl.reporting.data import read_run, wilson
from fedqssl.reporting.layers import LayerError, LayerErrors
from fedqssl.reporting.learning_section import weights
from fedqssl.reporting.overview import compared
from fedqssl.reporting.summary_section import updated
from fedqssl.reporting.theme import Theme, counted


def report(path) -> str:
    return write_report(path).read_text()


def figure(text: str, name: str) -> str:
    return text[text.index(f'data-figure="{name}"') :].partition("</figure>")[0]


def change_lines(path, change) -> None:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(change(line))}\n" for line in lines))


def grown(made, late, since):
    """A fleet whose clients ``late`` joined in round ``since``."""
    path = made(clients=4, rounds=6)

    def change(line):
        kept = {n: w for n, w in line["weights"].items() if line["round"] >= since or n not in late}
        return line | {"weights": {n: w / sum(kept.values()) for n, w in kept.items()}}

    change_lines(path, change)
    return path


def test_shades_are_explained_by_swatches_that_hold_in_dark_mode_too(made):
    text = report(made(clients=4, rounds=1))
    assert "darker" not in text
    part = figure(text, "labels")
    legend = part[part.index('class="legend"') : part.index("</ul>")]
    top = max(v for row in read_run(made(clients=4, rounds=1)).labels.train.values() for v in row)
    assert "mark s1" in legend and "mark s8" in legend and f"{top:,} images" in legend


def test_the_equal_share_of_a_fleet_that_grew_is_that_of_each_round(made):
    run = read_run(grown(made, set(_names(made)[2:]), 4))
    section = weights(run, Theme(run.bits.values()))
    assert "an equal share is 0.5 (2 clients) to 0.25 (4 clients)" in section.lead
    drawn = "".join(section.figures[0].drawing.parts)
    assert drawn.count('class="level"') == 1 and "0.3333" not in section.lead
    even = read_run(made(clients=4, rounds=3))
    assert "an equal share is 0.25." in weights(even, Theme(even.bits.values())).lead


def _names(made):
    return sorted(read_run(made(clients=4, rounds=1)).train)


def test_nearly_equal_weights_of_a_fleet_that_grew_are_called_that(made):
    path = made(clients=4, rounds=4)
    names = sorted(read_run(path).train)

    def even(line):
        here = names[: 2 if line["round"] < 3 else 4]
        return line | {"weights": dict.fromkeys(here, 1 / len(here))}

    change_lines(path, even)
    run = read_run(path)
    lead = weights(run, Theme(run.bits.values())).lead
    assert "made almost no difference" in lead and "A lower aggregation.temperature" in lead
    change_lines(path, lambda line: line | {"dequantize_loss": {}})  # as of an algorithm that averages
    run = read_run(path)
    lead = weights(run, Theme(run.bits.values())).lead
    assert "made almost no difference" in lead and "temperature" not in lead
    change_lines(path, lambda line: line | {"weights": {names[0]: 1.0}})
    run = read_run(path)
    assert weights(run, Theme(run.bits.values())).lead.startswith("One client took part in each round")


def test_a_bitwidth_has_no_line_before_its_first_client_joined(made):
    names = _names(made)
    run = read_run(grown(made, {names[-1]}, 3))
    assert sorted(run.bits.values()) == [4, 6, 8, 12] and run.bits[names[-1]] == 12
    shown = weights(run, Theme(run.bits.values())).figures[1]
    assert shown is not None
    drawn = "".join(shown.drawing.parts)
    assert "12 bits, round 3:" in drawn and "12 bits, round 2:" not in drawn and "4 bits, round 1:" in drawn
    assert not re.search(r"round \d: 0%", drawn) and "joined" in shown.note


def test_bitwidths_that_take_turns_or_are_no_longer_known_have_no_lines_at_zero(made):
    path = made(clients=4, rounds=4)
    names = sorted(read_run(path).train)
    change_lines(path, lambda line: line | {"weights": {names[line["round"] % 4]: 1.0}})
    run = read_run(path)
    assert weights(run, Theme(run.bits.values())).figures[1] is None
    gone = made(clients=4, rounds=4)
    change_lines(gone, lambda line: line | {"weights": {names[0]: 0.5, "left-long-ago": 0.5}})
    run = read_run(gone)
    assert weights(run, Theme(run.bits.values())).figures[1] is None


def test_who_counted_most_in_the_last_round_took_part_in_it(made):
    path = made(clients=4, rounds=4)
    names = sorted(read_run(path).train)
    turns = {1: {names[0]: 0.9, names[1]: 0.1}, 2: {names[2]: 0.4, names[3]: 0.6}}
    change_lines(path, lambda line: line | {"weights": turns[2 - line["round"] % 2]})
    run = read_run(path)
    lead = weights(run, Theme(run.bits.values())).lead
    assert f"In round 4, the last one, {names[3]} (12 bits) counted most: 0.6000." in lead


def test_rank_correlations_need_eight_clients(made):
    assert "Rank correlation" not in report(made(clients=7, rounds=1))
    assert "Rank correlation of accuracy over 8 clients" in report(made(clients=8, rounds=1))


def test_wilson_by_hand():
    """4 of 4 with z = 1: centre (1 + 1/8) / (1 + 1/4), half sqrt(1/64) / (1 + 1/4)."""
    assert wilson(1.0, 4) == pytest.approx((0.8, 1.0))
    assert wilson(0.0, 4) == pytest.approx((0.0, 0.2))
    low, high = wilson(0.5, 10_000)
    assert low == pytest.approx(0.495, abs=1e-4) and high == pytest.approx(0.505, abs=1e-4)
    assert all(math.isnan(v) for v in wilson(0.5, 0))


def test_all_of_four_images_have_a_whisker(made):
    path = made(clients=2, rounds=1)
    values = json.loads((path / "result.json").read_text())
    partition = json.loads((path / "partition.json").read_text())
    name = sorted(values["clients"])[0]
    values["clients"][name]["local_accuracy"] = 1.0
    partition["clients"][name]["test"] = [0, 1, 2, 3]
    (path / "result.json").write_text(json.dumps(values))
    (path / "partition.json").write_text(json.dumps(partition))
    shown = figure(report(path), "accuracy-images")
    assert f"{name}, 4 bits: 100.0% (80.0% to 100.0%)" in shown and "±" not in shown
    ends = [tuple(map(float, m)) for m in re.findall(r'y1="([\d.]+)" x2="[\d.]+" y2="([\d.]+)" class="whisker', shown)]
    assert len(ends) == 2 and all(abs(a - b) > 5 for a, b in ends)


def test_tables_that_are_cut_say_that_they_scroll(made):
    text = report(made(clients=4, rounds=1))
    assert text.count('class="cut"') == text.count('class="scroll"') > 4
    assert "scroll for more" in text


def test_shortened_names_stay_apart():
    same = "Fed-QSSL, server.dequantize_epochs={}, aggregation.temperature=0.5, lowbit.scale=grow, rounds=100"
    names = [same.format(i) for i in (1, 2, 14)]
    short = apart(names, 40)
    assert len(set(short)) == 3 and all(len(s) <= 40 for s in short)
    assert [("1", "2", "14")[i] in s for i, s in enumerate(short)] == [True] * 3
    assert apart(["short", "other"], 40) == ["short", "other"]
    assert len(set(apart(["x" * 50 + "a" + "x" * 50, "x" * 50 + "b" + "x" * 50], 18))) == 2
    assert apart(["equal" * 20, "equal" * 20], 12)[0] == apart(["equal" * 20, "equal" * 20], 12)[1]


def test_elided_settings_of_an_overview_stay_apart(made, tmp_path):
    common = {"aggregation.temperature": 0.25, "ssl.temperature": 0.2, "lowbit.activation_clip": 2.0}
    for i, epochs in enumerate((3, 4)):
        words = {"server.dequantize_epochs": epochs, "batch_size": 24, **common}
        shutil.copytree(made(clients=2, rounds=1, **words), tmp_path / f"a{i}")
    for i in range(3):
        shutil.copytree(made(clients=2, rounds=1, seed=i), tmp_path / f"b{i}")
    runs = [read_run(path) for path in sorted(tmp_path.iterdir())]
    drawn = "".join(compared(runs).figures[0].drawing.parts)
    names = [w for w in re.findall(r"<text[^>]*>([^<]*)</text>", drawn) if "…" in w]
    assert len(names) == len(set(names)) == 2 and "=3" in " ".join(names) and "=4" in " ".join(names)


def test_times_are_those_of_the_log(made):
    path = made(clients=2, rounds=2)
    assert updated(read_run(path)) == "log.txt does not say"
    (path / "log.txt").write_text(
        "2021-03-04 05:06:07 round 1/2  loss 1.000\n2021-03-04 06:07:08 round 2/2  loss 0.900\n2021-03-05 00:00:00 evaluating\n"
    )
    assert updated(read_run(path)) == "2021-03-04 06:07:08" and "2021-03-04 06:07:08" in report(path)
    (path / "log.txt").write_text("2021-03-04 05:06:07 round 1/2  loss 1.000\nbroken\n")
    assert updated(read_run(path)) == "log.txt does not say"
    assert updated(read_run(made(clients=2, rounds=2, done=0))) == "no round yet"


def test_a_real_run_says_when(real):
    assert re.fullmatch(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d", updated(read_run(real)))


def test_one_of_a_thing_is_not_plural(made, tmp_path):
    assert [counted(n, "class") for n in (1, 2)] == ["1 class", "2 classes"]
    path = made(clients=1, rounds=1, classes=1)
    partition = json.loads((path / "partition.json").read_text())
    data = json.loads((path / "data.json").read_text())
    name = next(iter(partition["clients"]))
    partition["clients"][name] = {"train": [0], "test": [1]}
    partition["buffer"] = [2]
    data["labels"][name] = {"train": [1], "test": [1]}
    (path / "partition.json").write_text(json.dumps(partition))
    (path / "data.json").write_text(json.dumps(data))
    shutil.copytree(path, tmp_path / "one")
    for text in (report(path), report(tmp_path)):
        shown = re.sub(r"<(style|script)>.*?</\1>", "", text, flags=re.S)
        wrong = re.findall(
            r".{0,30}(?<![\d.,])1 (?:clients|images|rounds|classes|runs|layers|training images|test images|epochs)\b.{0,20}",
            shown,
        )
        assert wrong == []
    assert "1 client holds 1 training image of 1 of 1 class" in report(path)


def test_equal_clients_have_no_worst_one(made):
    path = made(clients=2, rounds=1)
    values = json.loads((path / "result.json").read_text())
    for client in values["clients"].values():
        client["local_accuracy"] = 0.75
    (path / "result.json").write_text(json.dumps(values))
    text = report(path)
    assert "All 2 clients have the same accuracy, 75.0%." in text and "does worst:" not in text
    values["clients"]["client-01"]["local_accuracy"] = None  # its photos have no labels, say
    (path / "result.json").write_text(json.dumps(values))
    text = report(path)
    assert "Only the accuracy of client-00 (" in text and "does worst:" not in text and "of one client" in text


def test_fine_tuning_is_named_only_where_it_moved_weights():
    def lead(handed_out):
        return layers(LayerErrors(1, {4: "a"}, {4: (LayerError("conv", handed_out, 0.08, 10),)}), Theme([4])).lead

    assert "fine-tuning" in lead(0.1) and "fine-tuning" not in lead(0.080001)
