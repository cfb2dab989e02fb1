"""What a model was fed, as a picture."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import Array
from ndld_flow.samples.generated_values import is_float

LARGEST_SIDE = 512
"""Pixels."""
_FAR = (-1.0, 2.0)
"""Pixels are 0 to 1; values this far outside are no normalised pixels, and are stretched instead."""


def write_picture(values: Array, given: InputSpec, path: Path) -> bool:
    """Write the first item of a batch as PNG, `mean` and `std` undone, noise and all. False, and nothing written, for
    values that are no picture: those of another rank, or whose channels are not 1, 3 or 4.
    """
    pixels = _pixels(values, given)
    if pixels is None:
        return False
    channels = pixels.shape[2]
    image = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
    image.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    path.parent.mkdir(exist_ok=True)
    image.save(path, format="PNG")
    return True


def _pixels(values: Array, given: InputSpec) -> Array | None:
    """Height x width x channels of bytes."""
    if values.ndim not in (3, 4) or not values.size:
        return None
    item = values[0] if values.ndim == 4 else values
    item = item.transpose(1, 2, 0) if given.layout == "NCHW" else item
    if item.shape[2] not in (1, 3, 4):
        return None
    if not is_float(values.dtype):
        return np.clip(item, 0, 255).astype(np.uint8)
    wide = np.nan_to_num(item.astype(np.float64) * np.asarray(given.std) + np.asarray(given.mean), posinf=0, neginf=0)
    low, high = float(wide.min()), float(wide.max())
    if low < _FAR[0] or high > _FAR[1]:
        wide = (wide - low) / (high - low)
    pixels: Array = np.rint(np.clip(wide, 0, 1) * 255).astype(np.uint8)
    return pixels
