"""Values of a model's input from audio files.

Python's `wave` reads PCM in .wav files; PyAV (FFmpeg's libraries) decodes everything else.
"""

from __future__ import annotations

import math
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import require
from ndld_flow.base.text import visible_name
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.records.measurement import RATE_UNKNOWN
from ndld_flow.samples.generated_values import is_float
from ndld_flow.samples.wanted_inputs import Feed, FileSamples, Pattern, WantedInput, shape_unknown

MOST_VALUES = 2**28
"""Maximum number of samples of a file, all channels together: 1 GiB of float32, 93 minutes of stereo at 24 kHz."""
_MOST_CHANNELS = 8
"""A larger dimension of an input is not that of an audio file's channels."""
_UNKNOWN_LENGTHS = (0x7FFFF000, 0xFFFFFFFF)
"""Bytes of samples up to which a program that could not seek, such as FFmpeg in a pipe, sets a header's length."""
_FORMATS = "wav,flac,ogg,mp3,mov,aac,aiff,w64"
"""Allowed formats; FFmpeg's others include playlists, which name files and addresses to read."""
_HIGHEST_RATE = 768_000
_MOST_BYTES = 4
"""Bytes of a sample of PCM that are read."""
_MOST_TIMES = 256
"""Maximum ratio of two rates: 768 kHz to 3 kHz. Filters, and files that claim 1 Hz, grow with it."""
_ZERO_CROSSINGS = 32
_KAISER_BETA = 9.0


@dataclass(frozen=True)
class AudioFile(FileSamples):
    """An audio file: one sample for an input of any length, else windows of the input's length, the last one padded
    with zeros.

    Inputs are `[N, T]`, `[T]`, `[N, C, T]` or, by `layout`, `[N, T, C]` or `[C, T]`. Floats are in [-1, 1), integers
    use the full range of their type.
    """

    layout: str
    sizes: dict[str, int | None]
    """Letter of the layout -> size; None if it is dynamic."""

    @classmethod
    def of(cls, wanted: WantedInput, label: str, path: Path) -> AudioFile:
        """Prepare the conversion. Raises `RequestError` if the input's shape or dtype does not fit audio."""
        where = f'input "{wanted.name}" from the audio file {path}'
        if wanted.pattern is None:
            raise shape_unknown(wanted.name)
        if not is_float(wanted.dtype) and wanted.dtype.name not in ("int16", "int32"):
            raise RequestError(f"{where}: audio cannot become {wanted.dtype.name}.")
        layout = wanted.given.layout or _find_layout(wanted.pattern)
        if "T" not in layout or len(layout) != len(wanted.pattern):
            raise RequestError(
                f"{where}: the input {shape_text(wanted.pattern)} has no dimension for the samples of a waveform. "
                "Set `layout:` to NCT, NTC or CT; a model of spectrograms needs these as .npy."
            )
        sizes = dict(zip(layout, (dim if isinstance(dim, int) else None for dim in wanted.pattern), strict=True))
        if wanted.given.hop is not None and sizes["T"] is None:
            raise RequestError(f"{where}: `hop` needs a fixed length, the input has {shape_text(wanted.pattern)}.")
        if len(wanted.given.mean) != 1 or len(wanted.given.std) != 1 or wanted.given.std[0] == 0:
            raise RequestError(f"{where}: `mean` and `std` need one number each, and `std` not 0.")
        if sizes["T"] == 0:
            raise RequestError(f"{where}: the input {shape_text(wanted.pattern)} is empty.")
        return cls(wanted, label, path, layout, sizes)

    @property
    def given(self) -> InputSpec:
        return self.wanted.given

    @property
    def name(self) -> str:
        return self.wanted.name

    @property
    def has_frames(self) -> bool:
        return self.sizes["T"] is not None

    @property
    def hop(self) -> int:
        """Return the distance between the starts of two windows."""
        return self.given.hop or self.sizes["T"] or 1

    def count(self, most: int) -> int:
        if _is_pcm(self.path, self.name):  # only its header is read
            with self.path.open("rb") as file, wave.open(file) as reader:
                rate, frames = reader.getframerate(), _pcm_frames(reader, file, self.path, self.name)
        else:
            lengths = [(rate, part.shape[1]) for rate, part in _decoded(self.path, self.name)]
            rate, frames = lengths[0][0], sum(length for _, length in lengths)
        self._check_rate(rate)
        frames = _converted_length(frames, rate, self.given.rate)
        _check_length(frames, self.path, self.name)
        return min(-(-self._windows(frames) // self.given.every), most)

    def feeds(self) -> Iterator[tuple[str, Feed]]:
        path = self.path
        rate, waveform = read_audio(path, self.name)
        self._check_rate(rate)
        changes = []
        channels = self.sizes.get("C", 1 if "C" not in self.layout else None)
        if channels is not None and channels != len(waveform):
            changes.append(f"{len(waveform)} -> {channels} channel{'s' * (channels != 1)}")
            waveform = self._with_channels(waveform, channels)
        if self.given.rate not in (None, rate):
            changes.append(f"{rate} -> {self.given.rate} Hz")
            _check_length(_converted_length(waveform.size, rate, self.given.rate), path, self.name)
            waveform = resample(waveform, rate, self.given.rate or rate)
        else:
            changes.append(f"{rate} Hz")
        shown = visible_name(str(path))
        notes = () if self.given.rate else (f"{shown} has {rate} Hz and {RATE_UNKNOWN}",)
        length = self.sizes["T"] or waveform.shape[1]
        for index in range(0, self._windows(waveform.shape[1]), self.given.every):
            start = index * self.hop
            part = waveform[:, start : start + length]
            missing = length - part.shape[1]
            padding = [f"padded by {missing} sample{'s' * (missing != 1)}"] if missing else []
            values = self._arranged(np.pad(part, ((0, 0), (0, missing))))
            self.wanted.check_shape(values.shape, f"{path} has")
            where = f" sample {start}" if self.sizes["T"] else ""
            described = ", ".join((f"audio {shown}{where}", *changes, *padding, self.wanted.describe(values)))
            yield f"{self.label}{where}", Feed(values, described, is_from_file=True, notes=notes)

    def _windows(self, frames: int) -> int:
        length = self.sizes["T"]
        if length is None or frames <= length:
            return 1
        # A hop beyond the length leaves no rest after the last window.
        return min(1 + -(-(frames - length) // self.hop), -(-frames // self.hop))

    def _check_rate(self, rate: int) -> None:
        path = self.path
        if not 0 < rate <= _HIGHEST_RATE:
            raise RequestError(f'input "{self.name}": {path} has a sample rate of {rate} Hz.')
        wanted = self.given.rate or rate
        if not rate <= wanted * _MOST_TIMES <= rate * _MOST_TIMES**2:
            raise RequestError(
                f'input "{self.name}": {path} has a sample rate of {rate} Hz, and `rate` is {wanted} Hz. Rates are '
                f"converted up to a factor of {_MOST_TIMES}: correct the file's header or `rate`."
            )

    def _with_channels(self, waveform: Array, channels: int) -> Array:
        if channels == 1:
            return np.asarray(waveform.mean(axis=0, keepdims=True))
        if len(waveform) == 1:
            return np.repeat(waveform, channels, axis=0)
        raise RequestError(
            f'input "{self.name}": {self.path} has {len(waveform)} channels, the input {channels}: convert it first.'
        )

    def _arranged(self, waveform: Array) -> Array:
        """Return a waveform `[C, T]` in the input's layout and dtype."""
        scale, mean, std = self.given.scale, self.given.mean, self.given.std
        values = waveform * np.float32(1.0 if scale is None else scale)
        dtype = self.wanted.dtype
        if is_float(dtype):
            values = (values - np.float32(mean[0])) / np.float32(std[0])
        else:
            info = np.iinfo(dtype)
            values = np.clip(np.round(values.astype(np.float64) * (info.max + 1.0)), info.min, info.max)
        if "C" not in self.layout:
            values = values[0]
        elif self.layout.endswith("TC"):
            values = values.T
        if "N" in self.layout:
            values = np.broadcast_to(values, (self.sizes["N"] or 1, *values.shape))
        return np.ascontiguousarray(values.astype(dtype))


def _find_layout(pattern: Pattern) -> str:
    """Return the layout of an input's shape; empty if it has none for waveforms."""
    if len(pattern) < 3:
        return ("", "T", "NT")[len(pattern)]
    channels_first, channels_last = (not isinstance(dim, int) or dim <= _MOST_CHANNELS for dim in pattern[1:3])
    if len(pattern) > 3 or not (channels_first or channels_last):
        return ""
    return "NCT" if channels_first else "NTC"


def read_audio(path: Path, name: str) -> tuple[int, Array]:
    """Return the sample rate in Hz and the waveform `[channels, samples]`, float32 in [-1, 1), of an audio file.

    Raises `RequestError` for a file that is not audio, is truncated, or is longer than `MOST_VALUES`, and
    `BackendError` if PyAV is needed and not installed.
    """
    if _is_pcm(path, name):
        with path.open("rb") as file, wave.open(file) as reader:
            frames = _pcm_frames(reader, file, path, name)
            data = reader.readframes(frames)
            if len(data) < frames * reader.getsampwidth() * reader.getnchannels():
                raise RequestError(f'input "{name}": {path} is truncated.')
            return reader.getframerate(), _from_pcm(data, reader)
    decoded = list(_decoded(path, name))
    return decoded[0][0], np.concatenate([part for _, part in decoded], axis=1)


def resample(waveform: Array, rate: int, new_rate: int) -> Array:
    """Return a waveform `[channels, samples]` at another sample rate, without aliasing.

    Every new sample is a sum of old ones weighted by a sinc at the lower of both rates, within a Kaiser window of
    `_ZERO_CROSSINGS` on each side (J. O. Smith, Digital Audio Resampling). The passband ends at 95 % of the lower
    Nyquist frequency. The waveform is zero outside its ends.
    """
    divisor = math.gcd(rate, new_rate)
    up, down = new_rate // divisor, rate // divisor
    cutoff = 0.95 * min(1.0, up / down)
    reach = math.ceil(_ZERO_CROSSINGS / cutoff)
    taps = np.arange(-reach, reach + 1)
    padded = np.pad(waveform, ((0, 0), (reach, reach + down + 1)))
    parts = np.lib.stride_tricks.sliding_window_view(padded, len(taps), axis=1)
    converted = np.empty((len(waveform), _converted_length(waveform.shape[1], rate, new_rate)), np.float32)
    for phase in range(min(up, converted.shape[1])):  # every `up`-th sample has the same weights
        first, offset = divmod(phase * down, up)
        distance = taps - offset / up
        window = np.i0(_KAISER_BETA * np.sqrt(1 - (distance / (reach + 1)) ** 2)) / np.i0(_KAISER_BETA)
        weights = (cutoff * np.sinc(cutoff * distance) * window).astype(np.float32)
        places = converted[:, phase::up]
        places[:] = parts[:, first::down][:, : places.shape[1]] @ weights
    return converted


def _converted_length(frames: int, rate: int, new_rate: int | None) -> int:
    return frames if new_rate is None else -(-frames * new_rate // rate)


def _is_pcm(path: Path, name: str) -> bool:
    """Return True for a file that `wave` reads. Raises `RequestError` for a missing or unreadable file."""
    if not path.exists():
        raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).')
    try:
        with path.open("rb") as file, wave.open(file) as reader:
            return bool(reader.getsampwidth() <= _MOST_BYTES)
    except (wave.Error, EOFError, RuntimeError):  # the last one for chunks that end beyond the file
        return False
    except OSError as error:
        raise RequestError(f'input "{name}": {path} cannot be read: {error.strerror or error}.') from None


def _pcm_frames(reader: wave.Wave_read, file: BinaryIO, path: Path, name: str) -> int:
    """Return the number of samples per channel that a file has, not only declares."""
    size = reader.getsampwidth() * reader.getnchannels()
    declared, left = reader.getnframes(), (path.stat().st_size - file.tell()) // size
    open_ended = any(declared >= length // size for length in _UNKNOWN_LENGTHS)
    if declared > left and not open_ended:
        raise RequestError(
            f'input "{name}": {path} is truncated: its header declares {declared} samples, and it has {left}.'
        )
    frames = min(declared, left)
    if frames <= 0:
        raise RequestError(f'input "{name}": {path} contains no samples.')
    _check_length(frames * reader.getnchannels(), path, name)
    return frames


def _from_pcm(data: bytes, reader: wave.Wave_read) -> Array:
    """Return PCM as floats in [-1, 1): unsigned with 8 bits, else signed and little-endian."""
    width, channels = reader.getsampwidth(), reader.getnchannels()
    if width == 1:
        values = np.frombuffer(data, np.uint8).astype(np.float32) / 128 - 1
    elif width == 3:
        high = np.zeros((len(data) // 3, 4), np.uint8)
        high[:, 1:] = np.frombuffer(data, np.uint8).reshape(-1, 3)
        values = (high.view("<i4")[:, 0] / 2**31).astype(np.float32)
    else:
        values = (np.frombuffer(data, f"<i{width}") / 2 ** (8 * width - 1)).astype(np.float32)
    return np.ascontiguousarray(values.reshape(-1, channels).T)


def _decoded(path: Path, name: str) -> Iterator[tuple[int, Array]]:
    """Yield the sample rate and parts `[channels, samples]` of a file, decoded by PyAV."""
    require("video", f'input "{name}": {path}')
    import av

    values = 0
    try:
        with path.open("rb") as file, av.open(file, mode="r", options={"format_whitelist": _FORMATS}) as container:
            if not container.streams.audio:
                raise RequestError(f'input "{name}": {path} contains no audio.')
            converter = av.AudioResampler(format="fltp")
            for frame in container.decode(container.streams.audio[0]):
                for part in converter.resample(frame):
                    waveform = part.to_ndarray()
                    values += waveform.size
                    _check_length(values, path, name)
                    yield part.sample_rate, waveform
    except (av.error.FFmpegError, OSError, ValueError) as error:
        raise RequestError(f'input "{name}": the audio file {path} cannot be decoded: {error}') from None
    if values == 0:
        raise RequestError(f'input "{name}": {path} contains no samples.')


def _check_length(values: int, path: Path, name: str) -> None:
    if values > MOST_VALUES:
        raise RequestError(f'input "{name}": {path} has more than {MOST_VALUES:,} samples. Cut it first.')
