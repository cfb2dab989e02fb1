"""Values of a model's input read from an image."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from ndld_flow.backends.models.tensors import Array, shape_text
from ndld_flow.backends.running.generated_values import is_float, is_integer
from ndld_flow.errors import RequestError
from ndld_flow.inputs import InputSpec

_FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def image_values(
    path: Path, name: str, dtype: np.dtype[Any], shape: Sequence[int | str | None], given: InputSpec
) -> Array:
    """An image as a batch of one size: `[N, C, H, W]` or, by `layout`, `[N, H, W, C]`; without N when `shape` has
    three dimensions.

    Height and width are resized (bilinear) to `shape`, or stay the image's own where `shape` leaves them free; one
    image fills the whole batch. Float inputs get pixels scaled to 0..1, less `mean`, divided by `std`; integer
    inputs get the pixels 0..255 as they are. Raises `RequestError` when file, shape and dtype do not go together.
    """
    where = f'input "{name}" from the image {path}'
    batch, channels, height, width = _sizes(shape, given.layout, where)
    if not (is_float(dtype) or dtype.name == "uint8" or (is_integer(dtype) and dtype.itemsize > 1)):
        raise RequestError(f"{where}: an image cannot become {dtype.name}.")
    pixels = _pixels(path, name, channels, width, height)
    values = _normalized(pixels, given, where) if is_float(dtype) else pixels
    if given.layout == "NCHW":
        values = values.transpose(2, 0, 1)
    repeated = values if batch is None else np.broadcast_to(values, (batch, *values.shape))
    return np.ascontiguousarray(repeated.astype(dtype))


def _sizes(
    shape: Sequence[int | str | None], layout: str, where: str
) -> tuple[int | None, int, int | None, int | None]:
    """Batch (None for three dimensions), channels, height and width (None: the image's own)."""
    if len(shape) not in (3, 4):
        raise RequestError(f"{where}: an image needs 3 or 4 dimensions, the input has {shape_text(shape)}.")
    numbers = [dim if isinstance(dim, int) else None for dim in shape]
    batch = (numbers[0] or 1) if len(shape) == 4 else None
    one = numbers[-3:]
    channels, height, width = one if layout == "NCHW" else (one[2], one[0], one[1])
    if channels is not None and channels not in _MODES:
        raise RequestError(
            f"{where}: the {layout} input {shape_text(shape)} has {channels} channels, an image has 1, 3 or 4. "
            "Check `layout:`."
        )
    return batch, channels or 3, height, width


def _pixels(path: Path, name: str, channels: int, width: int | None, height: int | None) -> Array:
    try:
        with warnings.catch_warnings(), Image.open(path, formats=_FORMATS) as image:
            # An image over pillow's size limit is refused, not only warned about.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            size = (width or image.width, height or image.height)
            pixels = image.convert(_MODES[channels]).resize(size, Image.Resampling.BILINEAR)
    except FileNotFoundError:
        raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).') from None
    except (UnidentifiedImageError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RequestError(f'input "{name}": {error}') from None
    except (OSError, SyntaxError, ValueError) as error:
        raise RequestError(f'input "{name}": the image {path} cannot be read: {error}') from None
    return np.asarray(pixels).reshape(size[1], size[0], channels)


def _normalized(pixels: Array, given: InputSpec, where: str) -> Array:
    channels = pixels.shape[2]
    for word, numbers in (("mean", given.mean), ("std", given.std)):
        if len(numbers) not in (1, channels):
            raise RequestError(f"{where}: `{word}` has {len(numbers)} numbers, the input {channels} channels.")
    if 0.0 in given.std:
        raise RequestError(f"{where}: `std` divides, so it may not hold 0.")
    scaled = pixels.astype(np.float32) / np.float32(255)
    return np.asarray((scaled - np.asarray(given.mean, np.float32)) / np.asarray(given.std, np.float32))
