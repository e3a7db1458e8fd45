"""Wrappers for the server part of any algorithm: momentum, Adam, a moving average over rounds; one file each."""

from fedqssl.federated.optimizers.configured import configured_server

__all__ = ["configured_server"]
