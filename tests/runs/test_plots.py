"""The plots of a run with labels and a control; test_resume.py has one without labels."""

import json
import shutil

from fedqssl.runs import RunFolder
from fedqssl.runs.plots import draw
from tiny_run import known_run, tiny_context


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
