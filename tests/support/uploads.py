"""Pictures to upload."""

import io

import numpy as np
from PIL import Image


def png(width=40, height=30, mode="RGB", kind="PNG") -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(out, kind)
    return out.getvalue()
