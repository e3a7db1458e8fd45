"""Image sets in memory: how they are read, drawn or fetched, and how they are distributed to clients.

Names are looked up when they are used, so that :mod:`fedqssl.data.pixels` can be used without torch.
"""

from typing import TYPE_CHECKING, Any

from fedqssl.data.errors import DataError, DataWarning

if TYPE_CHECKING:
    from fedqssl.data.images import ImageSet
    from fedqssl.data.parquet import read_parquet

__all__ = ["DataError", "DataWarning", "ImageSet", "read_parquet"]


def __getattr__(name: str) -> Any:
    if name == "ImageSet":
        from fedqssl.data.images import ImageSet

        return ImageSet
    if name == "read_parquet":
        from fedqssl.data.parquet import read_parquet

        return read_parquet
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
