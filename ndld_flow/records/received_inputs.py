"""The images that a step's model received, after preprocessing."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from ndld_flow.records.document import Document, Record

MOST_ENCODED = 400_000
"""Maximum number of characters of an encoded picture."""


class ReceivedImage(Record):
    """An input whose values come from an image: the tensor of the first sample, mapped back to pixels."""

    input: str
    description: str
    """Origin and conversion: `image photo.jpg as NCHW, 640x480 -> 320x320 (letterbox), float32 1x3x320x320`."""
    width: int
    """Width of the image in its file, upright; in pixels."""
    height: int
    dtype: str
    shape: tuple[int, ...]
    minimum: float
    """Smallest value of the tensor."""
    maximum: float
    settings: dict[str, str]
    """Settings of the conversion, defaults included."""
    clipped_share: float
    """Share of the values that no pixel from 0 to 255 has, after they are mapped back."""
    jpeg: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*=*$", max_length=MOST_ENCODED)]
    """The pixels as a JPEG in base64, reduced in size."""


class ReceivedInputs(Document):
    """The images that the model of a `profile` or a `check_accuracy` received in its first sample."""

    document: Literal["received inputs"] = "received inputs"
    format_version: int = 1
    file_name = "inputs.json"
    images: tuple[ReceivedImage, ...]
