"""Device files are the run's own models, bit for bit, whoever makes them."""

from dataclasses import replace

import pytest
import torch

from fedqssl.device.format import decode
from fedqssl.device.model import from_bytes
from fedqssl.evaluation.controls import measure_controls
from fedqssl.evaluation.features import extract_features
from fedqssl.lowbit import load_bytes
from fedqssl.maker.personal import device_bytes, device_file
from fedqssl.maker.probing import ProbeSettings, probe_client
from fedqssl.models.network import feature_extractor


@pytest.mark.parametrize("client", ["client-00", "client-01", "client-02", "client-03"])
def test_exported_equals_the_run_bit_for_bit(finished, client):
    data, bits = finished.own(client), finished.result.clients[client].bits
    model = finished.context.task.converted(bits)  # as runs/evaluate.py does it
    load_bytes(model, finished.payload(client))
    features = extract_features(feature_extractor(model.eval()), data.test)
    probe = probe_client(finished, client)
    made = device_bytes(finished, client, probe=probe)
    loaded = from_bytes(made)
    assert torch.equal(loaded.logits(data.test), probe.classifier.logits(features))
    assert made == device_bytes(finished, client) == loaded.to_bytes()
    assert probe.outcome.accuracy == finished.result.clients[client].local_accuracy


def test_a_fleets_client_makes_the_same_models(finished):
    """From the same model and images, a fleet's client makes the file that the run's owner would, but for card and protocol."""
    client, task = "client-01", finished.context.task
    data = finished.own(client)
    parts = (data.train, data.train_labels), (data.test, data.test_labels)
    made, accuracy = device_file(task, client, 4, finished.payload(client), *parts, data.class_names)
    manifest, *models = decode(made)
    expected, *own_models = decode(device_bytes(finished, client))
    assert models == own_models and accuracy == finished.result.clients[client].local_accuracy
    differing = {"card", "protocol"}
    assert manifest.model_dump(exclude=differing) == expected.model_dump(exclude=differing)
    assert manifest.protocol == "fleet"
    for title in ("data", "bits", "accuracy"):
        assert manifest.card[title].items() <= expected.card[title].items()
    assert "bytes of the model on the wire" in from_bytes(made).card()


def test_the_card_has_the_accuracy_beside_its_controls(finished):
    """Those of the run if it measured any; else, and for other labels, measured on the images that the classifier saw."""
    kept = {"chance": 0.25, "commonest": 0.3, "pixels": 0.35, "hog": 0.4, "untrained": 0.123}
    clients = {n: replace(c, controls=kept) for n, c in finished.result.clients.items()}
    known = replace(finished, result=replace(finished.result, clients=clients))
    card = from_bytes(device_bytes(known, "client-01")).card()
    assert "| accuracy of the untrained network | 12.3% |" in card
    assert "| accuracy of logistic regression on HOG features | 40.0% |" in card
    some = ProbeSettings(labels="50%")
    data, probe = finished.own("client-01"), probe_client(finished, "client-01", some)
    assert len(probe.kept) == probe.train_images < len(data.train_labels)
    shown = decode(device_bytes(known, "client-01", some))[0].card["accuracy"]
    own = measure_controls(
        data.train[probe.kept], data.train_labels[probe.kept], data.test, data.test_labels, len(data.class_names)
    )
    assert own.hog == shown["accuracy of logistic regression on HOG features"] != 0.4
    assert "accuracy of the untrained network" not in shown
    assert "accuracy of guessing" in decode(device_bytes(finished, "client-01"))[0].card["accuracy"]


def test_no_device_file_without_a_linear_classifier(finished):
    with pytest.raises(ValueError, match="leave out --method knn"):
        device_bytes(finished, "client-01", ProbeSettings(method="knn"))
