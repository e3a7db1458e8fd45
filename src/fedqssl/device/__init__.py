"""What a device owner holds: one file with a personal low-bit model and its classifier, that loads, predicts and exports.

>>> import fedqssl
>>> model = fedqssl.load("phone.fqssl")  # doctest: +SKIP
>>> model.predict(["cat.jpg"], top=3)[0].name  # doctest: +SKIP
"""

from fedqssl.device.format import DeviceFileError, Manifest
from fedqssl.device.model import DeviceModel, Prediction, load

__all__ = ["DeviceFileError", "DeviceModel", "Manifest", "Prediction", "load"]
