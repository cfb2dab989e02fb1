"""Values of a model's input from images and frames of animations and videos.

PyAV (FFmpeg's libraries) decodes videos.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, UnidentifiedImageError

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import require
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.samples.generated_values import is_float, is_integer
from ndld_flow.samples.wanted_inputs import Pattern, WantedInput, shape_unknown

if TYPE_CHECKING:
    from av import VideoFrame

_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")
_ANIMATIONS = ("WEBP", "GIF")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_DEEP_MODES = ("I", "F")
"""Prefixes of pillow's modes of more than 8 bits; pillow clips such pixels at 255."""


@dataclass(frozen=True)
class ImageInput:
    """The conversion of images to values of an input: `[N, C, H, W]` or, by `layout`, `[N, H, W, C]`; without N if the
    input has three dimensions.
    """

    given: InputSpec
    dtype: np.dtype[np.generic]
    batch: int | None
    """None for three dimensions."""
    channels: int
    height: int | None
    """None for the image's own height."""
    width: int | None
    layout: str
    """NCHW or NHWC."""

    @classmethod
    def of(cls, wanted: WantedInput, path: Path) -> ImageInput:
        """Prepare the conversion.

        Raises `RequestError` if the input's shape, dtype or normalization does not fit images.
        """
        where = f'input "{wanted.name}" from the image {path}'
        if wanted.pattern is None:
            raise shape_unknown(wanted.name)
        dtype = wanted.dtype
        if not (is_float(dtype) or dtype.name == "uint8" or (is_integer(dtype) and dtype.itemsize > 1)):
            raise RequestError(f"{where}: an image cannot become {dtype.name}.")
        layout = wanted.given.layout or _find_layout(wanted.pattern)
        conversion = cls(wanted.given, dtype, *_sizes(wanted.pattern, layout, where), layout)
        _check_normalization(conversion, where)
        return conversion

    def values(self, picture: Image.Image) -> Array:
        """Return the values of an image, resized (bilinear) to the input's height and width if these are fixed.

        One image fills the whole batch. Float inputs get pixels scaled to 0..1, less `mean`, divided by `std`; integer
        inputs get the pixels 0..255 unchanged.
        """
        size = (self.width or picture.width, self.height or picture.height)
        resized = picture.convert(_MODES[self.channels]).resize(size, Image.Resampling.BILINEAR)
        pixels = np.asarray(resized).reshape(size[1], size[0], self.channels)
        values = pixels
        if is_float(self.dtype):
            scaled = pixels.astype(np.float32) / np.float32(255)
            values = (scaled - np.asarray(self.given.mean, np.float32)) / np.asarray(self.given.std, np.float32)
        if self.layout == "NCHW":
            values = values.transpose(2, 0, 1)
        repeated = values if self.batch is None else np.broadcast_to(values, (self.batch, *values.shape))
        return np.ascontiguousarray(repeated.astype(self.dtype))


def count_frames(path: Path, name: str) -> int:
    """Return the number of frames: 1 except for animations. Only the header of other images is read."""
    with _opened(path, name) as image:
        return _frames(image)


def image_frames(path: Path, name: str, every: int) -> Iterator[tuple[int | None, Image.Image]]:
    """Yield every N-th frame of an animation with its index, or the image itself with None.

    Raises `RequestError` for a file that is not an image, is truncated, is larger than pillow's limit, or has pixels of
    more than 8 bits.
    """
    with _opened(path, name) as image:
        frames = _frames(image)
        for place in range(0, frames, every):
            if frames > 1:
                image.seek(place)
            image.load()
            yield None if frames == 1 else place, image


def _frames(image: Image.Image) -> int:
    return int(getattr(image, "n_frames", 1)) if image.format in _ANIMATIONS else 1


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[Image.Image]:
    try:
        with warnings.catch_warnings():
            # An image over pillow's size limit is rejected, not only warned about.
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            opened = Image.open(path, formats=_FORMATS)
        with opened as image:
            if image.mode.startswith(_DEEP_MODES):
                raise ValueError(f"its pixels have more than 8 bits ({image.mode}), convert them first")
            yield image
    except FileNotFoundError:
        raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).') from None
    except (UnidentifiedImageError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise RequestError(f'input "{name}": {error}') from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        raise RequestError(f'input "{name}": the image {path} cannot be read: {error}') from None


def _find_layout(pattern: Pattern) -> str:
    """Return NHWC if only the last of the three dimensions of an image can be that of its channels, else NCHW."""
    first, last = pattern[-3:][0] if len(pattern) > 2 else None, pattern[-1] if pattern else None
    return "NHWC" if last in (1, 3) and first not in _MODES else "NCHW"


def _sizes(pattern: Pattern, layout: str, where: str) -> tuple[int | None, int, int | None, int | None]:
    """Return batch (None for three dimensions), channels, height and width (None: the image's own)."""
    if len(pattern) not in (3, 4):
        raise RequestError(f"{where}: an image needs 3 or 4 dimensions, the input has {shape_text(pattern)}.")
    numbers = [dim if isinstance(dim, int) else None for dim in pattern]
    batch = (numbers[0] or 1) if len(pattern) == 4 else None
    first, second, third = numbers[-3:]
    channels, height, width = (first, second, third) if layout == "NCHW" else (third, first, second)
    if channels is not None and channels not in _MODES:
        raise RequestError(
            f"{where}: the {layout} input {shape_text(pattern)} has {channels} channels, an image has 1, 3 or 4. "
            "Check `layout:`."
        )
    return batch, channels or 3, height, width


def _check_normalization(conversion: ImageInput, where: str) -> None:
    if not is_float(conversion.dtype):
        return
    for word, numbers in (("mean", conversion.given.mean), ("std", conversion.given.std)):
        if len(numbers) not in (1, conversion.channels):
            raise RequestError(
                f"{where}: `{word}` has {len(numbers)} numbers, the input {conversion.channels} channels."
            )
    if 0.0 in conversion.given.std:
        raise RequestError(f"{where}: `std` divides, so it must not contain 0.")


_VIDEO_FORMATS = "avi,matroska,webm,mov,mp4"
"""Allowed formats; FFmpeg's others include playlists, which name files and addresses to read."""


def count_video(path: Path, name: str, every: int, most: int) -> int:
    """Return the number of samples of every N-th frame, counted up to `most`.

    Frames are counted by decoding: a container's own count is often missing, or wrong if the file is truncated.
    """
    return sum(1 for _ in islice(_video_frames(path, name, every), most))


def video_frames(path: Path, name: str, every: int) -> Iterator[tuple[int, Image.Image]]:
    """Yield every N-th frame of a video with its index, in display order.

    Raises `BackendError` without PyAV, `RequestError` for a file that is not a video, cannot be decoded, or has frames
    larger than pillow's limit.
    """
    for place, frame in _video_frames(path, name, every):
        yield place, Image.fromarray(frame.to_ndarray(format="rgb24"))


def _video_frames(path: Path, name: str, every: int) -> Iterator[tuple[int, VideoFrame]]:
    require("video", f'input "{name}": {path}')
    import av

    if not path.exists():
        raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).')
    place = -1
    try:
        with (
            path.open("rb") as file,
            av.open(file, mode="r", options={"format_whitelist": _VIDEO_FORMATS}) as container,
        ):
            if not container.streams.video:
                raise RequestError(f'input "{name}": {path} contains no video.')
            stream = container.streams.video[0]
            _check_size(stream.width, stream.height, path, name)
            stream.thread_type = "AUTO"
            for place, frame in enumerate(container.decode(stream)):
                if place % every == 0:
                    yield place, frame
    except (av.error.FFmpegError, OSError) as error:
        position = f" after frame {place}" if place >= 0 else ""
        raise RequestError(f'input "{name}": the video {path} cannot be decoded{position}: {error}') from None
    if place < 0:
        raise RequestError(f'input "{name}": the video {path} has no frames.')


def _check_size(width: int, height: int, path: Path, name: str) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise RequestError(f'input "{name}": frames of {path} are {width}x{height}, more than {limit:,} pixels.')
