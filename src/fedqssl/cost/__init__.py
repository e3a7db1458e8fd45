"""What a run costs: bit operations, memory, bytes and time, by formula and by measurement, before anything is trained.

>>> from fedqssl.config import load_config
>>> from fedqssl.cost import ledger
>>> costs = ledger(load_config("smoke"))
>>> costs.clients["client-00"].memory.total < costs.full["client-00"].memory.total
True
"""

from fedqssl.cost.bitwidth import Bitwidth, Wire, study
from fedqssl.cost.devices import Device, DeviceRound, Devices, read_devices, straggler
from fedqssl.cost.formulas import BitOperations, Memory
from fedqssl.cost.ledger import ClientCost, CostEstimate, Ledger, ServerCost, Totals, estimate, ledger
from fedqssl.cost.planner import Choice, Planner, Targets, bits_line, with_device_bits
from fedqssl.cost.sizes import Sizes, client_sizes, sizes_of

__all__ = [
    "BitOperations",
    "Bitwidth",
    "Choice",
    "ClientCost",
    "CostEstimate",
    "Device",
    "DeviceRound",
    "Devices",
    "Ledger",
    "Memory",
    "Planner",
    "ServerCost",
    "Sizes",
    "Targets",
    "Totals",
    "Wire",
    "bits_line",
    "client_sizes",
    "estimate",
    "ledger",
    "read_devices",
    "sizes_of",
    "straggler",
    "study",
    "with_device_bits",
]
