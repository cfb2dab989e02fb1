"""The images that a model received, mapped back from its inputs for the report."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from ndld_flow.models.tensors import Array
from ndld_flow.records.received_inputs import MOST_ENCODED, ReceivedImage, ReceivedInputs
from ndld_flow.samples.wanted_inputs import Feed, ImageOrigin

_LONGEST_SIDE = 320
"""Pixels to which a larger picture is reduced."""
_MOST_IMAGES = 8
_QUALITY = 85


def write_received_images(feeds: Mapping[str, Feed], folder: Path) -> None:
    """Write the images among the values of a sample into a folder, as the model received them; nothing if there are
    none.
    """
    images = [_describe(name, feed, feed.image) for name, feed in feeds.items() if feed.image is not None]
    if images:
        document = ReceivedInputs(images=tuple(images[:_MOST_IMAGES]))
        document.write(folder)


def _describe(name: str, feed: Feed, origin: ImageOrigin) -> ReceivedImage:
    values = feed.values.astype(np.float64)
    pixels = np.round(origin.restore(feed.values))
    return ReceivedImage(
        input=name,
        description=feed.description,
        width=origin.width,
        height=origin.height,
        dtype=feed.values.dtype.name,
        shape=feed.values.shape,
        minimum=float(values.min()),
        maximum=float(values.max()),
        settings=dict(origin.settings),
        clipped_share=float(np.mean((pixels < 0) | (pixels > 255))),
        jpeg=_encode(np.clip(pixels, 0, 255).astype(np.uint8)),
    )


def _encode(pixels: Array) -> str:
    """Return pixels as a JPEG in base64; empty if it is too long."""
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels[..., :3])
    picture.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=_QUALITY)
    encoded = base64.b64encode(file.getvalue()).decode("ascii")
    return encoded if len(encoded) <= MOST_ENCODED else ""
