"""Device models without a run: a network that has seen a few images, and a classifier fitted on its features."""

import torch
from torch import nn

from fedqssl.device.model import from_bytes, pack_device
from fedqssl.evaluation.features import extract_features
from fedqssl.evaluation.local import fit_lowbit_classifier
from fedqssl.lowbit import LowBitOptions, Precision, to_lowbit
from fedqssl.models.contrast import with_contrast
from fedqssl.models.features import features_of
from fedqssl.models.network import SelfSupervisedNetwork
from fedqssl.models.registry import build_model

CARD = {"data": {"labels by class": [1] * 10}, "accuracy": {"by class": [None] * 10, "test images": 0}}
CARD["accuracy"]["calibration error"] = 0.0
CARD |= {"training": {}, "bits": {}, "cost": {}}


def made(
    bits,
    images,
    labels,
    name="small_cnn",
    width=8,
    options=None,
    kind="pooled",
    trust=False,
    brief=False,
    contrast="as_is",
):
    """A network with batch-norm statistics of real images, and a classifier fitted on its features (brief: hardly)."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        encoder = build_model(name, width, images.shape[1], images.shape[-1])
        network = SelfSupervisedNetwork(encoder, nn.Identity())
    model = to_lowbit(network, Precision.for_bits(bits), options or LowBitOptions())
    model.train()
    with torch.no_grad():
        for _ in range(5 if brief else 20):
            model(images[:64].float() / 255)
    extractor = with_contrast(features_of(model.eval(), kind, images.shape[1], images.shape[-1]), contrast)
    features = extract_features(extractor, images[:300])
    classifier = fit_lowbit_classifier(features, labels[:300], 10, bits, epochs=2 if brief else 15)
    size = images.shape[-1]
    words = {
        "model": name,
        "width": width,
        "channels": images.shape[1],
        "size": size,
        "objective": "simclr",
        "bits": bits,
    }
    words |= {"features": kind, "feature_dim": features.shape[1], "contrast": contrast}
    words |= {"class_names": [f"c{i}" for i in range(10)], "protocol": "p"}
    return from_bytes(pack_device({**words, "client": "c", "card": CARD}, extractor, classifier), trust)
