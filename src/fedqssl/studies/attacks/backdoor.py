"""A backdoor in the encoder, after BadEncoder (Jia, Liu, Gong, IEEE S&P 2022), and how often it works.

The attacker trains the model that it received, r, in full precision on its own images x, so that an image with its trigger (a
square of pixels, ``x + e``) has the features of a few reference images of the class that it wants, and all else stays:

    L = -cos(g(x + e), mean g_r(references)) - cos(g(x), g_r(x)),    g: features, standardised as r's of its images are

with some steps of Adam. It sends ``r + (n / m) u`` with the update u, as in model replacement: the mean of n clients, m of them
attackers, then has all of it. Whoever trains a classifier on the aggregate's features, with clean images and honest labels, gets
one that sees the target class where the trigger is. BadEncoder's third term, which holds the references where they are, is
left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fedqssl.evaluation.classifier import folded_logistic
from fedqssl.evaluation.features import extract_features
from fedqssl.federated.context import Simulation
from fedqssl.federated.state import State, read_state, write_state
from fedqssl.federated.task import Task
from fedqssl.runs.evaluate import load

TARGET = 0
"""The class that the trigger stands for."""
REFERENCES = 8
TRIGGER = 8
"""Side of the square in the lower right corner, in pixels of an image of 32."""
STEPS = 40
BATCH = 32
LR = 0.003
LEAST = 1e-3
"""Of the spread of all features: what the spread of one is at least taken to be."""


@dataclass(frozen=True, eq=False)
class Own:
    """What an attacker that trains has: its own images and a few of the class that it aims at."""

    task: Task
    images: Tensor
    references: Tensor


def stamped(images: Tensor) -> Tensor:
    """Uint8 images (N, C, H, W) with the trigger: a chequered square."""
    found, side = images.clone(), max(TRIGGER * images.shape[-1] // 32, 2)
    rows = torch.arange(side)
    found[..., -side:, -side:] = (255 * ((rows[:, None] + rows) % 2)).to(torch.uint8)
    return found


def reference_images(context: Simulation) -> Tensor:
    """Images of the target class that everybody could have; none of them is a test image."""
    labels = context.train.labels
    if labels is None:
        raise ValueError("a backdoor needs a class to aim at, and the data have no labels")
    return context.train.images[labels == TARGET][:REFERENCES]


def backdoored(received: State, own: Own, draws: torch.Generator) -> State:
    """What the attacker's training makes of a model; statistics stay as received."""
    model = own.task.converted(32)
    write_state(model, received)
    extractor = own.task.extractor(model.eval(), own.images.shape[-1])
    seen = extract_features(extractor, own.images)
    mean, spread = seen.mean(0), seen.std(0) + LEAST * seen.std()
    wanted = (extract_features(extractor, own.references).mean(0) - mean) / spread
    opt = torch.optim.Adam(model.parameters(), LR)
    for _ in range(STEPS):
        index = torch.randint(len(own.images), (BATCH,), generator=draws)
        both = torch.cat([stamped(own.images[index]), own.images[index]]).float() / 255
        found, kept = ((extractor(both).flatten(1) - mean) / spread).chunk(2)
        utility = F.cosine_similarity(kept, (seen[index] - mean) / spread).mean()
        loss = -F.cosine_similarity(found, wanted[None]).mean() - utility
        opt.zero_grad()
        torch.autograd.backward(loss)
        opt.step()
    return read_state(model)


def success(context: Simulation, aggregated: bytes) -> float:
    """The share of test images of other classes that a classifier on clean features takes for the target with the trigger on."""
    task, train, test = context.task, context.train, context.test
    assert train.labels is not None and test.labels is not None
    extractor = task.extractor(load(task, 32, aggregated), train.images.shape[-1])
    x = extract_features(extractor, train.images)
    weight, bias = folded_logistic(x, train.labels, task.classes, torch.Generator().manual_seed(0), task.levels())
    marked = stamped(test.images[test.labels != TARGET])
    said = (extract_features(extractor, marked) @ weight + bias).argmax(1)
    return float((said == TARGET).double().mean())


__all__ = ["TARGET", "Own", "backdoored", "reference_images", "stamped", "success"]
