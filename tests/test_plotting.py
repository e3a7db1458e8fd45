"""The one place that sets matplotlib up."""

import sys

import pytest

from fedqssl import plotting

matplotlib = pytest.importorskip("matplotlib")


def test_a_figure_is_saved_in_the_format_of_its_suffix_and_always_as_the_same_bytes(tmp_path):
    for name, start in (("a.png", b"\x89PNG"), ("a.svg", b"<?xml")):
        saved = []
        for _ in range(2):
            figure, axes = plotting.subplots(1, 2, figsize=(4, 2), width_ratios=(2, 1))
            axes[0].plot([1, 2], [3, 4])
            axes[1].set_title("words stay words")
            saved.append(plotting.save(figure, tmp_path / name, dpi=50).read_bytes())
        assert saved[0] == saved[1] and saved[0].startswith(start)
    assert b"words stay words" in saved[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "a.svg"]


def test_the_settings_of_who_calls_stay_as_they_are(tmp_path):
    before = dict(matplotlib.rcParams)
    figure, _ = plotting.subplots(figsize=(2, 2))
    plotting.save(figure, tmp_path / "a.svg")
    assert dict(matplotlib.rcParams) == before


def test_without_matplotlib(monkeypatch):
    assert plotting.installed()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert not plotting.installed()
