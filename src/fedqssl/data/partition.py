"""Who holds which images: client splits with their own label distributions, and the server's unlabeled buffer D_g.

Every client's test images are a stratified part of its own share, so that they follow its own label distribution. The buffer is
drawn first, uniformly over all images and without using labels; the buffer, the clients' training images and their test images
are disjoint. All sizes are checked: an impossible split is an error that says which setting to change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedqssl.data.bursts import Units, fitting
from fedqssl.data.images import ImageSet
from fedqssl.data.splits import ClientSplit, Partition, PartitionError
from fedqssl.files import is_folder_name
from fedqssl.imported import nearest

MIN_TRAIN = 8
MIN_TEST = 2
MIN_BUFFER = 2
_TRIES = 200


def client_names(count: int) -> list[str]:
    """``client-00``, ``client-01``, ...: as many digits as are needed, at least two."""
    digits = max(2, len(str(count - 1)))
    return [f"client-{i:0{digits}d}" for i in range(count)]


Assign = Callable[[np.ndarray, int, np.random.Generator], list[np.ndarray]]


def iid(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Every client gets an equal share of a random order."""
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def dirichlet(beta: float) -> Assign:
    """For each class, shares of the clients drawn from Dirichlet(beta): small beta, few classes per client (Sec. 5)."""
    if not 0 < beta < float("inf"):
        raise PartitionError(f"beta must be a positive number, not {beta}; the paper uses 0.1, 0.5 and 5")

    def assign(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label in np.unique(labels):
            members = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(clients, beta))
            if not np.isfinite(shares).all():
                raise PartitionError(f"beta {beta} is outside the numeric range; the paper uses 0.1, 0.5 and 5")
            cuts = (np.cumsum(shares)[:-1] * len(members)).astype(int)
            for part, piece in zip(parts, np.split(members, cuts), strict=True):
                part.append(piece)
        return [np.sort(np.concatenate(part)) for part in parts]

    return assign


def classes_per_client(k: int) -> Assign:
    """Every client holds k classes, assigned so that the classes have as equal numbers of holders as possible."""
    if k < 1:
        raise PartitionError(f"classes per client must be at least 1, not {k}")

    def assign(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        classes = np.unique(labels)
        if k > len(classes):
            raise PartitionError(f"{k} classes per client, but the images have only {len(classes)} classes")
        if clients * k < len(classes):
            raise PartitionError(
                f"{clients} clients with {k} classes each cannot hold {len(classes)} classes; "
                f"use at least {-(-len(classes) // k)} clients or more classes per client"
            )
        order = rng.permutation(classes)
        held = [[order[(c * k + j) % len(order)] for j in range(k)] for c in range(clients)]
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for label in classes:
            holders = [c for c in range(clients) if label in held[c]]
            members = rng.permutation(np.flatnonzero(labels == label))
            for c, piece in zip(holders, np.array_split(members, len(holders)), strict=True):
                parts[c].append(piece)
        return [np.sort(np.concatenate(part)) for part in parts]

    return assign


def two_n_way(minority: float) -> Assign:
    """The paper's 2n-way skew (App. A.4): n clients, 2n classes; client k has classes 2k and 2k+1 and a few images of the others.

    ``minority`` is the share of each class that is spread evenly over the clients that do not own it.
    """
    if not 0 <= minority < 1:
        raise PartitionError(f"the minority share must be in [0, 1), not {minority}")

    def assign(labels: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        classes = np.unique(labels)
        if len(classes) != 2 * clients:
            raise PartitionError(
                f"the 2n-way skew needs twice as many classes as clients: {len(classes)} classes go with "
                f"{len(classes) // 2} clients, not {clients}"
            )
        parts: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for i, label in enumerate(classes):
            members = rng.permutation(np.flatnonzero(labels == label))
            others = rng.permutation([c for c in range(clients) if c != i // 2])
            few = round(minority * len(members)) if clients > 1 else 0
            parts[i // 2].append(members[few:])
            if few:
                for c, piece in zip(others, np.array_split(members[:few], len(others)), strict=True):
                    parts[c].append(piece)
        return [np.sort(np.concatenate(part)) for part in parts]

    return assign


def natural(groups: Sequence[str]) -> dict[str, np.ndarray]:
    """One client per group (folder or metadata value), named after it, in sorted order."""
    for name in sorted(set(groups)):
        if not is_folder_name(name):
            raise PartitionError(
                f"group {name!r} cannot be used as a folder name; rename it without / \\ : * ? and outer dots"
            )
    names, found, counts = np.unique(np.asarray(groups), return_inverse=True, return_counts=True)
    parts = np.split(np.argsort(found, kind="stable"), np.cumsum(counts)[:-1])
    return dict(zip(map(str, names), parts, strict=True))


def make_partition(
    count: int,
    labels: Tensor | None,
    assign: Assign,
    clients: int,
    buffer_ratio: float | None,
    seed: int,
    holdout: float = 0.2,
    remedy: str = "fewer clients or more images",
    bursts: Sequence[str] | None = None,
    buffer_last: bool = False,
) -> Partition:
    """Draw the buffer, distribute the rest to the clients, and split each client's share into training and test images.

    Draws are repeated (up to 200 times) until every client has at least 8 training and, if any are held out, 2 test images.

    Args:
        count: number of images.
        labels: one per image, (count,), or None if ``assign`` does not need them.
        assign: distributes images to clients by their labels.
        clients: their number.
        buffer_ratio: share of the images that goes to the server's buffer; None if it has images of its own.
        seed: for all draws.
        holdout: share of each client's images that is its test set; 0 leaves it empty.
        remedy: what an error about small shares recommends.
        bursts: the burst of each image, if any: a burst goes to one client, or to the buffer, and is not split.
        buffer_last: distribute all images, then take the buffer's from the clients: these do not depend on ``buffer_ratio``.
    """
    if clients < 1:
        raise PartitionError(f"at least 1 client is needed, not {clients}")
    units = Units(count, bursts)
    values = _values(count, labels)[units.first]
    buffer, rest = _buffer(len(units), buffer_ratio, seed)
    left, needed = units.count(rest), MIN_TRAIN + (MIN_TEST if holdout else 0)
    if left < clients * needed:
        most = left // needed
        advice = f"use at most {most} clients, or more images" if most else "use more images"
        raise PartitionError(
            f"{left} images (after the buffer) are too few for {clients} clients with at least {needed} each; {advice}"
        )
    smallest, dealt = 0, np.arange(len(units)) if buffer_last else rest
    kept = np.isin(np.arange(len(units)), buffer, invert=True)
    for attempt in range(_TRIES):
        rng = np.random.default_rng([seed, 1, attempt])
        shares = [
            found[kept[found]] for found in map(np.unique, (dealt[s] for s in assign(values[dealt], clients, rng)))
        ]
        smallest = max(smallest, least := min(map(units.count, shares)))
        if least >= needed and (not holdout or min(map(len, shares)) > 1):
            named = dict(zip(client_names(clients), shares, strict=True))
            return Partition(units.images(buffer), _cut(named, values, holdout, rng, units))
    several = "" if bursts is None else f" of several bursts ({len(units)} in all)"
    raise PartitionError(
        f"no split of {left} images over {clients} clients gave everyone {needed} images{several} in {_TRIES} draws (the best "
        f"left someone {smallest}); use {remedy}"
    )


def natural_partition(
    groups: Sequence[str],
    labels: Tensor | None,
    buffer_ratio: float | None,
    seed: int,
    holdout: float = 0.2,
    bursts: Sequence[str] | None = None,
) -> Partition:
    """One client per group, named after it; the buffer comes from all groups."""
    units = Units(len(groups), bursts)
    values = _values(len(groups), labels)[units.first]
    members = natural([groups[i] for i in units.first])
    buffer, rest = _buffer(len(units), buffer_ratio, seed)
    free = np.isin(np.arange(len(units)), rest)
    shares = {name: share[free[share]] for name, share in members.items()}
    needed = MIN_TRAIN + (MIN_TEST if holdout else 0)
    small = [name for name, share in shares.items() if units.count(share) < needed]
    if small:
        raise PartitionError(
            f"{len(small)} of {len(shares)} groups have fewer than {needed} images after the buffer (first: '{small[0]}' with "
            f"{units.count(shares[small[0]])}); merge or remove small groups, or use a smaller buffer_ratio"
        )
    whole = [name for name, share in shares.items() if holdout and len(share) < 2]
    if whole:
        raise PartitionError(
            f"all images of '{whole[0]}' are one burst, so none can be held out; use other names, or evaluation.holdout=0"
        )
    cut = _cut(shares, values, holdout, np.random.default_rng([seed, 1, 0]), units)
    return Partition(units.images(buffer), cut)


def _values(count: int, labels: Tensor | None) -> np.ndarray:
    """Labels as a numpy array; all zero if there are none."""
    if labels is None:
        return np.zeros(count, dtype=np.int64)
    if labels.shape != (count,):
        raise PartitionError(f"labels must be ({count},) like the images, not {tuple(labels.shape)}")
    values: np.ndarray = labels.cpu().numpy()
    return values


def _buffer(count: int, ratio: float | None, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The units of the buffer, and the others."""
    if ratio is None:
        return np.arange(0), np.arange(count)
    if not 0 < ratio < 1:
        raise PartitionError(f"buffer_ratio must be between 0 and 1, not {ratio}; the paper's buffer is 0.1")
    if seed < 0:
        raise PartitionError(f"seed must not be negative, not {seed}")
    size = round(count * ratio)
    if size < MIN_BUFFER:
        raise PartitionError(
            f"buffer_ratio {ratio} of {count} images leaves a buffer of {size}; use a larger ratio or more images"
        )
    order = np.random.default_rng([seed, 0]).permutation(count)
    return np.sort(order[:size]), np.sort(order[size:])


def _cut(
    shares: dict[str, np.ndarray], values: np.ndarray, holdout: float, rng: np.random.Generator, units: Units
) -> dict[str, ClientSplit]:
    """Training and test images of each client, stratified: each class is split in the same proportion, up to one image.

    The share is sorted by label (random within a label), and test images are taken at equal steps from a random start. Bursts are
    taken whole, as long as they fit, so that their proportions are less exact.
    """
    if not 0 <= holdout < 1:
        raise PartitionError(f"holdout must be at least 0 and less than 1, not {holdout}; 0.2 is usual")
    if not holdout:
        return {name: ClientSplit(units.images(share), units.images(share[:0])) for name, share in shares.items()}
    splits = {}
    for name, share in shares.items():
        shuffled = rng.permutation(share)
        order = shuffled[np.argsort(values[shuffled], kind="stable")]
        count = units.count(order)
        held = min(max(MIN_TEST, round(count * holdout)), count - MIN_TRAIN)
        steps = max(1, round(held * len(order) / count))
        places = ((np.arange(steps) + rng.random()) * (len(order) / steps)).astype(np.int64)
        test = np.zeros(len(order), dtype=bool)
        test[np.minimum(places, len(order) - 1)] = True
        order = np.concatenate([order[test], order[~test]])
        first = order[fitting(units.sizes[order].tolist(), held)]
        splits[name] = ClientSplit(units.images(np.setdiff1d(order, first)), units.images(first))
    return splits


@dataclass(frozen=True)
class PartitionKind:
    """A way to distribute images to clients; ``assign`` builds it from the settings, None for natural groups."""

    description: str
    needs_labels: bool
    assign: Callable[[float, int, float], Assign] | None
    remedy: str = "fewer clients or more images"


PARTITIONS: dict[str, PartitionKind] = {
    "iid": PartitionKind("every client gets an equal random share", False, lambda beta, k, minority: iid),
    "dirichlet": PartitionKind(
        "shares of each class drawn from Dirichlet(beta); small beta, few classes per client",
        True,
        lambda beta, k, minority: dirichlet(beta),
        "a larger beta, fewer clients or more images",
    ),
    "classes": PartitionKind(
        "every client holds classes_per_client classes",
        True,
        lambda beta, k, minority: classes_per_client(k),
        "more classes per client, fewer clients or more images",
    ),
    "skew": PartitionKind(
        "the paper's 2n-way skew: n clients own two classes each; a minority share of each class goes to the others",
        True,
        lambda beta, k, minority: two_n_way(minority),
    ),
    "natural": PartitionKind("one client per folder or metadata value, named after it", False, None),
}


def build_partition(
    images: ImageSet,
    kind: str,
    clients: int | None = None,
    beta: float = 0.1,
    classes_per_client: int = 2,
    minority: float = 0.05,
    buffer_ratio: float | None = 0.1,
    seed: int = 0,
    holdout: float = 0.2,
    buffer_last: bool = False,
) -> Partition:
    """Split an image set by one of ``PARTITIONS``.

    Args:
        images: what to split.
        kind: a name in ``PARTITIONS``.
        clients: their number; may be None for ``natural``, where it is the number of groups.
        beta: for ``dirichlet``.
        classes_per_client: for ``classes``.
        minority: for ``skew``.
        buffer_ratio: share of the images that becomes the server's buffer; None if it has images of its own.
        seed: the same seed gives the same partition.
        holdout: share of each client's images that is its test set; 0 leaves it empty.
        buffer_last: as for :func:`make_partition`; natural clients never depend on the buffer.

    Raises:
        PartitionError: the message says which setting cannot work and what to change.
    """
    if kind not in PARTITIONS:
        hint = nearest(kind, PARTITIONS, f"; choose from {', '.join(PARTITIONS)}")
        raise PartitionError(f"unknown partition '{kind}'{hint}")
    entry = PARTITIONS[kind]
    if entry.needs_labels and images.labels is None:
        raise PartitionError(f"partition '{kind}' needs labels, but these images have none; use iid or natural")
    if entry.assign is None:
        if images.groups is None:
            raise PartitionError("these images have no natural groups; put each client's into a folder, or use iid")
        found = len(set(images.groups))
        if clients is not None and clients != found:
            raise PartitionError(f"these images have {found} natural groups, not {clients}; set clients={found}")
        return natural_partition(images.groups, images.labels, buffer_ratio, seed, holdout, images.bursts)
    if clients is None:
        raise PartitionError(f"partition '{kind}' needs a number of clients; set, for example, clients=10")
    assign = entry.assign(beta, classes_per_client, minority)
    how = buffer_ratio, seed, holdout, entry.remedy, images.bursts, buffer_last
    return make_partition(len(images), images.labels, assign, clients, *how)
