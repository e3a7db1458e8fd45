"""Image sets in memory and how they are read from disk."""

from fedqssl.data.parquet import DataError, ImageSet, read_parquet

__all__ = ["DataError", "ImageSet", "read_parquet"]
