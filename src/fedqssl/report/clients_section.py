"""Parts of the page about the clients: who loses, and who holds which labels."""

from __future__ import annotations

from collections.abc import Sequence

from fedqssl.report.charts import Point, Row, heat_map, rows_chart, scatter
from fedqssl.report.data import Client, RunData, mean
from fedqssl.report.html import Child, Markup, el, figure, grid, section, table
from fedqssl.report.svg import legend
from fedqssl.report.theme import Look, bits_words, percent, percent_tick, plain, tick
from fedqssl.units import bytes_text

FEW = 24
"""Clients up to which whiskers are drawn."""
ROUNDING = 1e-6
"""Accuracies are shares of a few images, as floats: less than this apart, they are equal."""


def _ranks(values: Sequence[float]) -> list[float]:
    """Ranks from 1; equal values share theirs."""
    return [sum(w < v for w in values) + (sum(w == v for w in values) + 1) / 2 for v in values]


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> float | None:
    """Spearman's rho; None if one of the two does not vary."""
    a, b = _ranks(x), _ranks(y)
    ma, mb = mean(a), mean(b)
    over = sum((p - ma) * (q - mb) for p, q in zip(a, b, strict=True))
    under = (sum((p - ma) ** 2 for p in a) * sum((q - mb) ** 2 for q in b)) ** 0.5
    return over / under if under else None


def _tip(c: Client) -> str:
    words = f"{c.name}, {bits_words(c.bits)}: {percent(c.accuracy)} ± {100 * c.error:.1f}, {c.train} images"
    return words if c.classes is None else f"{words} of {c.classes:.1f} effective classes"


def who_loses(run: RunData, look: Look) -> Markup:
    """Accuracy of every client against its bits and its data."""
    clients = [c for c in run.clients if c.accuracy is not None]
    title = "Who loses?"
    if not clients:
        why = (
            "These data have no labels, so there is no accuracy to compare."
            if run.result is not None
            else "Local accuracy is measured when the run ends."
        )
        return section("clients", title, el("p", why, class_="empty"), grid(_client_card(run)))
    cards = [
        _by_bits(clients, look),
        _by_images(clients, look),
        _by_classes(clients, look),
        _dumbbells(clients, look),
        _client_card(run, "card rest" if run.labels is not None else "card full"),
    ]
    return section("clients", title, grid(*cards), lead=_verdict(clients))


def _verdict(clients: Sequence[Client]) -> str:
    """In words: the worst client, the bitwidths, what accuracy goes with, and who is no better than a guess."""
    accuracies = [c.accuracy or 0.0 for c in clients]
    centre = mean(accuracies)
    worst = min(clients, key=lambda c: c.accuracy or 0.0)
    lines = [
        f"{worst.name} ({bits_words(worst.bits)}, {worst.train} images) does worst: {percent(worst.accuracy)}, "
        f"{100 * (centre - (worst.accuracy or 0.0)):.1f} points below the mean of {percent(centre)}."
    ]
    groups = {b: mean([c.accuracy or 0.0 for c in clients if c.bits == b]) for b in sorted({c.bits for c in clients})}
    if len(groups) > 1:
        lines.append("Mean by bits: " + ", ".join(f"{bits_words(b)} {percent(v)}" for b, v in groups.items()) + ".")
    if len(clients) >= 5:
        found = []
        for words, values in (
            ("bits", [float(c.bits) for c in clients]),
            ("number of images", [float(c.train) for c in clients]),
            ("number of classes held", [c.classes for c in clients if c.classes is not None]),
        ):
            rho = rank_correlation(values, accuracies) if len(values) == len(clients) else None
            if rho is not None:
                found.append(f"{words} {rho:+.2f}")
        if found:
            lines.append(f"Rank correlation of accuracy over {len(clients)} clients: {', '.join(found)}.")
    behind = [c for c in clients if c.guess is not None and (c.accuracy or 0.0) <= c.guess + ROUNDING]
    if behind:
        who = ", ".join(c.name for c in behind[:4]) + (f" and {len(behind) - 4} more" if len(behind) > 4 else "")
        lines.append(f"No better than always naming their commonest class: {who}.")
    elif clients[0].guess is not None:
        lines.append("Every client does better than always naming its commonest class.")
    return " ".join(lines)


def _points(clients: Sequence[Client], look: Look, xs: Sequence[float]) -> list[Point]:
    errors = [c.error if len(clients) <= FEW else 0.0 for c in clients]
    return [
        Point(x, c.accuracy or 0.0, look.shape(c.bits), look.kind(c.bits), _tip(c), error=e)
        for c, x, e in zip(clients, xs, errors, strict=True)
    ]


def _by_bits(clients: Sequence[Client], look: Look) -> Markup:
    """A strip per bitwidth; points of a strip are set side by side, so that equal ones are seen."""
    xs = []
    for i, bits in enumerate(look.bits):
        of = [c for c in clients if c.bits == bits]
        step = min(0.11, 0.64 / max(len(of) - 1, 1))
        xs += [(c.name, i + step * (j - (len(of) - 1) / 2)) for j, c in enumerate(sorted(of, key=lambda c: c.name))]
    places = dict(xs)
    ticks = [float(i) for i in range(len(look.bits))]
    label = "Local accuracy of every client by its bits"
    chart = scatter(
        label,
        _points(clients, look, [places[c.name] for c in clients]),
        lambda v: bits_words(look.bits[round(v)]),
        percent_tick,
        "client's bits",
        ticks=ticks,
    )
    rows: list[list[Child]] = []
    for bits in look.bits:
        of_bits = [c.accuracy or 0.0 for c in clients if c.bits == bits]
        if of_bits:
            rows.append(
                [bits_words(bits), len(of_bits), percent(min(of_bits)), percent(mean(of_bits)), percent(max(of_bits))]
            )
    data = table(["bits", "clients", "lowest", "mean", "highest"], rows, label)
    note = "Each client's s-bit model on its own held-out images" + (
        "; whiskers are one standard error." if len(clients) <= FEW else "."
    )
    return figure("accuracy-bits", "Accuracy against bits", chart, note=note, legend=look.legend(), data=data)


def _by_images(clients: Sequence[Client], look: Look) -> Markup:
    counts = [float(c.train) for c in clients]
    log = min(counts) > 0 and max(counts) > 12 * min(counts)
    label = "Local accuracy of every client by its number of training images"
    chart = scatter(
        label,
        _points(clients, look, counts),
        tick,
        percent_tick,
        "training images" + (" (logarithmic)" if log else ""),
        log=log,
    )
    return figure(
        "accuracy-images",
        "Accuracy against images",
        chart,
        note="Does a client with little data do worse?",
        legend=look.legend(),
    )


def _by_classes(clients: Sequence[Client], look: Look) -> Markup | None:
    known = [c for c in clients if c.classes is not None]
    if not known:
        return None
    label = "Local accuracy of every client by the effective number of classes it holds"
    chart = scatter(
        label,
        _points(known, look, [c.classes or 0.0 for c in known]),
        tick,
        percent_tick,
        "effective classes (exp of label entropy)",
    )
    note = "A client with few classes has an easy test: compare with the guess below."
    return figure("accuracy-classes", "Accuracy against variety", chart, note=note, legend=look.legend())


def _dumbbells(clients: Sequence[Client], look: Look) -> Markup | None:
    known = sorted((c for c in clients if c.guess is not None), key=lambda c: (c.accuracy or 0.0) - (c.guess or 0.0))
    if not known:
        return None
    rows = []
    for c in known:
        guess = Point(
            c.guess or 0.0, 0, "cross", "quiet", f"{c.name}: naming its commonest class gives {percent(c.guess)}"
        )
        rows.append(
            Row(
                c.name,
                [guess, Point(c.accuracy or 0.0, 0, look.shape(c.bits), look.kind(c.bits), _tip(c))],
                joined=True,
            )
        )
    label = "Every client's accuracy beside that of always naming its commonest class, smallest gain first"
    chart = rows_chart(label, rows, percent_tick, "local accuracy", bounds=(0.0, 1.0))
    entries = [
        ("commonest class", "cross", "quiet"),
        *((bits_words(b), look.shape(b), look.kind(b)) for b in look.bits),
    ]
    note = "What learning is worth to each client; smallest gain on top."
    data = table(
        ["client", "commonest class", "accuracy", "gain"],
        [
            [c.name, percent(c.guess), percent(c.accuracy), f"{100 * ((c.accuracy or 0.0) - (c.guess or 0.0)):+.1f}"]
            for c in known
        ],
        label,
    )
    return figure("gain", "Gain over a guess", chart, note=note, legend=legend(entries), data=data)


def _client_card(run: RunData, kind: str = "card full") -> Markup:
    """All clients as a table that can be sorted."""
    rows: list[list[Child]] = [
        [
            c.name,
            bits_words(c.bits),
            c.train,
            c.test,
            plain(c.classes, 1),
            percent(c.guess),
            percent(c.accuracy),
            plain(c.loss),
            plain(c.weight, 4),
            "–" if c.bytes_up is None else bytes_text(c.bytes_up),
            "–" if c.bytes_down is None else bytes_text(c.bytes_down),
        ]
        for c in run.clients
    ]
    head = [
        "client",
        "bits",
        "images",
        "test images",
        "effective classes",
        "commonest class",
        "accuracy",
        "last loss",
        "last weight",
        "sent",
        "received",
    ]
    note = "Choose a column's head to sort by it."
    return el(
        "div",
        el("h3", "All clients"),
        el("p", note, class_="note"),
        table(head, rows, "All clients"),
        class_=kind,
    )


def partition(run: RunData, look: Look) -> Markup:
    """Label heat map, and how many images each client has."""
    labels, title = run.labels, "Who holds which labels"
    if labels is None:
        words = "The labels are not known: these data have none, or they are not at hand any more."
        return section("partition", title, el("p", words, class_="empty"))
    order = sorted(run.clients, key=lambda c: (c.bits, c.name))
    many = len(order) > 40
    counts = [labels.train[c.name] for c in order]
    names = [f"{c.name} · {c.bits}" if not many else f"{c.name}, {bits_words(c.bits)}" for c in order]
    tips = []
    for c, row in zip(order, counts, strict=True):
        top = sorted(range(len(row)), key=lambda j: -row[j])[:3]
        tips.append(
            f"{c.name}, {bits_words(c.bits)}, {c.train} images: mostly "
            + ", ".join(f"{labels.class_names[j]} ({row[j]})" for j in top if row[j])
        )
    label = f"Training images of {len(labels.class_names)} classes at {len(order)} clients; darker is more"
    chart = heat_map(label, names, labels.class_names, counts, tips, "images")
    fewest, most = min(run.train.values()), max(run.train.values())
    held = [sum(v > 0 for v in row) for row in counts]
    lead = (
        f"{len(order)} clients hold {fewest:,} to {most:,} training images of {min(held)} to {max(held)} of "
        f"{len(labels.class_names)} classes; the server's unlabeled buffer has {run.buffer:,}."
    )
    data = table(["client", *labels.class_names], [[c.name, *row] for c, row in zip(order, counts, strict=True)], label)
    note = "Rows are clients by bits, columns are classes; darker is more (square-root scale)."
    card = figure("labels", "Training images by client and class", chart, note=note, data=data)
    return section("partition", title, grid(card, _sizes(order, look)), lead=lead)


def _sizes(clients: Sequence[Client], look: Look) -> Markup:
    """Training images of every client, fewest first."""
    order = sorted(clients, key=lambda c: c.train)
    rows = [
        Row(
            c.name,
            [
                Point(
                    float(c.train),
                    0,
                    look.shape(c.bits),
                    look.kind(c.bits),
                    f"{c.name}, {bits_words(c.bits)}: {c.train:,} training and {c.test:,} test images",
                )
            ],
        )
        for c in order
    ]
    label = "Training images of every client, fewest first"
    counts = [float(c.train) for c in order]
    log = min(counts) > 0 and max(counts) > 12 * min(counts)
    chart = rows_chart(
        label,
        rows,
        tick,
        "training images" + (" (logarithmic)" if log else ""),
        log=log,
        bounds=None if log else (0.0, 1.05 * max(counts)),
    )
    return figure("sizes", "Images of every client", chart, note="Fewest on top.", legend=look.legend())


__all__ = ["partition", "rank_correlation", "who_loses"]
