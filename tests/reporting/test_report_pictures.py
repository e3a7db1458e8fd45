"""The pictures of a report: which images, made how, of what size; what is kept; what a fleet's server may show."""

import base64
import io
import json
import re
import shutil

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from fedqssl.config import load_config, load_run_config, to_toml
from fedqssl.data.images import ImageSet
from fedqssl.evaluation import extract_features
from fedqssl.federated.context import build_simulation
from fedqssl.maker.finished_run import FinishedRun
from fedqssl.reporting import album as albums
from fedqssl.reporting import finished_report, gather, page, write_report
from fedqssl.reporting.album import Album, Answers, Map, Picture, Row, Seen, album, key_of
from fedqssl.reporting.data import read_run
from fedqssl.reporting.gather import flat_map, view_words
from fedqssl.reporting.png import MOST_LETTERS, SIDE, START, data_uri, png, thumbnail
from fedqssl.runs import RunError, RunFolder, start
from fedqssl.runs.evaluate import load
from fedqssl.runs.images_digest import images_digest
from fedqssl.ssl.views import ViewConfig

Image = pytest.importorskip("PIL.Image")


def decoded(uri: str) -> np.ndarray:
    assert uri.startswith(START)
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.removeprefix(START)))))


def copy_of(run, tmp_path):
    shutil.copytree(run, tmp_path / "copy")
    for name in ("report.html", albums.NAME):
        (tmp_path / "copy" / name).unlink(missing_ok=True)
    return tmp_path / "copy"


@pytest.fixture(scope="module")
def shown(real):
    """The album of the real run, and its images."""
    run = read_run(real)
    found = gather.gather(run, "key")
    assert isinstance(found, Album)
    return run, found, build_simulation(run.config)


@pytest.mark.parametrize("channels", [1, 3])
def test_png_is_what_pillow_reads(channels):
    image = torch.randint(256, (channels, 5, 7), dtype=torch.uint8)
    smooth = torch.arange(0, 210, 5, dtype=torch.uint8).view(1, 6, 7).expand(channels, 6, 7)
    for of in (image, smooth):
        read = np.asarray(Image.open(io.BytesIO(png(of))))
        assert np.array_equal(read if channels == 3 else read[..., None], of.permute(1, 2, 0).numpy())


def test_thumbnails_are_averages_and_even_noise_is_bounded():
    image = torch.randint(256, (3, 96, 96), dtype=torch.uint8)
    small = thumbnail(image)
    by_hand = image.double().view(3, SIDE, 2, SIDE, 2).mean((2, 4))
    assert small.shape == (3, SIDE, SIDE) and (small.double() - by_hand).abs().max() <= 0.5 + 1e-6
    assert torch.equal(thumbnail(image[:, :40, :48]), image[:, :40, :48])
    assert thumbnail(image[:, :10]).shape == (3, 5, SIDE)
    assert 0.98 * MOST_LETTERS < len(data_uri(image[:, :SIDE, :SIDE])) <= MOST_LETTERS


def test_clients_show_their_own_training_images(shown):
    run, found, context = shown
    assert len(found.owners) == len(run.clients) + 1 and not found.fleet
    for client, row in zip(sorted(run.clients, key=lambda c: (c.bits, c.name)), found.owners, strict=False):
        own = context.partition.clients[client.name].train.tolist()
        known = {data_uri(context.train.images[i]): context.train.class_names[context.train.labels[i]] for i in own}
        assert row.words.startswith(client.name) and 0 < len(row.pictures) <= 6
        assert all(known[p.uri] == p.words for p in row.pictures)
        assert len({p.uri for p in row.pictures}) == len(row.pictures)
    buffer = {data_uri(image) for image in context.buffer()}
    assert {p.uri for p in found.owners[-1].pictures} <= buffer


def test_views_are_those_of_the_runs_settings(shown, real):
    run, found, context = shown
    assert len(found.views) == 3 and all(len(row.pictures) == 5 for row in found.views)
    buffer = {data_uri(image) for image in context.buffer()}
    assert all(row.pictures[0].uri in buffer for row in found.views)
    assert all(p.uri not in buffer for row in found.views for p in row.pictures[1:])
    said = (
        "crops of 20% to 100% of the area; flipped with probability 0.5; brightness 0.4, contrast 0.4, saturation 0.4"
    )
    assert found.view_words.startswith(said) and said in write_report(real).read_text()
    assert view_words(ViewConfig(hue=0.0, size=24), 1).endswith(
        "brightness 0.4, contrast 0.4 with probability 0.8; 24x24 pixels"
    )
    plain = ViewConfig(scale=(1.0, 1.0), ratio=(1.0, 1.0), flip_p=0.0, jitter_p=0.0, grayscale_p=0.0)
    task = context.task.__class__(**{**vars(context.task), "views": plain})
    same = gather._views(run, gather.Source(task, context.buffer(), context))
    assert all(p.uri == row.pictures[0].uri for row in same for p in row.pictures)  # views that change nothing


def test_neighbours_are_the_nearest_by_the_features_of_the_aggregated_model(shown):
    run, found, context = shown
    seen = found.seen
    assert isinstance(seen, Seen) and seen.images == "400 test images, drawn from 2,000"
    model = load(context.task, 32, RunFolder(run.path).latest().aggregated)
    encoder = context.task.extractor(model, 32)
    uris = [data_uri(image) for image in context.test.images]
    x = F.normalize(extract_features(encoder, context.test.images).double(), dim=1)
    looked_at = torch.randperm(2000, generator=gather.generator(run.config.seed, "report", "looked at"))[:400]
    assert len(seen.near) == 5 and len({row.words for row in seen.near}) == 5
    for row in seen.near:
        query = next(i for i in looked_at.tolist() if uris[i] == row.pictures[0].uri)
        distance = (x[looked_at] - x[query]).square().sum(1)
        order = looked_at[distance.argsort()].tolist()
        assert [uris[i] for i in order if i != query][:5] == [p.uri for p in row.pictures[1:]]
        nearest = next(i for i in order if i != query)
        name = context.test.class_names[context.test.labels[nearest]]
        assert row.pictures[1].words == f"{name} {1 - float((x[nearest] - x[query]).square().sum()) / 2:.2f}"
    ours, pixels, chance = seen.same
    assert 0 < ours <= 1 and 0 < pixels <= 1 and chance == pytest.approx(0.1, abs=0.01)


def test_answers_say_what_is_right_and_how_sure_they_are(shown):
    _, found, context = shown
    answers = found.seen.answers
    assert answers.asked == 400 and 0 < answers.correct < 400
    assert len(answers.right) == len(answers.wrong) == 6
    labels = {
        data_uri(i): context.test.class_names[y] for i, y in zip(context.test.images, context.test.labels, strict=True)
    }
    for kind, some in ((True, answers.right), (False, answers.wrong)):
        assert all((a.answer == a.label) is kind and labels[a.picture.uri] == a.label for a in some)
        sure = [a.confidence for a in some]
        assert sure == sorted(sure, reverse=True) and all(
            0.1 <= c <= 1 for c in sure
        )  # the surest of ten is at least 10%


def test_a_map_holds_the_principal_directions():
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(50, 6, generator=draw, dtype=torch.float64) * torch.tensor([5.0, 3.0, 1.0, 0.5, 0.2, 0.1])
    found = flat_map(x, torch.arange(50) % 4)
    spread, basis = np.linalg.eigh(np.cov(x.numpy().T))
    assert found.shares == pytest.approx(tuple(spread[::-1][:2] / spread.sum()), abs=1e-3)
    wanted = (x.numpy() - x.numpy().mean(0)) @ basis[:, ::-1][:, :2]
    places = np.array([point[:2] for point in found.points])
    for c in range(2):
        direction = basis[:, ::-1][:, c]
        sign = np.sign(direction[np.abs(direction).argmax()])  # the largest part of a direction is positive
        assert sign * np.corrcoef(places[:, c], wanted[:, c])[0, 1] > 0.9999
    assert np.allclose([p[:2] for p in flat_map(-x, None).points], -places, atol=2e-3)
    assert np.abs(places).max() == 1.0 and [p[2] for p in found.points][:5] == [0, 1, 2, 3, 0]
    turned = flat_map(x.flip(0), None)
    assert np.allclose([p[:2] for p in turned.points][::-1], places, atol=2e-3) and turned.points[0][2] == -1
    one = flat_map(torch.ones(3, 1, dtype=torch.float64), None)
    assert one.shares == (0.0, 0.0) and [p[:2] for p in one.points] == [(0.0, 0.0)] * 3


def test_the_same_run_has_the_same_pictures_and_another_seed_others(shown):
    run, found, _ = shown
    assert gather.gather(read_run(run.path), "key") == found
    other = gather._drawn(1000, 6, run, "client", "a").tolist()
    assert (
        other
        == gather._drawn(1000, 6, run, "client", "a").tolist()
        != gather._drawn(1000, 6, run, "client", "b").tolist()
    )
    changed = read_run(run.path)
    object.__setattr__(changed, "config", changed.config.model_copy(update={"seed": 99}))
    assert gather._drawn(1000, 6, changed, "client", "a").tolist() != other


def test_pictures_that_took_long_are_kept_and_read_again(real, tmp_path, monkeypatch):
    path = copy_of(real, tmp_path)
    made = []

    def make(run, key):
        made.append(key)
        return gather.gather(run, key)

    monkeypatch.setattr(albums, "SLOW", 1e9)
    first = album(read_run(path), make)
    assert len(made) == 1 and not (path / albums.NAME).exists()
    monkeypatch.setattr(albums, "SLOW", 0.0)
    assert album(read_run(path), make) == first and (path / albums.NAME).is_file() and len(made) == 2
    assert album(read_run(path), make) == first and len(made) == 2
    values = json.loads((path / albums.NAME).read_text())
    for bad in (
        {**values, "key": "another model's"},
        {**values, "view_words": "x" * 9999},
        {**values, "owners": [{"words": "", "pictures": [{"uri": "javascript:alert(1)", "words": ""}]}]},
        {**values, "owners": [{"words": "", "pictures": [{"uri": f'{START}AA"onload="x', "words": ""}]}]},
        [],
    ):
        (path / albums.NAME).write_text(json.dumps(bad))
        before = len(made)
        assert album(read_run(path), make) == first and len(made) == before + 1
    (path / "result.json").unlink()
    (path / albums.NAME).unlink()
    before = len(made)
    assert album(read_run(path), make) == "Pictures are made when the run ends."
    assert len(made) == before and not (path / albums.NAME).exists()


def test_images_that_have_changed_or_are_away_are_not_shown(real, made, tmp_path, monkeypatch):
    path = copy_of(real, tmp_path)
    noted = json.loads((path / "environment.json").read_text())
    (path / "environment.json").write_text(json.dumps(noted | {"images_sha256": "0" * 64}))
    text = write_report(path).read_text()
    assert "the images have changed since the run" in text and "<img" not in text
    assert "did not record a digest of its images" in write_report(made(clients=2, rounds=1)).read_text()
    monkeypatch.setenv("FEDQSSL_CACHE", str(tmp_path / "empty"))
    monkeypatch.setattr("fedqssl.data.cifar.download", lambda *a: pytest.fail("a report downloads nothing"))
    away = made(clients=2, rounds=1, data="cifar10")
    assert "cifar10 is not on this machine" in write_report(away).read_text()
    hub = made(clients=2, rounds=1, data="hf:somebody/pictures")
    assert "hf:somebody/pictures is not on this machine" in write_report(hub).read_text()
    own = made(clients=2, rounds=1)
    text = (own / "config.toml").read_text().replace('model = "small_cnn"', 'model = "nobody_knows:NET"')
    (own / "config.toml").write_text(text)
    assert "the code nobody_knows:NET, which is imported only with --trust" in write_report(own).read_text()


def worst_album(run, key) -> Album:
    """As many pictures as there can be, all of them noise."""
    draw = torch.Generator().manual_seed(0)

    def raw():
        return Picture(
            uri=data_uri(torch.randint(256, (3, SIDE, SIDE), dtype=torch.uint8, generator=draw)), words="some class"
        )

    def rows(count, each):
        return [Row(words=f"row {i}", pictures=[raw() for _ in range(each)]) for i in range(count)]

    answer = [{"picture": raw(), "label": "a", "answer": "b", "confidence": 0.5} for _ in range(gather.ANSWERS)]
    points = [(round(i / 400, 3), -0.5, i % 10) for i in range(gather.LOOKED_AT)]
    flat = Map(points=points, shares=(0.5, 0.2))
    seen = Seen(
        model="m",
        images="i",
        near=rows(gather.QUERIES, gather.NEIGHBOURS + 1),
        same=[],
        features=flat,
        pixels=flat,
        class_names=[f"class {i}" for i in range(10)],
        answers=Answers(right=answer, wrong=answer, asked=400, correct=1, how="h"),
    )
    owners, views = rows(gather.CLIENTS + 1, gather.PER_CLIENT), rows(gather.VIEWED, gather.VIEWS + 1)
    return Album(key=key, fleet=False, owners=owners, clients=100, views=views, view_words="v", seen=seen)


def test_a_page_of_a_hundred_clients_with_the_largest_pictures_is_below_three_megabytes(made, monkeypatch):
    path = made(clients=100, rounds=100, classes=100)
    plain = write_report(path).stat().st_size
    monkeypatch.setattr(page, "gather", worst_album)
    monkeypatch.setattr(albums, "SLOW", 0.0)
    full = write_report(path).stat().st_size
    assert 1_000_000 < full - plain < albums.MOST_BYTES and full < 3_000_000
    assert (path / albums.NAME).stat().st_size < albums.MOST_BYTES  # so that it can be read again
    monkeypatch.setattr(page, "gather", lambda run, key: pytest.fail("kept pictures are read"))
    assert write_report(path).stat().st_size == full


def small_run(tmp_path, **settings):
    words = {
        "model": "small_cnn",
        "width": 4,
        "rounds": 1,
        "clients": 2,
        "bits": [4, 8],
        "batch_size": 16,
        "workers": 1,
    }
    return start(load_config("smoke", words | settings), tmp_path / "run", say=lambda line: None).folder


def test_grey_images(tmp_path):
    pytest.importorskip("sklearn")
    text = write_report(small_run(tmp_path, data="digits", images=200)).read_text()
    found = gather.gather(read_run(tmp_path / "run"), "")
    assert decoded(found.owners[0].pictures[0].uri).shape == (32, 32)
    assert "saturation" not in found.view_words and 'data-gallery="answers"' in text


def test_images_without_labels(tmp_path):
    pictures = tmp_path / "photos"
    pictures.mkdir()
    draw = np.random.default_rng(0)
    for i in range(60):
        Image.fromarray(draw.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(pictures / f"{i}.png")
    folder = small_run(tmp_path, data=f"folder:{pictures}", images=None)
    text, found = write_report(folder).read_text(), gather.gather(read_run(folder), "")
    assert 'data-gallery="neighbours"' in text and 'data-gallery="answers"' not in text
    assert "training images, because none are held out" in text and "Of the same class" not in text
    assert found.seen.answers is None and {p[2] for p in found.seen.features.points} == {-1}


def test_a_fleet_shows_only_its_buffer_and_says_so(real, tmp_path):
    path, photos = copy_of(real, tmp_path), tmp_path / "photos"
    photos.mkdir()
    context = build_simulation(load_run_config(path))
    for i, image in enumerate(context.buffer()):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(photos / f"{i:03d}.png")
    own = {"buffer": f"folder:{photos}", "buffer_images": len(context.buffer()), "buffer_ratio": None}
    (path / "config.toml").write_text(to_toml(context.config.model_copy(update={"engine": "flower", **own})))
    parts = {n: {"train": len(s.train), "test": len(s.test)} for n, s in context.partition.clients.items()}
    (path / "partition.json").write_text(json.dumps({"buffer": len(context.buffer()), "clients": parts}))
    data = json.loads((path / "data.json").read_text())
    (path / "data.json").write_text(json.dumps(data | {"labels": None}))
    noted = json.loads((path / "environment.json").read_text())
    text = write_report(path).read_text()
    assert "shown only with --trust" in text and "<img" not in text
    files = sorted(photos.iterdir())
    read = torch.stack([torch.from_numpy(np.array(Image.open(f))).permute(2, 0, 1) for f in files])
    order = gather.read_source(read_run(path, trust=True)).buffer
    assert sorted(map(data_uri, order)) == sorted(map(data_uri, read))
    none = ImageSet(order[:0])
    (path / "environment.json").write_text(json.dumps(noted | {"images_sha256": images_digest(none, none, order)}))
    text = write_report(path).read_text()
    assert "This run was on real machines: the clients&#39; images stay on them, and the server has none." in text
    assert "images and labels are on their own machines" in text
    with pytest.raises(RunError, match="is a run of a fleet, and clients keep their images; use clients/NAME/state"):
        FinishedRun.open(path)
    found = gather.gather(read_run(path), "")
    assert found.fleet and len(found.owners) == 1 and found.seen.answers is None
    buffer = set(map(data_uri, order))
    assert {p.uri for row in (*found.owners, *found.seen.near) for p in row.pictures} <= buffer


def test_without_an_aggregated_model_a_clients_model_looks(tmp_path):
    folder = small_run(tmp_path, algorithm="local_only", images=200)
    found = gather.gather(read_run(folder), "")
    sizes = read_run(folder).train
    assert found.seen.model == f"the model of {max(sorted(sizes), key=sizes.get)} after round 1"


def test_every_picture_of_a_page_has_words_and_the_answers_their_control(real):
    text = write_report(real).read_text()
    for name in ("images", "views", "neighbours", "answers"):
        assert f'data-gallery="{name}"' in text
    images = text.count("<img ")
    below = re.findall(
        r'alt=""><span>(.*?)</span>', text, re.S
    )  # a screen reader reads these words, and reads them once
    assert (
        images > 60
        and text.count('alt="') == images
        and text.count('alt=""') == len(below)
        and all(map(str.strip, below))
    )
    best = max(json.loads((real / "result.json").read_text())["controls"].values())
    assert f" {100 * best:.1f}%. Drawn at random; below each picture" in text
    assert "give it only to people who may see them" in text and "only its buffer would be shown" in text


def test_the_report_of_a_run_that_ended_changes_nothing_else(real, tmp_path, monkeypatch):
    path = copy_of(real, tmp_path)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    monkeypatch.setattr(albums, "SLOW", 0.0)
    assert finished_report(path) == f"the report is {path / 'report.html'}"
    after = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    assert {p.name for p in after.keys() - before.keys()} == {"report.html", albums.NAME}
    assert all(after[p] == data for p, data in before.items())


def test_a_report_that_fails_is_a_line(real, tmp_path, monkeypatch):
    path = copy_of(real, tmp_path)
    (path / "report.html").mkdir()
    said = finished_report(path)
    assert said.startswith("warning: no report was written (") and said.endswith(
        f"try again with: fedqssl report {path}"
    )
    monkeypatch.setattr(page, "run_page", lambda *a: 1 / 0)
    (path / "report.html").rmdir()
    assert "ZeroDivisionError" in finished_report(path) and "\n" not in finished_report(path)


def test_the_key_follows_the_model_and_the_images(real, tmp_path):
    path = copy_of(real, tmp_path)
    first = key_of(read_run(path))
    state = sorted((path / "checkpoints").glob("round-*/state.json"))[-1]
    state.write_text(state.read_text() + " ")
    second = key_of(read_run(path))
    noted = json.loads((path / "environment.json").read_text())
    (path / "environment.json").write_text(json.dumps(noted | {"images_sha256": "0"}))
    assert len({first, second, key_of(read_run(path))}) == 3
