"""What the server may do around any algorithm: step with momentum or Adam, average over rounds; one file each."""

from fedqssl.federated.optimizers.configured import configured_server

__all__ = ["configured_server"]
