"""What a device loads: a file with a personal low-bit model and its classifier, prediction and ONNX export.

:mod:`fedqssl.maker` makes such files. Nothing from training, runs or costs is imported here; start reading in ``model``.
:mod:`fedqssl.device.lean` predicts without torch, so names are looked up when they are used.

>>> import fedqssl
>>> model = fedqssl.load("phone.fqssl")  # doctest: +SKIP
>>> model.predict(["cat.jpg"], top=3)[0].name  # doctest: +SKIP
"""

from typing import TYPE_CHECKING, Any

from fedqssl.device.framing import DeviceFileError
from fedqssl.device.prediction import Prediction

if TYPE_CHECKING:
    from fedqssl.device.format import Manifest
    from fedqssl.device.model import DeviceModel, load

__all__ = ["DeviceFileError", "DeviceModel", "Manifest", "Prediction", "load"]


def __getattr__(name: str) -> Any:
    if name in ("DeviceModel", "Manifest", "load"):
        from fedqssl.device import model

        return getattr(model, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
