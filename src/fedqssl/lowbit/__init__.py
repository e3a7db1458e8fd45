"""Low-bit training of any torch model: layers, conversion, optimiser, and the container that carries a model as bytes.

>>> from fedqssl.lowbit import LowBitSGD, Precision, to_lowbit
>>> from fedqssl.models import resnet18
>>> model = to_lowbit(resnet18(width=16), Precision.for_bits(4))   # weight 4, activation 4, gradient 6
>>> opt = LowBitSGD(model, lr=0.3)
"""

from fedqssl.lowbit.container import ContainerError, from_bytes, load_bytes, to_bytes
from fedqssl.lowbit.convert import ConversionError, copy_of, to_lowbit
from fedqssl.lowbit.optim import LowBitSGD, NonFiniteError
from fedqssl.lowbit.precision import LowBitOptions, Precision
from fedqssl.lowbit.ready import keep_ready
from fedqssl.lowbit.weight import LowBitWeight

__all__ = [
    "ContainerError",
    "ConversionError",
    "LowBitOptions",
    "LowBitSGD",
    "LowBitWeight",
    "NonFiniteError",
    "Precision",
    "copy_of",
    "from_bytes",
    "keep_ready",
    "load_bytes",
    "to_bytes",
    "to_lowbit",
]
