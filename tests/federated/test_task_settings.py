"""Settings that a task carries reach what uses them: views in training, the kind of classifier in the evaluation."""

import torch

from fedqssl.evaluation.classifier import fit_classifier, fit_device_classifier
from fedqssl.evaluation.local import fit_lowbit_classifier
from fedqssl.federated.client import local_update
from fedqssl.lowbit import to_bytes
from fedqssl.runs.evaluate import own_accuracy
from fedqssl.runs.round import first_checkpoint
from tiny_run import tiny_context


def test_views_are_those_of_the_settings():
    small = tiny_context(**{"views.size": 24})
    views = small.task.two_views(small.buffer()[:4], torch.Generator().manual_seed(0))
    assert views.shape == (8, 3, 24, 24)
    sent = {}
    for preset in ("objects", "signs"):
        context = tiny_context(**{"views.preset": preset})
        payload = first_checkpoint(context).payloads["client-00"]
        sent[preset] = local_update(payload, context.job(0, 0.3), context.client("client-00"))[0]
    assert sent["objects"] != sent["signs"]


def test_each_kind_of_classifier_is_its_own():
    draws = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 8, generator=draws), torch.randint(0, 3, (60,), generator=draws)
    kinds = {"regression": fit_device_classifier, "sgd": fit_lowbit_classifier}
    made = {kind: to_bytes(fit_classifier(kind, x, y, 3, 4, 5).model) for kind in kinds}
    assert made == {kind: to_bytes(fit(x, y, 3, 4, seed=5).model) for kind, fit in kinds.items()}
    assert made["regression"] != made["sgd"]


def test_the_evaluation_uses_the_kind_of_the_settings(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "fedqssl.runs.evaluate.fit_classifier", lambda kind, *rest: seen.append(kind) or fit_classifier(kind, *rest)
    )
    for changes in ({}, {"evaluation.classifier": "sgd"}):
        context = tiny_context(**changes)
        data, payload = context.client("client-00"), first_checkpoint(context).payloads["client-00"]
        part = data.images, data.labels
        own_accuracy(context.task, "client-00", 4, payload, part, part)
    assert seen == ["regression", "sgd"]
