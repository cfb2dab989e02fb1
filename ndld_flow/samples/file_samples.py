"""The samples in files: a file itself, the rows of an array, or the frames of a video, combined over several inputs.

Files of many samples can be split into a file for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import visible_name
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import TEXT, Array, dtype_text, shape_text
from ndld_flow.records.measurement import DISTORTED
from ndld_flow.samples.audio import AudioFile
from ndld_flow.samples.generated_values import is_float
from ndld_flow.samples.images import ImageInput, count_frames, count_video, image_frames, image_size, video_frames
from ndld_flow.samples.value_files import (
    StoredArray,
    TextFile,
    cast_to_model,
    check_family,
    open_array,
    open_lines,
    open_table,
)
from ndld_flow.samples.wanted_inputs import Feed, FileSamples, ImageOrigin, Pattern, WantedInput, fits, want_inputs
from ndld_flow.store.files import make_folder
from ndld_flow.store.found_files import (
    ANIMATION_SUFFIXES,
    AUDIO_SUFFIXES,
    IMAGE_SUFFIXES,
    KNOWN_SUFFIXES,
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    VALUE_SUFFIXES,
    VIDEO_SUFFIXES,
    FoundFile,
    find_files,
)


def open_file(wanted: WantedInput, file: FoundFile) -> FileSamples:
    """Return the samples in a file. Raises `RequestError` if its type is unknown."""
    suffix = file.path.suffix.lower()
    if file.path.is_dir():
        path = file.path / f"input_{wanted.place}.pb"
        if not path.exists():
            raise RequestError(
                f'input "{wanted.name}": the test data set {file.path} has no {path.name}, and the model\'s inputs are '
                "counted from 0."
            )
        return ArrayFile(wanted, file.label, path)
    is_text = suffix in TEXT_SUFFIXES and wanted.dtype == TEXT
    if suffix in (*VALUE_SUFFIXES, *TABLE_SUFFIXES) or is_text:
        return ArrayFile(wanted, file.label, file.path)
    if suffix in (*IMAGE_SUFFIXES, *VIDEO_SUFFIXES):
        return ImageFile(wanted, file.label, file.path, ImageInput.of(wanted, file.path))
    if suffix in AUDIO_SUFFIXES:
        return AudioFile.of(wanted, file.label, file.path)
    if suffix in TEXT_SUFFIXES:
        return TextFile(wanted, file.label, file.path)
    raise RequestError(
        f'input "{wanted.name}": data "{visible_name(str(file.path))}" is neither random, zeros, ones, nor a file of a '
        f"supported type: {', '.join(KNOWN_SUFFIXES)}."
    )


@dataclass(frozen=True)
class ArrayFile(FileSamples):
    """An array, which is one sample if its shape matches the input.

    With one more dimension, each item of the first dimension is a sample. If the size of the first dimension is fixed,
    an array with a multiple of it is split into as many samples. One dimension, such as a waveform's, gives windows of
    the length of the input's last one.
    """

    @property
    def has_frames(self) -> bool:
        return self._window > 0

    @cached_property
    def _window(self) -> int:
        """Return the length of windows; 0 if the array is not one long signal for an input of more dimensions."""
        shape, pattern = self._stored.shape, self.wanted.pattern or ()
        length = pattern[-1] if len(pattern) > 1 else None
        is_flat = len(shape) == 1 and not any(isinstance(dim, int) and dim != 1 for dim in pattern[:-1])
        if not is_flat or not isinstance(length, int) or not 0 < length <= shape[0]:
            return 0
        # Zeros are silence, but no numbers of tokens.
        is_whole = (shape[0] - length) % (self.wanted.given.hop or length) == 0
        return length if is_whole or is_float(self._stored.dtype) else 0

    @cached_property
    def _starts(self) -> range:
        """Return the start of each window; the last one holds the rest, which is padded."""
        given, length = self.wanted.given, self._stored.shape[0]
        hop = given.hop or self._window
        return range(0, min(length - self._window + hop, length), hop)[:: given.every]

    @cached_property
    def _stored(self) -> StoredArray:
        suffix = self.path.suffix.lower()
        if suffix in TABLE_SUFFIXES:
            stored = open_table(self.path, self.wanted)
        elif suffix in TEXT_SUFFIXES:
            stored = open_lines(self.path, self.wanted)
        else:
            stored = open_array(self.path, self.wanted.name)
        check_family(stored.dtype, self.wanted.dtype, self.wanted.name, str(self.path))
        return stored

    @property
    def _pattern(self) -> Pattern | None:
        """Return the shape of a sample in the file: one that is repeated may have any number of items."""
        pattern = self.wanted.pattern
        return (None, *pattern[1:]) if self.wanted.repeat and pattern else pattern

    def count(self, most: int) -> int:
        if self._window:
            return min(len(self._starts), most)
        shape, pattern = self._stored.shape, self._pattern
        rows = _rows(shape, pattern)
        if rows is None:
            self.wanted.check_shape(shape, f"{self.path} has")
        number = 1 if not rows else shape[0] // rows
        if number == 0:
            raise RequestError(
                f'input "{self.wanted.name}": {self.path} contains no sample: its shape is {shape_text(shape)}.'
            )
        return min(number, most)

    def feeds(self) -> Iterator[tuple[str, Feed]]:
        if self._window:
            yield from self._windows()
            return
        number = self.count(2**62)
        shape, rows = self._stored.shape, _rows(self._stored.shape, self._pattern) or 0
        extra = bool(rows) and self._pattern is not None and len(shape) > len(self._pattern)
        for i, values in zip(range(number), self._stored.read(rows), strict=False):
            own = values[0] if extra else values
            where = "" if not rows else f" row {i}" if rows == 1 else f" rows {i * rows}-{(i + 1) * rows - 1}"
            yield f"{self.label}{where}", self._feed(own, f"{visible_name(str(self.path))}{where}")

    def _windows(self) -> Iterator[tuple[str, Feed]]:
        signal = next(self._stored.read(0))
        shape = [dim if isinstance(dim, int) else 1 for dim in self.wanted.pattern or ()]
        for start in self._starts:
            part = signal[start : start + self._window]
            missing, where = self._window - len(part), f" element {start}"
            padded = f", padded by {counted(missing, 'element')}" if missing else ""
            values = np.pad(part, (0, missing)).reshape(shape)
            yield f"{self.label}{where}", self._feed(values, f"{visible_name(str(self.path))}{where}{padded}")

    def _feed(self, values: Array, origin: str) -> Feed:
        wanted = self.wanted
        is_same = dtype_text(values.dtype) == dtype_text(wanted.dtype)
        how = origin if is_same else f"{origin} cast"
        if wanted.repeat and wanted.pattern and len(values):
            items = wanted.pattern[0]
            if isinstance(items, int) and items != len(values):
                values = np.take(values, np.arange(items) % len(values), axis=0)
        cast = np.ascontiguousarray(cast_to_model(values, wanted.dtype, wanted.name, origin)).reshape(values.shape)
        self.wanted.check_shape(cast.shape, f"{self.path} has")
        return Feed(cast, f"{how}, {wanted.describe(cast)}", is_from_file=True)


_DISTORTION = 0.02
"""Change of the aspect ratio from which on a stretched image is reported: less is rounding."""


@dataclass(frozen=True)
class ImageFile(FileSamples):
    """An image, or an animation or a video, of which every N-th frame is a sample."""

    picture: ImageInput

    @property
    def has_frames(self) -> bool:
        return self.path.suffix.lower() in (*VIDEO_SUFFIXES, *ANIMATION_SUFFIXES)

    def count(self, most: int) -> int:
        name, every = self.wanted.name, self.wanted.given.every
        if self._is_video:
            return count_video(self.path, name, every, most)
        return min(-(-count_frames(self.path, name) // every), most)

    def feeds(self) -> Iterator[tuple[str, Feed]]:
        wanted, read = self.wanted, video_frames if self._is_video else image_frames
        for index, source in read(self.path, wanted.name, wanted.given.every):
            where = "" if index is None else f" frame {index}"
            values = self.picture.values(source)
            wanted.check_shape(values.shape, f"{self.path} has")
            how = f"image {visible_name(str(self.path))}{where} as {self.picture.layout}"
            change, caveat = self._change(source.picture.size), self._distortion(source.picture.size)
            notes = [f"{self.label}{where} {source.note}"] if source.note else []
            notes += [f"{self.label}{where} is distorted, {caveat}: {DISTORTED}"] if caveat else []
            described = (how, *source.changes, change, wanted.describe(values))
            origin = ImageOrigin(*source.picture.size, self.picture.restore, self.picture.settings)
            text = ", ".join(filter(None, described))
            yield f"{self.label}{where}", Feed(values, text, is_from_file=True, notes=tuple(notes), image=origin)

    @property
    def distortion(self) -> str:
        try:
            return "" if self._is_video else self._distortion(image_size(self.path, self.wanted.name))
        except RequestError:  # it is raised when the sample is read
            return ""

    def _change(self, size: tuple[int, int]) -> str:
        """Return `640x480 -> 320x320 (letterbox)`; empty if an image keeps its size."""
        placement = self.picture.placement(size)
        target = (placement.width, placement.height)
        if size == target == placement.size:
            return ""
        return f"{size[0]}x{size[1]} -> {target[0]}x{target[1]} ({self.wanted.given.resize or 'stretch'})"

    def _distortion(self, size: tuple[int, int]) -> str:
        placement = self.picture.placement(size)
        change = size[0] * placement.height / (size[1] * placement.width)
        return self._change(size) if self.wanted.given.resize is None and abs(change - 1) > _DISTORTION else ""

    @property
    def _is_video(self) -> bool:
        return self.path.suffix.lower() in VIDEO_SUFFIXES


def _rows(shape: tuple[int, ...], pattern: Pattern | None) -> int | None:
    """Return the number of items of the first dimension in a sample.

    0 if the whole array is a sample; None if the shape does not fit.
    """
    if pattern is None or fits(shape, pattern):
        return 0
    if fits(shape[1:], pattern):
        return 1
    first = pattern[0] if pattern else None
    if not isinstance(first, int) or not fits(shape, (None, *pattern[1:])):
        return None
    return first if 0 < first < shape[0] and shape[0] % first == 0 else None


_PROBLEMS_SHOWN = 3
_MOST_EXAMINED = 1000
_ALL = 2**62


@dataclass(frozen=True)
class InputFiles:
    """The files of the inputs that have any."""

    files: Mapping[str, Sequence[FileSamples]]
    counts: Mapping[str, int]
    """Input -> number of samples in its files, as far as counted."""

    @property
    def label_count(self) -> int:
        """Return the number of samples that have distinct labels."""
        return max(self.counts.values(), default=0)

    @property
    def notes(self) -> dict[str, str]:
        """Return a caveat for each input with several files if some of the first ones are distorted."""
        notes = {}
        for name, files in self.files.items():
            examined = files[: min(self.counts[name], _MOST_EXAMINED)]
            distorted = [(file.label, change) for file in examined if (change := file.distortion)]
            if distorted and len(examined) > 1:
                label, change = distorted[0]
                notes[name] = (
                    f"{len(distorted)} of {len(examined)} files are distorted, {label} first, {change}: {DISTORTED}"
                )
        return notes

    def feeds(self) -> Iterator[tuple[str, dict[str, Feed]]]:
        """Yield label and values of each sample; endless if no input has several."""
        if not self.files:
            yield from repeat(("", {}))
        streams = [self._stream(name) for name in self.files]
        for read in zip(*streams, strict=False):
            labels = dict.fromkeys(label for label, _ in read)
            yield ", ".join(labels), {name: feed for name, (_, feed) in zip(self.files, read, strict=True)}

    def _stream(self, name: str) -> Iterator[tuple[str, Feed]]:
        stream = chain.from_iterable(file.feeds() for file in self.files[name])
        return repeat(next(stream)) if self.counts[name] == 1 else stream


def open_files(wanted: Sequence[WantedInput], requested: int | None, *, count_all: bool = False) -> InputFiles:
    """Open the files of inputs and check them by their headers.

    Raises `RequestError` if some do not fit, if inputs have different numbers of samples, or if more are requested than
    there are. A single sample is repeated if a random input varies.
    """
    files = {wanted_input.name: open_input(wanted_input) for wanted_input in wanted if wanted_input.given.data_patterns}
    # A single input is counted only up to the requested number; several inputs must have equal numbers.
    most = requested if requested is not None and len(files) == 1 and not count_all else _ALL
    problems: list[str] = []
    opened = InputFiles(files, {name: _count(own, most, problems) for name, own in files.items()})
    if problems:
        more = len(problems) - _PROBLEMS_SHOWN
        raise RequestError("; ".join(problems[:_PROBLEMS_SHOWN]) + (f"; and {more} more files" if more > 0 else ""))
    several = {name: count for name, count in opened.counts.items() if count > 1}
    if len(set(several.values())) > 1:
        named = ", ".join(f'"{name}" has {count}' for name, count in several.items())
        raise RequestError(f"samples: input {named}. Give the same number to each, or one that all share.")
    varies = any(wanted_input.given.is_random for wanted_input in wanted)
    available = max(opened.counts.values(), default=None)
    if requested is not None and available is not None and requested > available and (available > 1 or not varies):
        names = ", ".join(f'"{name}"' for name, count in opened.counts.items() if count == available)
        raise RequestError(f"samples: {requested} are requested, and the data of input {names} has {available}.")
    return opened


def open_input(wanted_input: WantedInput) -> list[FileSamples]:
    """Open the files of an input. Raises `RequestError` if there are none, or one has an unknown type."""
    try:
        files = find_files(wanted_input.given.data_patterns)
    except RequestError as error:
        raise RequestError(f'input "{wanted_input.name}": {error}') from None
    opened = [open_file(wanted_input, file) for file in files]
    every = wanted_input.given.every
    if every > 1 and not any(file.has_frames for file in opened):
        raise RequestError(
            f'input "{wanted_input.name}": `every: {every}` is for frames of videos and windows of signals only; its '
            "data has none."
        )
    return opened


def _count(files: Sequence[FileSamples], most: int, problems: list[str]) -> int:
    """Return the number of samples in files; problems of files are added to `problems`."""
    total = 0
    for file in files:
        if total >= most:
            break
        try:
            total += file.count(most - total)
        except BackendError:
            raise
        except RequestError as error:
            problems.append(str(error).removesuffix("."))
    return total


def sample_shapes(
    paths: Sequence[Path], name: str, declared: Sequence[int | str | None] | None
) -> Sequence[tuple[int, ...]]:
    """Return the shapes of the samples in files of arrays, each once, that of the first sample first; empty for other
    files, and for arrays that the model does not accept.

    One array has a sample in each item along the first dimension, where the model takes any number of items or one.
    """
    if declared is None or any(path.suffix.lower() not in VALUE_SUFFIXES for path in paths):
        return ()
    shapes = list(dict.fromkeys(open_array(path, name).shape for path in paths))
    if {len(shape) for shape in shapes} == {len(declared) + 1}:
        return list(dict.fromkeys(shape[1:] for shape in shapes))
    if any(len(shape) != len(declared) for shape in shapes):
        return ()
    is_batch = len(paths) == 1 and (declared[0] == 1 or not isinstance(declared[0], int))
    return [(1, *shapes[0][1:])] if is_batch else shapes


def write_samples(model: Path, given: Mapping[str, InputSpec], most: int, folder: Path) -> dict[str, list[Path]]:
    """Write the samples in one file for each input, `speech-0029.npy` for row 29 of `speech.npy`; return them by input.

    Text with a tokenizer also gives the mask and the positions of its tokens.

    Of more than `most` samples, these are taken at equal distances. A file with one sample is returned itself, and so
    are images, which a step reads with settings of its own. Raises RequestError for a file that does not fit.
    """
    from ndld_flow.models.files import model_inputs  # imports onnx_ir, which a check of the recipe's files need not

    wanted = want_inputs(model_inputs(model), given, model.name)
    files = open_files(wanted, None)
    count = max(files.counts.values(), default=1)
    own = {name: [Path(str(spec.data))] for name, spec in given.items() if spec.data_patterns}
    if count < 2 or any(paths[0].suffix.lower() in IMAGE_SUFFIXES for paths in own.values()):
        return own
    make_folder(folder)
    distance = -(-count // most)
    written: dict[str, list[Path]] = {name: [] for name in files.files}
    stems = {
        name: re.sub(r"[^\w-]", "-", paths[0].stem)[:40] if len(paths) == 1 else "sample" for name, paths in own.items()
    }
    if stems.keys() != written.keys() or len({*stems.values()}) < len(stems):  # names of files must differ
        stem = next(iter(stems.values())) if len({*stems.values()}) == 1 else "input"
        stems = {name: f"{stem}-{index}" for index, name in enumerate(written)}
    for number, (_, feeds) in enumerate(files.feeds()):
        if number % distance:
            continue
        for name, feed in feeds.items():
            path = folder / f"{stems[name]}-{number:04}.npy"
            np.save(path, feed.values, allow_pickle=False)
            written[name].append(path)
        if number + 1 == count:
            break
    return written
