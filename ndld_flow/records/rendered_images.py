"""Images that were drawn from tensors: their files, captions and thumbnails."""

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
