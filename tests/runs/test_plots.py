"""The plots of a run with labels and a control; test_resume.py has one without labels."""

import json
import shutil
from types import SimpleNamespace

import pytest

from fedqssl import plotting
from fedqssl.reporting.theme import Theme
from fedqssl.runs import RunFolder, plots
from fedqssl.runs.plots import draw
from tiny_run import known_run, tiny_context

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.colors import LogNorm, PowerNorm  # noqa: E402


def test_curves_and_partition_are_drawn(tmp_path, monkeypatch):
    folder, asked = RunFolder(tmp_path / "run"), []
    shutil.copytree(known_run().folder, folder.path)
    lines = [{**line, "untrained_knn": 0.25} for line in folder.lines()]
    folder.metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    monkeypatch.setattr("fedqssl.runs.plots.plotting.save", lambda figure, path: asked.append((figure, path.name)))
    assert draw(tiny_context(), folder) == ["curves.png", "partition.png"] == [name for _, name in asked]
    loss, knn, weights = asked[0][0].axes
    assert [list(loss.lines[0].get_ydata())] == [[line["loss"] for line in lines]]
    shown, floor = knn.lines
    assert list(shown.get_ydata()) == [100 * line["knn"] for line in lines] and list(floor.get_ydata()) == [25, 25]
    assert len(weights.lines) == 3
    table = asked[1][0].axes[0].images[0].get_array().tolist()
    counts = tiny_context().label_counts()
    assert table == [counts[name]["train"] for name in sorted(counts)]


def test_counts_that_differ_by_orders_have_a_logarithmic_scale_and_the_reports_colours(monkeypatch):
    table = {"a": {"train": [1, 0, 900], "test": []}, "b": {"train": [30, 4, 2], "test": []}}
    context = SimpleNamespace(
        label_counts=lambda: table,
        train=SimpleNamespace(class_names=("x", "y", "z")),
        bits={"a": 4, "b": 32},
        sizes={"a": 3, "b": 900},
    )
    image = plots._partition(context).axes[0].images[0]
    assert isinstance(image.norm, LogNorm)
    few, none, many = (matplotlib.colors.to_hex(image.to_rgba([v])[0]) for v in (1, 0, 900))
    assert (few, none, many) == (plotting.SHADES[0], plotting.TROUGH, plotting.SHADES[-1])
    table["a"]["train"][2] = 11
    table["b"]["train"] = [3, 4, 2]
    assert isinstance(plots._partition(context).axes[0].images[0].norm, PowerNorm)
    table.clear()
    context.label_counts = lambda: None
    axis = plots._partition(context).axes[0]
    assert axis.get_xscale() == "log"
    colours = [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in axis.patches]
    assert colours == [plotting.bit_colours([4])[4], plotting.FULL_COLOUR]
    context.sizes["b"] = 4
    assert plots._partition(context).axes[0].get_xscale() == "linear"


def test_colours_of_bitwidths_are_those_of_the_report():
    css = Theme([4, 8, 12, 32]).css()
    for bits, colour in plotting.bit_colours([4, 8, 12, 32]).items():
        assert f"--bit-{bits}:{colour};" in css
    assert list(plotting.bit_colours([12, 4, 32])) == [4, 12]


def test_a_client_that_joined_later_has_a_whole_line_and_one_that_takes_turns_has_not(tmp_path):
    lines = [{"round": r, "loss": 1.0, "knn": None, "weights": {"a": 0.5}} for r in (1, 2, 3)]
    lines[1]["weights"]["late"] = lines[2]["weights"]["late"] = lines[0]["weights"]["turns"] = 0.5
    folder = SimpleNamespace(lines=lambda: lines)
    drawn = plots.curves(folder, {"a": 4, "late": 8, "turns": 8}).axes[2].lines
    assert [line.get_linestyle() for line in drawn] == ["-", "-", ":"] and list(drawn[1].get_xdata()) == [2, 3]


def test_curves_of_a_folder_alone_have_the_colours_of_its_clients_bits():
    folder, bits = RunFolder(known_run().folder), tiny_context().bits
    shown = plots.curves(folder).axes[2].lines
    assert [line.get_color() for line in shown] == [
        line.get_color() for line in plots.curves(folder, bits).axes[2].lines
    ]
    assert len({line.get_color() for line in shown}) == len(set(bits.values())) > 1
