"""Image sets in memory: how they are read, drawn or fetched, and how they are distributed to clients."""

from fedqssl.data.images import DataError, DataWarning, ImageSet
from fedqssl.data.parquet import read_parquet

__all__ = ["DataError", "DataWarning", "ImageSet", "read_parquet"]
