"""fedqssl: federated self-supervised pre-training in each device's own bits.

The layers, from the bottom (imports only go down): ``quant`` (what an s-bit number is),
``lowbit`` (layers, optimiser, conversion), ``ssl``/``models``/``data``, ``evaluation``, ``bench``, ``cli``.
"""

__version__ = "0.1.0"
