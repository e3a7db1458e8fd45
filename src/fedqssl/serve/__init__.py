"""A device file behind a small HTTP service, for one machine and its neighbours; needs the ``serve`` extra."""

from fedqssl.serve.limits import Limits

__all__ = ["Limits"]
