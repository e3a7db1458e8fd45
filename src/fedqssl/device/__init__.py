"""What a device loads: a file with a personal low-bit model and its classifier, prediction and ONNX export.

:mod:`fedqssl.maker` makes such files. Nothing from training, runs or costs is imported here; start reading in ``model``.

>>> import fedqssl
>>> model = fedqssl.load("phone.fqssl")  # doctest: +SKIP
>>> model.predict(["cat.jpg"], top=3)[0].name  # doctest: +SKIP
"""

from fedqssl.device.format import DeviceFileError, Manifest
from fedqssl.device.model import DeviceModel, Prediction, load

__all__ = ["DeviceFileError", "DeviceModel", "Manifest", "Prediction", "load"]
