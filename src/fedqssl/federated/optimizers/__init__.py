"""Wrappers for the server part of any algorithm, one file each.

Other weights (``bits``, ``agreement``, ``mask``) or another aggregate (``median``, ``trimmed``, ``krum``, ``clip``, ``fltrust``),
or fewer uploads (``embedding``), then a step (``momentum``, ``adam``, ``fedexp``), statistics of batch norm (``measured``),
an average over rounds (``ema``), all of that for every cluster of clients (``clusters``); ``configured`` puts them together.
"""

from fedqssl.federated.optimizers.configured import configured_server

__all__ = ["configured_server"]
