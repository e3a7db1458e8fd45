"""Prediction without torch: numpy and the compiled kernels alone, for devices that predict but do not train.

``fedqssl.load`` uses it where torch is not installed; the predictions are those of :mod:`fedqssl.device.model`. Start reading in
``networks``; ``layers`` has the arithmetic, ``tensors`` reads containers, ``model`` is what a caller sees.
"""

from fedqssl.device.framing import DeviceFileError
from fedqssl.device.lean.model import LeanModel, from_bytes, load
from fedqssl.device.prediction import Prediction

__all__ = ["DeviceFileError", "LeanModel", "Prediction", "from_bytes", "load"]
