"""Images, animations, videos and arrays for tests, made by code."""

from __future__ import annotations

import wave
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from PIL import Image


def gray(level: int, size: tuple[int, int] = (8, 8)) -> Image.Image:
    """A picture of one level."""
    return Image.new("RGB", size, (level, level, level))


def write_images(folder: Path, levels: dict[str, int]) -> Path:
    """Images of one level each, by name; folders in names are made."""
    for name, level in levels.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        gray(level).save(folder / name)
    return folder


def write_animation(path: Path, levels: Sequence[int]) -> Path:
    first, *others = map(gray, levels)
    first.save(path, save_all=True, append_images=others, duration=40, lossless=True)
    return path


def write_video(path: Path, levels: Sequence[int], size: tuple[int, int] = (64, 48)) -> Path:
    """A video of frames of one level each; needs PyAV."""
    import av

    codec = {".webm": "libvpx", ".avi": "mjpeg"}.get(path.suffix, "mpeg4")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for level in levels:
            frame = av.VideoFrame.from_ndarray(np.full((size[1], size[0], 3), level, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def write_test_set(folder: Path, *arrays: np.ndarray[Any, Any]) -> Path:
    """Write an ONNX test data set: `input_0.pb`, `input_1.pb`, ..., and an output that must not be read as an input."""
    folder.mkdir(parents=True)
    for index, array in enumerate(arrays):
        (folder / f"input_{index}.pb").write_bytes(onnx.numpy_helper.from_array(array).SerializeToString())
    (folder / "output_0.pb").write_bytes(onnx.numpy_helper.from_array(np.zeros(7)).SerializeToString())
    return folder


def write_wav(path: Path, waveform: np.ndarray[Any, Any], rate: int = 16000, bits: int = 16) -> Path:
    """Write a waveform `[channels, samples]` in [-1, 1) as PCM."""
    values = np.round(np.atleast_2d(waveform).T * 2.0 ** (bits - 1))
    values = np.clip(values, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1).astype("<i4").copy()
    data = (values + 128).astype(np.uint8) if bits == 8 else values.view(np.uint8).reshape(*values.shape, 4)
    with wave.open(str(path), "wb") as file:
        file.setparams((values.shape[1], bits // 8, rate, 0, "NONE", "not compressed"))
        file.writeframes(data.tobytes() if bits == 8 else data[..., : bits // 8].tobytes())
    return path
