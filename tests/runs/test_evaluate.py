"""The protocol of the accuracies, step by step from a run's folder: which model, trained on what, judged on what.

Nothing of ``fedqssl.runs.evaluate`` is used to say what the figures should be.
"""

import pytest
import torch

from fedqssl.evaluation import classifier, extract_features, knn_accuracy
from fedqssl.evaluation.probe import fit_classifier
from fedqssl.federated.client import local_update
from fedqssl.federated.randomness import derived_seed
from fedqssl.lowbit import load_bytes
from fedqssl.models.network import feature_extractor
from fedqssl.runs import RunFolder, RunResult, start
from fedqssl.runs.evaluate import MONITOR_IMAGES, client_accuracy, global_accuracy, knn_monitor
from tiny_run import known_rounds, known_run, model_bytes, rounds_of, silent, tiny, tiny_context

QUIET = {"evaluation.knn_every": 0}


@pytest.fixture
def finished() -> RunResult:
    return known_run()


@pytest.fixture(scope="module")
def context():
    return tiny_context()


def loaded(context, bits: int, payload: bytes):
    model = context.task.converted(bits)
    load_bytes(model, payload)
    return model.eval()


def share(answers: torch.Tensor, labels: torch.Tensor) -> float:
    return float((answers == labels).double().mean())


def on_split(context, name: str, payload: bytes, known, asked) -> float:
    """An s-bit classifier on the client's own features, fitted to some of the images and asked about others."""
    bits, train = context.bits[name], context.train
    encoder = feature_extractor(loaded(context, bits, payload))
    x, y = (extract_features(encoder, train.images[part]) for part in (known, asked))
    seed = derived_seed(context.config.seed, "local probe", name)
    settings = context.task.classes, bits, seed
    fitted = classifier.fit_classifier(context.task.classifier, x, train.labels[known], *settings)
    return fitted.accuracy(y, train.labels[asked])


def test_clients_are_judged_on_their_own_held_out_images(finished, context):
    """With the model that they are handed; not on images that they trained on, and not on anybody else's."""
    splits, models = context.partition.clients, model_bytes(finished.folder)
    right, wrong = {}, {"trained on": {}, "another's": {}}
    for name, split in splits.items():
        other = next(s for n, s in splits.items() if n != name)
        right[name] = on_split(context, name, models[name], split.train, split.test)
        wrong["trained on"][name] = on_split(context, name, models[name], split.train, split.train)
        wrong["another's"][name] = on_split(context, name, models[name], other.train, other.test)
    assert {n: c.local_accuracy for n, c in finished.clients.items()} == right
    assert finished.local_accuracy == pytest.approx(sum(right.values()) / len(right))
    assert right not in wrong.values()  # else the figures would say nothing


@pytest.mark.parametrize("kind", ["cross_validated", "fixed"])
def test_the_last_aggregate_is_probed_with_training_labels_and_judged_on_test_images(finished, context, kind):
    train, test = context.train, context.test
    context = tiny_context(**{"evaluation.probe": kind})
    part = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:100]  # evaluation.probe_images

    def probed(payload: bytes, known, labels) -> float:
        encoder = feature_extractor(loaded(context, 32, payload))
        x, y = extract_features(encoder, known), extract_features(encoder, test.images)
        if kind == "fixed":
            return share(fit_classifier(x, labels, context.task.classes)(y).argmax(1), test.labels)
        weight, bias = classifier.folded_logistic(x, labels, context.task.classes, torch.Generator().manual_seed(0))
        return share((y @ weight + bias).argmax(1), test.labels)

    last = RunFolder(finished.folder).latest()
    assert last.rounds_done == finished.rounds
    first, _ = known_rounds(1)
    right = probed(last.aggregated, train.images[part], train.labels[part])
    assert global_accuracy(context, 32, last.aggregated) == right
    assert kind == "fixed" or finished.global_accuracy == right
    assert right != probed(first.aggregated, train.images[part], train.labels[part])
    assert right != probed(last.aggregated, test.images, test.labels)


def test_the_monitor_knows_training_images_and_asks_about_test_images(finished, context):
    train, test = context.train, context.test
    model = loaded(context, 32, RunFolder(finished.folder).latest().aggregated)
    asked = torch.randperm(len(test), generator=torch.Generator().manual_seed(0))[:MONITOR_IMAGES]
    known = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:MONITOR_IMAGES]
    encoder = feature_extractor(model)
    x, y = extract_features(encoder, train.images[known]), extract_features(encoder, test.images[asked])
    right = knn_accuracy(x, train.labels[known], y, test.labels[asked])
    assert knn_monitor(context, model) == right
    assert right not in (
        knn_accuracy(x, train.labels[known], x, train.labels[known]),
        knn_accuracy(y, test.labels[asked], y, test.labels[asked]),
    )


def test_supervised_clients_are_judged_after_training_on_their_own_images_once_more(tmp_path):
    """PAPER-TO-CODE, section 8: the client's own s-bit model after local training, on its own held-out images."""
    changes = {"algorithm": "fed_avg", "images": 400, "bits": [4, 8, 8], "lr": 0.1, "lr_schedule": "cosine"}
    finished = start(tiny(**changes), tmp_path / "run", say=silent)
    context = tiny_context(**changes)
    models, train = model_bytes(finished.folder), context.train
    job = context.job(finished.rounds, 0.1 * 0.5)  # the rate of the second of two rounds, half way down the cosine

    def judged(name: str, payload: bytes) -> float:
        held_out = context.partition.clients[name].test
        model = loaded(context, context.bits[name], payload)
        return share(extract_features(model, train.images[held_out]).argmax(1), train.labels[held_out])

    right = {n: judged(n, local_update(models[n], job, context.client(n))[0]) for n in models}
    assert {n: c.local_accuracy for n, c in finished.clients.items()} == right
    assert right != {n: judged(n, models[n]) for n in models}
    last = RunFolder(finished.folder).latest().aggregated
    assert finished.global_accuracy == share(
        extract_features(loaded(context, 32, last), context.test.images).argmax(1), context.test.labels
    )


def test_supervised_models_are_judged_as_they_are():
    """By their own classifier: the aggregate on the test set, a client's model on the client's held-out images."""
    context = tiny_context(algorithm="fed_avg", images=400, bits=[8, 8, 32], lr=0.1)
    after, _ = rounds_of(context, 2)
    train, test = context.train, context.test
    aggregate = loaded(context, 32, after.aggregated)
    want = share(extract_features(aggregate, test.images).argmax(1), test.labels)
    assert global_accuracy(context, 32, after.aggregated) == want
    for name, split in context.partition.clients.items():
        model = loaded(context, context.bits[name], after.payloads[name])
        want = share(extract_features(model, train.images[split.test]).argmax(1), train.labels[split.test])
        assert client_accuracy(context, name, after.payloads[name]) == want
