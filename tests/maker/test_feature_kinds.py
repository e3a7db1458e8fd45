"""A device file of any kind of features does what the run measured."""

import io
import json

import pytest

import fedqssl
from fedqssl.device.format import decode
from fedqssl.device.model import from_bytes
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.maker.personal import device_bytes, device_file
from fedqssl.maker.probing import ProbeSettings, probe_client
from fedqssl.models.features import FEATURES
from tiny_run import known_run

DIM = {"pooled": 32, "grid2": 4 * 32, "stages": 32 + 16 * 8, "pyramid": 32 + (16 + 64) * 8}


@pytest.fixture(scope="module", params=FEATURES)
def run(request):
    return FinishedRun.open(known_run(rounds=1, features=request.param).folder)


@pytest.mark.parametrize("client", ["client-00", "client-01", "client-02"])
def test_the_file_is_as_good_as_the_run_said(run, client, tmp_path):
    kind, data, told = run.config.features, run.own(client), run.result.clients[client].local_accuracy
    made = device_bytes(run, client)
    path = tmp_path / "phone.fqssl"
    path.write_bytes(made)
    model = fedqssl.load(path)
    assert float((model.logits(data.test).argmax(1) == data.test_labels).double().mean()) == told
    assert probe_client(run, client).outcome.accuracy == told
    assert (model.manifest.features, model.manifest.feature_dim) == (kind, DIM[kind])
    assert model.to_bytes() == made
    names = [model.manifest.class_names[k] for k in model.logits(data.test).argmax(1).tolist()]
    assert [answer.name for answer in model.predict(data.test)] == names
    assert ("Features: the last maps" in model.card()) == (kind != "pooled")


def test_only_other_features_are_named_in_the_file(run):
    made = device_bytes(run, "client-00")
    start = made.index(b'{"bits"')  # the manifest, sorted by key; nothing of it precedes
    manifest, _ = json.JSONDecoder().raw_decode(made[start:].decode(errors="replace"))
    assert manifest.get("features", "pooled") == run.config.features
    assert ("features" in manifest) == (run.config.features != "pooled")


def test_a_fleets_client_makes_the_same_models(run):
    data, client = run.own("client-00"), "client-00"
    parts = (data.train, data.train_labels), (data.test, data.test_labels)
    made, accuracy = device_file(run.context.task, client, 4, run.payload(client), *parts, data.class_names)
    assert decode(made)[1:] == decode(device_bytes(run, client))[1:]
    assert accuracy == run.result.clients[client].local_accuracy
    assert from_bytes(made).manifest.features == run.config.features


def test_neighbours_see_the_same_features(run):
    probe = probe_client(run, "client-00", ProbeSettings(method="knn"))
    assert probe.classifier is None and 0 <= probe.outcome.accuracy <= 1
    assert run.features("client-00", [run.own("client-00").test])[0].shape[1] == DIM[run.config.features]


def test_the_service_answers_as_the_model_does(run):
    pytest.importorskip("starlette")
    from PIL import Image
    from starlette.testclient import TestClient

    from fedqssl.serve.app import make_app
    from fedqssl.serve.limits import LOOPBACK, Limits

    model, picture = from_bytes(device_bytes(run, "client-00")), io.BytesIO()
    Image.fromarray(run.own("client-00").test[0].permute(1, 2, 0).numpy()).save(picture, "png")
    client = TestClient(make_app(model, Limits(), LOOPBACK), base_url="http://localhost")
    answer = client.post("/predict", files=[("images", ("a.png", picture.getvalue()))])
    assert answer.status_code == 200
    expected = model.predict(picture.getvalue())[0]
    best = answer.json()["predictions"][0]["top"][0]
    assert (best["name"], best["probability"]) == (expected.name, pytest.approx(expected.probability))
