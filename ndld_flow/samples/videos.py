"""Frames of video files, decoded by PyAV (FFmpeg's libraries)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from ndld_flow.base.errors import BackendError, RequestError

if TYPE_CHECKING:
    from av import VideoFrame

_FORMATS = "avi,matroska,webm,mov,mp4"
"""Allowed formats; FFmpeg's others include playlists, which name files and addresses to read."""


def count_video(path: Path, name: str, every: int, most: int) -> int:
    """Return the number of samples of every N-th frame, counted up to `most`.

    Frames are counted by decoding: a container's own count is often missing, or wrong where the file is cut off.
    """
    return sum(1 for _ in islice(_frames(path, name, every), most))


def video_frames(path: Path, name: str, every: int) -> Iterator[tuple[int, Image.Image]]:
    """Yield every N-th frame of a video with its index, in display order.

    Raises `BackendError` without PyAV, `RequestError` for a file that is not a video, cannot be decoded, or has frames
    larger than pillow's limit.
    """
    for place, frame in _frames(path, name, every):
        yield place, Image.fromarray(frame.to_ndarray(format="rgb24"))


def _frames(path: Path, name: str, every: int) -> Iterator[tuple[int, VideoFrame]]:
    try:
        import av
    except ImportError:
        raise BackendError(f"input \"{name}\": frames of {path} need PyAV: pip install 'ndld-flow[video]'.") from None
    if not path.exists():
        raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).')
    place = -1
    try:
        with path.open("rb") as file, av.open(file, mode="r", options={"format_whitelist": _FORMATS}) as container:
            if not container.streams.video:
                raise RequestError(f'input "{name}": {path} has no video in it.')
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
        raise RequestError(f'input "{name}": the video {path} has no frame.')


def _check_size(width: int, height: int, path: Path, name: str) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and width * height > limit:
        raise RequestError(f'input "{name}": frames of {path} are {width}x{height}, more than {limit:,} pixels.')
