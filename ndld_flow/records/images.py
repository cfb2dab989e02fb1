"""Images of tensors: those that a model received, after preprocessing, and those that a step drew."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import StringConstraints

from ndld_flow.records.document import Count, Document, Record

MOST_ENCODED = 160_000
"""Maximum number of characters of a thumbnail."""
MOST_ENCODED_TOGETHER = 4_000_000
"""Maximum number of characters of all thumbnails of a document."""

Side = Literal["input", "reference", "candidate", "target", "difference"]


class Thumbnail(Record):
    """An image, reduced in size, to be embedded in a page."""

    format: Literal["png", "jpeg"]
    data: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*=*$", max_length=MOST_ENCODED)]
    """The file in base64."""
    width: int
    """Pixels."""
    height: int


class ImageFile(Record):
    """One image as a PNG file next to the document."""

    side: Side
    title: str
    """`input x, with noise`, the label of the model, `clean`, `difference x 10`."""
    file: str
    """Such as `denoised/0-candidate.png`."""
    width: int
    """Pixels."""
    height: int
    captions: tuple[str, ...] = ()
    """Facts for a person: `PSNR 31.4 dB`, `7 detections`."""
    warnings: tuple[str, ...] = ()
    """Facts that make the image less than it seems: `12 values are NaN or infinite (magenta)`."""
    thumbnail: Thumbnail | None = None
    """None beyond the step's `shown`, and if the thumbnails would be too large for a page."""


class ImageRow(Record):
    """The images of one sample."""

    sample: str
    """Label of the sample; empty for weights, which are the same for all samples."""
    files: tuple[ImageFile, ...]


class RenderedImage(Record):
    """One entry of the step's `images` or `overlays`."""

    name: str
    description: str
    """`tensor output, float32 1x3x64x64, black 0, white 1`."""
    rows: tuple[ImageRow, ...]


class RenderedImages(Document):
    """All images of a `render_images`."""

    document: Literal["images"] = "images"
    format_version: int = 1
    file_name = "images.json"
    model: str
    reference: str = ""
    """The other model, if there is one."""
    noise: str = ""
    """Noise on the inputs: `normal, deviation 0.1, seed 0, candidate only`."""
    sample_count: Count
    images: tuple[RenderedImage, ...]
    notes: tuple[str, ...] = ()


MOST_RECEIVED = 400_000
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
    jpeg: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9+/]*=*$", max_length=MOST_RECEIVED)]
    """The pixels as a JPEG in base64, reduced in size."""


class ReceivedInputs(Document):
    """The images that the model of a `profile` or a `check_accuracy` received in its first sample."""

    document: Literal["received inputs"] = "received inputs"
    format_version: int = 1
    file_name = "inputs.json"
    images: tuple[ReceivedImage, ...]
