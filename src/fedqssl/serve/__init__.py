"""A device file behind a small HTTP service, for one machine or a local network; needs the ``serve`` extra."""

from fedqssl.serve.limits import Limits

__all__ = ["Limits"]
