"""``views.preset = "auto"``: short trainings, judged by the clients' labels."""

from dataclasses import replace

import pytest
import torch

from fedqssl.config import load_config, load_run_config
from fedqssl.data.images import ImageSet
from fedqssl.runs import choose_views, start
from fedqssl.runs.choose_views import trial, with_chosen_views
from fedqssl.runs.progress import Progress
from fedqssl.ssl.presets import CANDIDATES, VIEW_PRESETS, view_config
from tiny_run import silent, tiny, tiny_context

AUTO = {"views.preset": "auto"}


def chosen(context):
    return with_chosen_views(context, Progress(silent))


def with_train(context, images=None, labels=None):
    train = context.train
    return replace(context, train=ImageSet(train.images if images is None else images, labels, train.class_names))


def test_other_presets_are_left_alone():
    context = tiny_context(**{"views.preset": "textures"})
    assert chosen(context) == (context, None)


def test_the_least_held_out_loss_wins(monkeypatch):
    for best in CANDIDATES:
        monkeypatch.setattr(choose_views, "trial", lambda context, name, best=best: 0.5 if name == best else 0.75)
        context, line = chosen(tiny_context(**AUTO, **{"views.size": 16}))
        assert context.config.views.preset == best
        assert context.task.views == replace(VIEW_PRESETS[best], size=16) == view_config(context.config.views)
        assert f"views of {best} suit these images" in line and "0.50" in line and line.count("0.75") == 2


def test_without_labels_nothing_is_tried(monkeypatch):
    monkeypatch.setattr(choose_views, "trial", lambda *_: pytest.fail("nothing to judge by"))
    for labels in (None, torch.zeros(160, dtype=torch.long)):
        context, line = chosen(with_train(tiny_context(**AUTO), labels=labels))
        assert context.config.views.preset == CANDIDATES[0] and "needs at least 50 labeled images" in line


def test_a_trial_trains_with_its_views_and_is_judged_by_labels(monkeypatch):
    monkeypatch.setattr(choose_views, "STEPS", 20)
    context, views = tiny_context(**AUTO, **{"views.size": 16}), []
    real = choose_views.fine_tune
    monkeypatch.setattr(choose_views, "fine_tune", lambda *args: views.append(args[2].views) or real(*args))
    losses = [trial(context, name) for name in CANDIDATES]
    assert views == [replace(VIEW_PRESETS[name], size=16) for name in CANDIDATES]
    assert len(set(losses)) == len(CANDIDATES) and max(losses) < 2.2  # ten classes; guessing has 2.3
    assert losses[1] == trial(context, "objects")
    mixed = context.train.labels[torch.randperm(160, generator=torch.Generator().manual_seed(0))]
    assert trial(with_train(context, labels=mixed), "objects") > losses[1] + 0.2


def test_only_images_that_clients_train_on_are_seen(monkeypatch):
    context = tiny_context(**AUTO)
    seen = []
    monkeypatch.setattr(choose_views, "STEPS", 1)
    monkeypatch.setattr(choose_views, "IMAGES", 50)
    monkeypatch.setattr(
        choose_views, "held_out_loss", lambda features, labels, looks, seed, levels: seen.append(len(features)) or 1.0
    )
    trial(context, "shapes")
    assert seen == [50]
    allowed = torch.cat([split.train for split in context.partition.clients.values()])
    assert torch.isin(choose_views._some(context), allowed).all()


def test_a_run_remembers_what_was_chosen(tmp_path, monkeypatch):
    monkeypatch.setattr(choose_views, "trial", lambda context, name: {"objects": 0.3}.get(name, 1.0))
    lines = []
    start(tiny(**AUTO, rounds=1), tmp_path / "run", say=lines.append)
    assert load_run_config(tmp_path / "run").views.preset == "objects"
    assert any("views of objects suit" in line for line in lines)
    assert "views of objects suit" in (tmp_path / "run" / "log.txt").read_text()


def test_photos_chooses():
    assert load_config("photos").views.preset == "auto"
