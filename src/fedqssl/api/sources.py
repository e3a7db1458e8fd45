"""What a program passes as ``data``, as the setting of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def named(data: Any, parent: Path, size: int) -> str:
    """The setting ``data`` for what a caller passed; what is in memory is stored in ``parent/images-DIGEST``.

    Args:
        data: a name or ``kind:PATH``, the path of a folder, or what :func:`fedqssl.data.arrays.in_memory` takes.
        parent: where images in memory are stored.
        size: side of pictures of different sizes.

    Raises:
        DataError: one line that says what is expected.
    """
    from fedqssl.data.arrays import in_memory, is_in_memory, write_arrays
    from fedqssl.data.registry import DATASETS

    if is_in_memory(data):
        return f"arrays:{write_arrays(in_memory(data, size), parent)}"
    is_name = isinstance(data, str) and data.partition(":")[0] in DATASETS
    return str(data) if is_name or not Path(data).is_dir() else f"folder:{data}"


def with_data(source: str | Path, settings: dict[str, Any], data: Any, parent: Path) -> dict[str, Any]:
    """Settings with the caller's data; a preset limits the number of its own images, not of the caller's."""
    from fedqssl.config import load_config
    from fedqssl.config.presets import PRESETS

    if data is None:
        return settings
    name = named(data, parent, load_config(source, settings).image_size)
    limit = {"images": None} if ":" in name and str(source) in PRESETS else {}
    return {**limit, **settings, "data": name}


__all__ = ["named", "with_data"]
