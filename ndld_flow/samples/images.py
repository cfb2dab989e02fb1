"""Values of a model's input from images and frames of animations and videos, and the images that a model received.

PyAV (FFmpeg's libraries) decodes videos.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import require
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.records.images import MOST_RECEIVED, ReceivedImage, ReceivedInputs
from ndld_flow.samples.generated_values import is_float, is_integer
from ndld_flow.samples.wanted_inputs import Feed, ImageOrigin, Pattern, WantedInput, shape_unknown

if TYPE_CHECKING:
    from av import VideoFrame


_FORMATS = ("PNG", "JPEG", "BMP", "WEBP", "GIF")
_ANIMATIONS = ("WEBP", "GIF")
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N")
_DEEP_MODES = ("I", "F")
"""Pillow's modes of 32 bits, whose range is unknown."""


@dataclass(frozen=True)
class SourceImage:
    """An image or a frame as its file stores it, before it is fitted to an input."""

    picture: Image.Image
    """Upright, with 1, 3 or 4 channels."""
    changes: tuple[str, ...] = ()
    """Conversions on the way from the file: `rotated as EXIF declares`, `CMYK -> RGB`."""
    note: str = ""
    """A caveat about these."""


@dataclass(frozen=True)
class ImageInput:
    """The conversion of images to values of an input: `[N, C, H, W]` or, by `layout`, `[N, H, W, C]`; without N if the
    input has three dimensions.
    """

    name: str
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
        found = find_layout(wanted.pattern)
        layout = wanted.given.layout or found
        impossible = layout == "NCHW" != found and not isinstance(wanted.pattern[-3], int)
        if layout not in ("NCHW", "NHWC") or impossible:
            raise RequestError(
                f"{where}: `layout: {layout}` does not fit the input's {shape_text(wanted.pattern)}: set {found}."
            )
        conversion = cls(wanted.name, wanted.given, dtype, *_sizes(wanted.pattern, layout, where), layout)
        _check_normalization(conversion, where)
        given, channels = conversion.given, conversion.channels
        if given.color in ("rgb", "bgr") and channels == 1:
            raise RequestError(f"{where}: `color: {given.color}` needs 3 channels, the input has 1.")
        if given.color == "gray" and channels == 4:
            raise RequestError(f"{where}: `color: gray` needs 1 or 3 channels, the input has 4.")
        if len(given.pad) not in (1, channels):
            raise RequestError(f"{where}: `pad` has {len(given.pad)} numbers, the input {channels} channels.")
        return conversion

    @property
    def mode(self) -> str:
        """Return pillow's mode of the fitted image."""
        return "L" if self.given.color == "gray" else _MODES[self.channels]

    @property
    def scale(self) -> float:
        return 1 / 255 if self.given.scale is None else self.given.scale

    @property
    def settings(self) -> dict[str, str]:
        """Return the settings in effect, as a recipe has them."""
        given = self.given
        shown: dict[str, str] = {"resize": given.resize or "stretch, by default", "interpolation": given.interpolation}
        shown |= {"pad": _numbers(given.pad)} if given.resize == "letterbox" else {}
        shown |= {"align": given.align} if given.resize in ("letterbox", "crop") else {}
        shown |= {"crop_share": f"{given.crop_share:g}"} if given.resize == "crop" else {}
        shown |= {"color": given.color or ("gray" if self.channels == 1 else "rgb"), "layout": self.layout}
        if is_float(self.dtype):
            scale = "1/255" if given.scale is None else f"{given.scale:g}"
            shown |= {"scale": scale, "mean": _numbers(given.mean), "std": _numbers(given.std)}
        return shown

    def placement(self, size: tuple[int, int]) -> Placement:
        """Return where the pixels of an image, with this width and height, are in the input."""
        return place_image(size, (self.width, self.height), self.given)

    def values(self, source: SourceImage) -> Array:
        """Return the values of an image, fitted to the input's height and width if these are fixed.

        One image fills the whole batch. Float inputs get (pixel * scale - mean) / std, integer inputs the pixels 0..255
        unchanged.
        """
        pixels = self.pixels(source.picture)
        values: Array = np.round(pixels)
        if is_float(self.dtype):
            exact = pixels.astype(np.float32)
            scaled = exact / np.float32(255) if self.given.scale is None else exact * np.float32(self.given.scale)
            values = (scaled - np.asarray(self.given.mean, np.float32)) / np.asarray(self.given.std, np.float32)
        if self.layout == "NCHW":
            values = values.transpose(2, 0, 1)
        repeated = values if self.batch is None else np.broadcast_to(values, (self.batch, *values.shape))
        return np.ascontiguousarray(repeated.astype(self.dtype))

    def pixels(self, picture: Image.Image) -> Array:
        """Return the pixels `[H, W, C]` of a fitted image in the input's order of channels, from 0 to 255."""
        placement = self.placement(picture.size)
        limit = Image.MAX_IMAGE_PIXELS
        if limit is not None and placement.width * placement.height > limit:
            shown = f"{placement.width}x{placement.height}"
            raise RequestError(
                f'input "{self.name}": an image would be enlarged to {shown}, more than {limit:,} pixels. Set `shape:`.'
            )
        converted = picture if picture.mode == "F" else picture.convert(self.mode)  # floats keep their only channel
        fitted = _resize(converted, placement, self.given.interpolation)
        if fitted.shape[-1] != self.channels:
            fitted = np.repeat(fitted, self.channels, axis=-1)
        if self.given.color == "bgr":
            fitted = swap_red_and_blue(fitted)
        if fitted.shape[:2] == (placement.height, placement.width):
            return fitted
        canvas = np.empty((placement.height, placement.width, self.channels), fitted.dtype)
        canvas[:] = np.asarray(self.given.pad)
        top, left = placement.top, placement.left
        canvas[top : top + fitted.shape[0], left : left + fitted.shape[1]] = fitted
        return canvas

    def restore(self, values: Array) -> Array:
        """Return the pixels `[H, W, C]` from 0 to 255, in the order RGB, of the first image in an input's values."""
        first = values if self.batch is None else values[0]
        pixels = np.asarray(first.transpose(1, 2, 0) if self.layout == "NCHW" else first, np.float64)
        if is_float(self.dtype) and self.scale:
            pixels = (pixels * np.asarray(self.given.std) + np.asarray(self.given.mean)) / self.scale
        if self.given.color == "bgr":
            pixels = swap_red_and_blue(pixels)
        return pixels


@dataclass(frozen=True)
class Placement:
    """The place of an image in an input: the image is resized to `size`, and the part from `crop` on is used."""

    size: tuple[int, int]
    """Width and height to which the whole image is resized."""
    crop: tuple[int, int]
    """Pixels that are cut off on the left and at the top."""
    left: int
    top: int
    width: int
    height: int
    """Width and height of the input; the rest of it is padding."""

    @property
    def used(self) -> tuple[int, int]:
        """Return width and height of the part that is used."""
        return tuple(min(whole, room) for whole, room in zip(self.size, (self.width, self.height), strict=True))  # type: ignore[return-value]


def place_image(size: tuple[int, int], room: tuple[int | None, int | None], given: InputSpec) -> Placement:
    """Return the placement of an image in an input, by their widths and heights; None is free.

    `letterbox` keeps the aspect ratio and pads, with the rounding of Ultralytics; `crop` keeps it and cuts, with that
    of torchvision's `Resize` and `CenterCrop`. A free dimension is the image's own, or follows from the other one
    unless the image is stretched.
    """
    factors = [target / own for own, target in zip(size, room, strict=True) if target is not None]
    if given.resize in (None, "stretch") or not factors:
        width, height = room[0] or size[0], room[1] or size[1]
        return Placement((width, height), (0, 0), 0, 0, width, height)
    if given.resize == "letterbox":
        factor = min(factors)
        scaled = [max(1, round(own * factor)) for own in size]
        width, height = (target or own for target, own in zip(room, scaled, strict=True))
        centered = given.align == "center"
        left, top = ((width - scaled[0]) // 2, (height - scaled[1]) // 2) if centered else (0, 0)
        return Placement((scaled[0], scaled[1]), (0, 0), left, top, width, height)
    factor = max(factors) / given.crop_share
    covered = [max(int(own * factor + 1e-6), target or 1) for own, target in zip(size, room, strict=True)]
    width, height = (target or own for target, own in zip(room, covered, strict=True))
    centered = given.align == "center"
    cut = [round((own - target) / 2) if centered else 0 for own, target in zip(covered, (width, height), strict=True)]
    return Placement((covered[0], covered[1]), (cut[0], cut[1]), 0, 0, width, height)


def _resize(picture: Image.Image, placement: Placement, interpolation: str) -> Array:
    """Return the used part `[H, W, C]` of a resized image. No more of it is computed."""
    (left, top), (width, height) = placement.crop, placement.used
    if interpolation == "linear":
        pixels = np.asarray(picture)
        columns = _interpolate(pixels, 1, placement.size[0], range(left, left + width))
        resized = _interpolate(columns, 0, placement.size[1], range(top, top + height))
        if pixels.dtype == np.uint8:
            resized = np.floor(resized + np.float32(0.5)).astype(np.uint8)
    else:
        filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
        across, down = picture.width / placement.size[0], picture.height / placement.size[1]
        box = (left * across, top * down, (left + width) * across, (top + height) * down)
        whole = (width, height) == placement.size
        resized = np.asarray(picture.resize((width, height), filters[interpolation], None if whole else box))
    return resized.reshape(height, width, -1)


def _interpolate(pixels: Array, axis: int, size: int, wanted: range) -> Array:
    """Return the wanted places of an axis that is resized, from the two nearest pixels, with half-pixel centres."""
    own = pixels.shape[axis]
    centers = np.clip((np.arange(wanted.start, wanted.stop) + 0.5) * (own / size) - 0.5, 0, own - 1)
    low = centers.astype(np.int64)
    share = (centers - low).astype(np.float32).reshape([-1 if each == axis else 1 for each in range(pixels.ndim)])
    first = pixels.take(low, axis).astype(np.float32)
    second = pixels.take(np.minimum(low + 1, own - 1), axis).astype(np.float32)
    return np.asarray(first + (second - first) * share)


def count_frames(path: Path, name: str) -> int:
    """Return the number of frames: 1 except for animations. Only the header of other images is read."""
    with _opened(path, name) as image:
        return _frames(image)


def image_frames(path: Path, name: str, every: int) -> Iterator[tuple[int | None, SourceImage]]:
    """Yield every N-th frame of an animation with its index, or the image itself with None.

    Raises `RequestError` for a file that is not an image, is truncated, is larger than pillow's limit, or has pixels of
    more than 16 bits.
    """
    with _opened(path, name) as image:
        frames = _frames(image)
        for index in range(0, frames, every):
            if frames > 1:
                image.seek(index)
            yield None if frames == 1 else index, _upright(image)


def image_size(path: Path, name: str) -> tuple[int, int]:
    """Return width and height of an upright image; only its header is read."""
    with _opened(path, name) as image:
        exif = _exif_of_png(path) if image.format == "PNG" else image.getexif()
        turned = exif.get(ExifTags.Base.Orientation, 1) in _TURNED
        return (image.height, image.width) if turned else image.size


def _exif_of_png(path: Path) -> Image.Exif:
    """Return the EXIF data of a PNG, wherever they are: pillow would decode all pixels to look behind them."""
    exif = Image.Exif()
    with path.open("rb") as file:
        file.seek(8)
        while len(head := file.read(8)) == 8 and head[4:] != b"IEND":
            if head[4:] == b"eXIf":
                exif.load(file.read(int.from_bytes(head[:4])))
                break
            file.seek(int.from_bytes(head[:4]) + 4, os.SEEK_CUR)
    return exif


def _upright(image: Image.Image) -> SourceImage:
    """Return an image rotated as its EXIF data declare, with 8 bits or, of a gray image of 16, with floats to 255."""
    tiles = str(getattr(image, "tile", ""))
    image.load()
    changes, notes = [], []
    is_rotated = image.getexif().get(ExifTags.Base.Orientation, 1) in _ROTATED
    upright = ImageOps.exif_transpose(image) if is_rotated else image
    if image.mode in _SIXTEEN_BITS:
        changes.append("16 bits")
        upright = Image.fromarray(np.asarray(upright, np.uint16).astype(np.float32) / np.float32(257))
    else:
        changes += ["16 -> 8 bits"] if ";16" in tiles else []
        changes += [f"{image.mode} -> RGB"] if image.mode in ("CMYK", "YCbCr", "LAB", "HSV") else []
    if image.has_transparency_data and image.convert("RGBA").getchannel("A").getextrema()[0] != 255:
        notes.append("has transparent pixels, whose hidden colors are used")
    if is_rotated:
        changes.append("rotated as EXIF declares")
    return SourceImage(upright, tuple(changes), "; ".join(notes))


_ROTATED = range(2, 9)
"""Orientations in EXIF data other than upright: rotated, mirrored, or both."""
_TURNED = (5, 6, 7, 8)
"""Those that exchange width and height."""


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
            if image.mode in _DEEP_MODES:
                raise ValueError(f"its pixels have 32 bits ({image.mode}), whose range is unknown: convert them first")
            yield image
    except FileNotFoundError:
        raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).') from None
    except UnidentifiedImageError:
        raise RequestError(f'input "{name}": {path} is not an image of a known format.') from None
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError, RuntimeWarning) as error:
        raise RequestError(f'input "{name}": the image {path} cannot be read: {error}') from None


def _numbers(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def swap_red_and_blue(pixels: Array) -> Array:
    """Return pixels `[..., C]` with the first and the third channel exchanged."""
    return pixels[..., [2, 1, 0, *range(3, pixels.shape[-1])]]


def find_layout(pattern: Pattern) -> str:
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


def video_frames(path: Path, name: str, every: int) -> Iterator[tuple[int, SourceImage]]:
    """Yield every N-th frame of a video with its index, in display order.

    Raises `BackendError` without PyAV, `RequestError` for a file that is not a video, cannot be decoded, or has frames
    larger than pillow's limit.
    """
    for index, frame in _video_frames(path, name, every):
        yield index, SourceImage(Image.fromarray(frame.to_ndarray(format="rgb24")))


def _video_frames(path: Path, name: str, every: int) -> Iterator[tuple[int, VideoFrame]]:
    require("video", f'input "{name}": {path}')
    import av

    if not path.exists():
        raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).')
    index = -1
    try:
        with (
            path.open("rb") as file,
            av.open(file, mode="r", options={"format_whitelist": _VIDEO_FORMATS}) as container,
        ):
            if not container.streams.video:
                raise RequestError(f'input "{name}": {path} contains no video.')
            stream = container.streams.video[0]
            limit = Image.MAX_IMAGE_PIXELS
            if limit is not None and stream.width * stream.height > limit:
                sizes = f"{stream.width}x{stream.height}, more than {limit:,} pixels"
                raise RequestError(f'input "{name}": frames of {path} are {sizes}.')
            stream.thread_type = "AUTO"
            for index, frame in enumerate(container.decode(stream)):
                if index % every == 0:
                    yield index, frame
    except (av.error.FFmpegError, OSError) as error:
        position = f" after frame {index}" if index >= 0 else ""
        raise RequestError(f'input "{name}": the video {path} cannot be decoded{position}: {error}') from None
    if index < 0:
        raise RequestError(f'input "{name}": the video {path} has no frames.')


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
    return encoded if len(encoded) <= MOST_RECEIVED else ""
