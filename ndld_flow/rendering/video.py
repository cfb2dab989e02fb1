"""Videos of drawn samples: one frame a sample, its images side by side."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from ndld_flow.base.extras import require
from ndld_flow.models.tensors import Array

if TYPE_CHECKING:
    from av.container import OutputContainer
    from av.video.stream import VideoStream

VIDEO_FILE = "video.mp4"
_HIGHEST = 720
"""Pixels of a frame; higher images are reduced."""
_WIDEST = 3840
_GAP = 4
_CODECS = ("libx264", "mpeg4")
"""The first one that is available; every browser plays H.264."""


class VideoWriter:
    """Writes one video, whose frames all have the size of the first one."""

    def __init__(self, path: Path, frames_per_second: float) -> None:
        """Raise `BackendError` without PyAV."""
        require("video", "`video`")
        self._path, self._rate = path, Fraction(frames_per_second).limit_denominator(1000)
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None

    def add(self, images: Sequence[Array]) -> None:
        """Add a frame of images, uint8 [height, width, 3], from left to right."""
        import av

        frame = side_by_side(images)
        if self._container is None:
            self._path.parent.mkdir(exist_ok=True)
            self._container = av.open(str(self._path), "w")
            codec = next(each for each in _CODECS if each in av.codecs_available)
            stream = self._container.add_stream(codec, rate=self._rate)
            assert isinstance(stream, av.VideoStream)
            stream.width, stream.height = frame.shape[1], frame.shape[0]
            stream.pix_fmt = "yuv420p"
            self._stream = stream
        assert self._stream is not None
        size = (self._stream.width, self._stream.height)
        if (frame.shape[1], frame.shape[0]) != size:
            frame = np.asarray(_centered(Image.fromarray(frame), size))
        self._container.mux(self._stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))

    def close(self) -> None:
        """Finish the file; nothing if it has no frame."""
        if self._container is not None and self._stream is not None:
            self._container.mux(self._stream.encode())
            self._container.close()


def side_by_side(images: Sequence[Array]) -> Array:
    """Return one image with even sides, as video needs them: all images with the height of the largest."""
    height = min(max(image.shape[0] for image in images), _HIGHEST)
    widths = [max(1, round(image.shape[1] * height / image.shape[0])) for image in images]
    if (total := sum(widths) + _GAP * (len(widths) - 1)) > _WIDEST:
        height = max(2, height * _WIDEST // total)
        widths = [max(1, width * _WIDEST // total) for width in widths]
    sheet = Image.new("RGB", (_even(sum(widths) + _GAP * (len(widths) - 1)), _even(height)))
    left = 0
    for image, width in zip(images, widths, strict=True):
        # Small images keep their pixels, as in the report.
        way = Image.Resampling.NEAREST if image.shape[0] < height else Image.Resampling.BOX
        sheet.paste(Image.fromarray(image).resize((width, height), way), (left, 0))
        left += width + _GAP
    return np.asarray(sheet)


def _even(side: int) -> int:
    return side + side % 2


def _centered(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return an image reduced to fit into this width and height, on black."""
    picture.thumbnail(size)
    sheet = Image.new("RGB", size)
    sheet.paste(picture, ((size[0] - picture.width) // 2, (size[1] - picture.height) // 2))
    return sheet
