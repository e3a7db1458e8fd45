"""A device model as a folder of plain C99 for microcontrollers: integers (averages: float32), no allocation, s-bit weights.

``graph`` walks the model and ``lower`` writes down integer operations, ``arena`` places their maps in memory, ``writer``
makes C of them, and ``simulate`` is what the C must compute, bit for bit. Start reading in ``operations``.
"""

from fedqssl.device.c_export.arena import ArenaError
from fedqssl.device.c_export.folder import CFolder, to_c
from fedqssl.device.c_export.lower import CExportError

__all__ = ["ArenaError", "CExportError", "CFolder", "to_c"]
