"""Self-supervised objectives and the augmented views they compare."""

from fedqssl.ssl.simclr import nt_xent
from fedqssl.ssl.views import ViewConfig, augment, two_views

__all__ = ["ViewConfig", "augment", "nt_xent", "two_views"]
