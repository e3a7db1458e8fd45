"""Choose and make the pictures of a report: images of clients, views, neighbours, answers, maps.

Everything is drawn with generators of the run's seed, so that the same run has the same pictures.

Legend: x (N, d) features of N images, y (N,) their labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedqssl.data.images import ImageSet
from fedqssl.evaluation import extract_features
from fedqssl.evaluation.classifier import folded_logistic
from fedqssl.federated.randomness import derived_seed, generator
from fedqssl.imported import one_line
from fedqssl.reporting.album import Album, Answer, Answers, Map, Picture, Row, Seen
from fedqssl.reporting.data import RunData
from fedqssl.reporting.png import data_uri, thumbnail
from fedqssl.reporting.sources import Source, read_source
from fedqssl.reporting.theme import bits_words, counted, percent
from fedqssl.runs.evaluate import load
from fedqssl.runs.folder import RunFolder
from fedqssl.ssl.views import ViewConfig

CLIENTS, PER_CLIENT = 12, 6
"""Clients that are shown, and images of each."""
VIEWED, VIEWS = 3, 4
"""Images whose views are shown, and views of each."""
QUERIES, NEIGHBOURS = 5, 5
ANSWERS = 6
"""Right answers that are shown, and wrong ones."""
LOOKED_AT = 400
"""Images that neighbours, answers and maps are of."""
TAUGHT = 1000
"""Training images that the classifier of the answers learns from."""
SMALL = 32
"""Side of the images that are compared by their pixels."""


def gather(run: RunData, key: str) -> Album | str:
    """All pictures of a run; a sentence if its images cannot be shown."""
    source = read_source(run)
    if isinstance(source, str):
        return source
    views = source.task.views
    return Album(
        key=key,
        fleet=source.simulation is None,
        owners=_owners(run, source),
        clients=len(run.clients),
        views=_views(run, source),
        view_words=view_words(views, source.buffer.shape[1]),
        seen=_seen(run, source),
    )


def _drawn(count: int, most: int, run: RunData, *purpose: object) -> Tensor:
    """At most so many of ``count`` positions, drawn with the run's seed."""
    return torch.randperm(count, generator=generator(run.config.seed, "report", *purpose))[:most]


def _label(run_names: Sequence[str], labels: Tensor | None, at: int) -> str:
    return "" if labels is None else run_names[int(labels[at])]


def class_names(source: Source) -> list[str]:
    """A name for every class; none without labels."""
    if source.simulation is None or source.simulation.train.labels is None:
        return []
    known = source.simulation.train.class_names or ()
    count = max(source.task.classes, len(known))
    return [known[i] if i < len(known) else f"class {i}" for i in range(count)]


def _owners(run: RunData, source: Source) -> list[Row]:
    """A few images of some clients, few bits first, and of the buffer."""
    found, names, context = [], class_names(source), source.simulation
    if context is not None:
        order = sorted(run.clients, key=lambda c: (c.bits, c.name))
        step = max(len(order) / CLIENTS, 1.0)
        for client in (order[int(i * step)] for i in range(min(CLIENTS, len(order)))):
            held = context.partition.clients[client.name].train
            at = held[_drawn(len(held), PER_CLIENT, run, "client", client.name)].tolist()
            labels = context.train.labels
            pictures = [
                Picture(uri=data_uri(context.train.images[i]), words=_label(names, labels, i) or f"image {i}")
                for i in at
            ]
            words = f"{client.name} · {bits_words(client.bits)} · {counted(len(held), 'image')}"
            found.append(Row(words=words, pictures=pictures))
    at = _drawn(len(source.buffer), PER_CLIENT, run, "buffer").tolist()
    pictures = [Picture(uri=data_uri(source.buffer[i]), words=f"image {i}") for i in at]
    return [*found, Row(words=f"the server's buffer · {counted(len(source.buffer), 'image')}", pictures=pictures)]


def _views(run: RunData, source: Source) -> list[Row]:
    """Images of the buffer, each with views as training makes them."""
    chosen = source.buffer[_drawn(len(source.buffer), VIEWED, run, "viewed")]
    draw = generator(run.config.seed, "report", "views")
    pairs = [source.task.two_views(chosen, draw) for _ in range(VIEWS // 2)]
    made = torch.cat(pairs).mul(255).round().to(torch.uint8)
    found = []
    for i, image in enumerate(chosen):
        own = [made[j] for j in range(i, len(made), len(chosen))]
        pictures = [Picture(uri=data_uri(image), words="image")]
        pictures += [Picture(uri=data_uri(v), words=f"view {j}") for j, v in enumerate(own, 1)]
        found.append(Row(words=f"image {i + 1}", pictures=pictures))
    return found


def view_words(views: ViewConfig, channels: int) -> str:
    """The settings that made the views, in a sentence."""
    low, high = (f"{100 * bound:g}%" for bound in views.scale)
    parts = [f"crops of {low} to {high} of the area", f"flipped with probability {views.flip_p:g}"]
    strengths = {"brightness": views.brightness, "contrast": views.contrast}
    strengths |= {"saturation": views.saturation, "hue": views.hue} if channels == 3 else {}
    changed = ", ".join(f"{name} {value:g}" for name, value in strengths.items() if value)
    if changed and views.jitter_p:
        parts.append(f"{changed} with probability {views.jitter_p:g}")
    if views.grayscale_p and channels == 3:
        parts.append(f"grey with probability {views.grayscale_p:g}")
    parts += [f"{views.size}x{views.size} pixels"] if views.size else []
    return "; ".join(parts)


@dataclass(frozen=True, eq=False)
class _Pool:
    """The images that a model looks at: what they are, and their labels."""

    words: str
    data: ImageSet
    held_out: bool


def _pool(run: RunData, source: Source) -> _Pool:
    """Test images; where there are none, training images; on a fleet, the buffer's."""
    if source.simulation is None:
        data, words = ImageSet(source.buffer), "images of the server's buffer"
    elif len(source.simulation.test):
        data, words = source.simulation.test, "test images"
    else:
        data, words = source.simulation.train, "training images, because none are held out"
    chosen = _drawn(len(data), LOOKED_AT, run, "looked at")
    kept = ImageSet(data.images[chosen], None if data.labels is None else data.labels[chosen])
    drawn = "" if len(kept) == len(data) else f", drawn from {len(data):,}"
    return _Pool(f"{len(kept):,} {words}{drawn}", kept, words == "test images")


def _seen(run: RunData, source: Source) -> Seen | str:
    """What the newest model makes of some images; a sentence if there is none."""
    try:
        checkpoint = RunFolder(run.path).latest()
        if checkpoint is None:
            return "There is no model yet: the first round is not finished."
        pool = _pool(run, source)
        if checkpoint.aggregated is not None:
            who, bits, payload = "the aggregated model", 32, checkpoint.aggregated
        else:  # clients alone: the one with most images
            name = max(sorted(run.train), key=run.train.__getitem__)
            who, bits, payload = f"the model of {name}", run.bits[name], checkpoint.payloads[name]
        model = load(source.task, bits, payload)
        encoder = source.task.extractor(model, pool.data.images.shape[-1])
        x = extract_features(encoder, pool.data.images).flatten(1)
        if not bool(torch.isfinite(x).all()):
            return "The model's features are not finite: it diverged."
        logits = None
        if pool.held_out and pool.data.labels is not None and source.simulation is not None:
            logits = (
                extract_features(model, pool.data.images)
                if source.task.supervised
                else _probe(run, encoder, source.simulation.train, source.task.classes, x)
            )
    except (ValueError, OSError, RuntimeError, KeyError) as error:
        return f"No model could look at the images ({one_line(error)})."
    names = class_names(source)
    small = torch.stack([thumbnail(image, SMALL) for image in pool.data.images]).flatten(1).float() / 255
    kind = (
        "its own classifier" if source.task.supervised else f"a linear classifier fitted on at most {TAUGHT:,} images"
    )
    return Seen(
        model=f"{who} after round {checkpoint.rounds_done}",
        images=pool.words,
        near=_neighbours(run, pool.data, names, x),
        same=_same(pool.data.labels, x, small),
        features=flat_map(F.normalize(x.double(), dim=1), pool.data.labels),
        pixels=flat_map(small.double(), pool.data.labels),
        class_names=names,
        answers=None if logits is None else _answers(run, pool.data, names, logits, kind),
    )


def _probe(run: RunData, encoder: torch.nn.Module, train: ImageSet, classes: int, x: Tensor) -> Tensor | None:
    """Logits of a linear classifier on the model's features of some training images."""
    if train.labels is None:
        return None
    chosen = _drawn(len(train), TAUGHT, run, "taught")
    known = extract_features(encoder, train.images[chosen]).flatten(1)
    draw = torch.Generator().manual_seed(derived_seed(run.config.seed, "report", "classifier"))
    weight, bias = folded_logistic(known, train.labels[chosen], classes, draw)
    return x @ weight + bias


def _nearest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cosine similarity and positions of the nearest other images, (N, count) each."""
    u = F.normalize(x.double(), dim=1)
    near = (u @ u.T).fill_diagonal_(-torch.inf)
    found = near.topk(min(count, len(x) - 1), dim=1)
    return found.values, found.indices


def _neighbours(run: RunData, data: ImageSet, names: Sequence[str], x: Tensor) -> list[Row]:
    """A few images, of different classes if there are labels, each followed by its nearest neighbours."""
    if len(x) < 2:
        return []
    similar, index = _nearest(x, NEIGHBOURS)
    order = _drawn(len(x), len(x), run, "queries").tolist()
    if data.labels is not None:
        kinds = data.labels.tolist()
        firsts = {kinds[i]: i for i in reversed(order)}
        order = [*firsts.values(), *(i for i in order if i not in set(firsts.values()))]
        order = sorted(order[: len(firsts)], key=order.index) + order[len(firsts) :]
    found = []
    for i in order[:QUERIES]:
        label = _label(names, data.labels, i)
        pictures = [Picture(uri=data_uri(data.images[i]), words=label or "asked")]
        for j, s in zip(index[i].tolist(), similar[i].tolist(), strict=True):
            other = _label(names, data.labels, j)
            pictures.append(Picture(uri=data_uri(data.images[j]), words=f"{other} {s:.2f}".strip()))
        found.append(Row(words=label or "an image", pictures=pictures))
    return found


def _same(labels: Tensor | None, x: Tensor, pixels: Tensor) -> list[float]:
    """Share of nearest neighbours of the same class: by features, by pixels, by chance."""
    if labels is None or len(x) < 2:
        return []
    shares = [float((labels[_nearest(v, NEIGHBOURS)[1]] == labels[:, None]).double().mean()) for v in (x, pixels)]
    counts = torch.bincount(labels).double()
    chance = float((counts * (counts - 1)).sum() / (len(labels) * (len(labels) - 1)))
    return [round(share, 4) for share in (*shares, chance)]


def flat_map(x: Tensor, labels: Tensor | None) -> Map:
    """The two principal directions of x (N, d), scaled to -1..1; their signs do not depend on the solver."""
    centred = x - x.mean(0)
    u, s, v = torch.linalg.svd(centred, full_matrices=False)
    places = torch.zeros(len(x), 2, dtype=x.dtype)
    count = min(2, len(s))
    for c in range(count):
        turn = 1.0 if v[c][v[c].abs().argmax()] >= 0 else -1.0
        places[:, c] = turn * s[c] * u[:, c]
    places = places / places.abs().max().clamp(min=1e-12)
    total = s.square().sum().clamp(min=1e-30)
    shares = [round(float(s[c].square() / total), 4) for c in range(count)] + [0.0] * (2 - count)
    kinds = [-1] * len(x) if labels is None else labels.tolist()
    rows = [(round(a, 3), round(b, 3), k) for (a, b), k in zip(places.tolist(), kinds, strict=True)]
    return Map(points=rows, shares=(shares[0], shares[1]))


def _answers(run: RunData, data: ImageSet, names: Sequence[str], logits: Tensor, how: str) -> Answers:
    """Some right and some wrong answers, the surest first."""
    assert data.labels is not None
    sure, answer = logits.double().softmax(1).max(1)
    good = answer == data.labels
    shown = []
    for kind in (True, False):
        at = (good == kind).nonzero().flatten()
        chosen = at[_drawn(len(at), ANSWERS, run, "answers", kind)].tolist()
        shown.append(
            [
                Answer(
                    picture=Picture(
                        uri=data_uri(data.images[i]), words=f"{names[int(answer[i])]} {percent(float(sure[i]), 0)}"
                    ),
                    label=names[int(data.labels[i])],
                    answer=names[int(answer[i])],
                    confidence=round(float(sure[i]), 4),
                )
                for i in sorted(chosen, key=lambda i: -float(sure[i]))
            ]
        )
    return Answers(right=shown[0], wrong=shown[1], asked=len(good), correct=int(good.sum()), how=how)


__all__ = ["class_names", "flat_map", "gather", "view_words"]
