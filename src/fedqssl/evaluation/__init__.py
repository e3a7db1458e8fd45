"""How good features are: cached features, a linear probe, and a kNN monitor."""

from fedqssl.evaluation.features import extract_features
from fedqssl.evaluation.probe import ProbeResult, fit_classifier, knn_accuracy, linear_probe

__all__ = ["ProbeResult", "extract_features", "fit_classifier", "knn_accuracy", "linear_probe"]
