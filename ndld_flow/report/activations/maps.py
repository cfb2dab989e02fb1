"""Maps and pictures of captured activations: read from a step's folder, packed into a page within a size budget.

Names in documents are untrusted and must not lead out of the folder."""

from __future__ import annotations

import base64
import gzip
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name
from ndld_flow.records.activations import ActivationMap, Activations
from ndld_flow.records.document import is_inner_path
from ndld_flow.records.run_folder import read_record

_PNG = b"\x89PNG\r\n\x1a\n"
_PICTURE_BYTES = 2**21
"""Maximum size of a picture; inputs of models are small."""


def read_activations(folder: Path) -> Activations:
    """Read `activations.json`.

    Raises a `RequestError` if there is none, it cannot be read, or another version wrote it.
    """
    return read_record(
        Activations,
        folder / Activations.file_name,
        absent="contains no activations",
        give="Give the folder of an inspect_activations step.",
        unreadable="is not a document of activations",
    )


def read_map(folder: Path, map_: ActivationMap) -> bytes:
    """Return the codes of a map: channels x height x width values of 2 bytes, little-endian.

    Raises a `ValueError` with the file's problem.
    """
    wanted = map_.channels * map_.height * map_.width * 2
    if min(map_.channels, map_.height, map_.width) < 1:
        raise ValueError("a map without elements")
    with _opened(folder, map_.file) as file:
        size = os.fstat(file.fileno()).st_size
        if size != wanted:
            raise ValueError(
                f"{size:,} bytes, which is not {map_.channels:,} channels of {map_.height:,} x {map_.width:,}"
            )
        return file.read(wanted)


def read_picture(folder: Path, name: str) -> bytes:
    """Return a PNG. Raises a `ValueError` with the file's problem."""
    with _opened(folder, name) as file:
        data = file.read(_PICTURE_BYTES + 1)
    if not data.startswith(_PNG):
        raise ValueError("not a PNG")
    if len(data) > _PICTURE_BYTES:
        raise ValueError(f"larger than {_PICTURE_BYTES >> 20} MiB")
    return data


def is_within_folder(name: str) -> bool:
    """Return whether a relative file name stays within its folder, and is no URL of another scheme."""
    return is_inner_path(name) and ":" not in name


@contextmanager
def _opened(folder: Path, name: str) -> Iterator[BinaryIO]:
    """Open a regular file within the folder; refuse links out of it and special files that could block."""
    if not is_within_folder(name):
        raise ValueError("not a file next to the document")
    try:
        path = (folder / name).resolve()
        if not path.is_relative_to(folder.resolve()):
            raise ValueError("a link out of the folder")
        if not stat.S_ISREG(path.stat().st_mode):
            raise ValueError("not a regular file")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from error
    except RuntimeError as error:  # pathlib's error for a link to itself before Python 3.13
        raise ValueError("a link to itself") from error


BUDGET = 11_500_000
"""Maximum number of characters for all maps and pictures of a page."""

_FEWEST = 16
"""Minimum channels of a tensor to keep before samples are left out."""
_TRIED = 2**16
"""Bytes of a map used to estimate its compression ratio."""


@dataclass(frozen=True)
class PackedMap:
    """One map in the page."""

    tensor: int
    """Position of the tensor in the record."""
    source: ActivationMap
    chunk: int
    """Position in `PackedMaps.chunks`."""
    numbers: tuple[int, ...]
    """Channels of the tensor that are included."""
    over: int
    """The chunk to XOR with these codes; -1 if these are the codes themselves."""


@dataclass
class PackedMaps:
    """The maps and pictures in the page, with notes on those left out."""

    chunks: list[str] = field(default_factory=list)
    """base64 of a picture, or of a map's gzipped codes: all low bytes, then all high bytes."""
    maps: list[PackedMap] = field(default_factory=list)
    pictures: dict[int, int] = field(default_factory=dict)
    """Sample -> chunk."""
    notes: list[str] = field(default_factory=list)

    @property
    def letters(self) -> int:
        return sum(map(len, self.chunks))


@dataclass(frozen=True)
class _Read:
    """A map, and the reference's map of the same elements."""

    tensor: int
    source: ActivationMap
    codes: bytes
    base: bytes | None
    ranked: tuple[int, ...]
    """Positions of its channels, the most relevant first."""

    @property
    def plane(self) -> int:
        """Bytes of a channel."""
        return self.source.height * self.source.width * 2

    def letters(self, channels: Sequence[int]) -> str:
        """Return the encoded channels at these positions."""
        codes = self._cut(self.codes, channels)
        if self.base is not None:
            # Two models differ little: their XOR has small numbers, which compress far better.
            mixed = int.from_bytes(codes) ^ int.from_bytes(self._cut(self.base, channels))
            codes = mixed.to_bytes(len(codes))
        # High bytes hardly change between elements, so they are stored together.
        packed = gzip.compress(codes[0::2] + codes[1::2], compresslevel=4, mtime=0)
        return base64.b64encode(packed).decode()

    def letters_of_one(self) -> float:
        """Return the estimated number of characters per channel."""
        channels = self.ranked[: max(1, _TRIED // self.plane)]
        return len(self.letters(channels)) / len(channels)

    def _cut(self, codes: bytes, channels: Sequence[int]) -> bytes:
        if len(channels) == self.source.channels:
            return codes
        return b"".join(codes[index * self.plane : (index + 1) * self.plane] for index in channels)


def pack_maps(record: Activations, folder: Path, budget: int = BUDGET) -> PackedMaps:
    """Read and pack the maps that fit: of all samples if there is room for enough channels of each tensor, otherwise of
    the first samples.

    Notes list the maps that cannot be read or do not fit.
    """
    packed = PackedMaps()
    for index, sample in enumerate(record.samples):
        if not sample.picture:
            continue
        try:
            picture = base64.b64encode(read_picture(folder, sample.picture)).decode()
        except ValueError as error:
            packed.notes.append(f"{short_name(sample.picture, 80)} is left out: {error}.")
            continue
        packed.pictures[index] = len(packed.chunks)
        packed.chunks.append(picture)
    maps = list(_read_maps(record, folder, packed.notes))
    samples = sorted({read.source.sample for read in maps})
    room = int(0.98 * (budget - packed.letters))  # costs are estimated from a part of each map
    costs = [read.letters_of_one() for read in maps]
    most = max((read.source.channels for read in maps), default=1)
    for kept in range(len(samples), 0, -1):
        shown = [(read, cost) for read, cost in zip(maps, costs, strict=True) if read.source.sample in samples[:kept]]
        limit = _fitting(shown, room, most)
        if limit >= min(_FEWEST, most) or kept == 1:
            _pack([read for read, _ in shown], limit, budget, packed)
            _note_left_out(packed, (kept, len(samples)), limit if limit < most else None)
            break
    return packed


def _read_maps(record: Activations, folder: Path, notes: list[str]) -> Iterator[_Read]:
    """Yield the maps of each tensor and sample, the reference's first."""
    for index, tensor in enumerate(record.tensors):
        base: _Read | None = None
        for map_ in sorted(tensor.maps, key=lambda map_: (map_.sample, map_.side != "reference")):
            if base is not None and _elements(base.source) != _elements(map_):
                base = None
            try:
                codes = read_map(folder, map_)
            except ValueError as error:
                notes.append(f"{short_name(map_.file, 80)} is left out: {error}.")
                continue
            # By difference, or by magnitude without a reference, the largest first.
            weights = {
                channel.channel: channel.rms if channel.difference_rms is None else channel.difference_rms
                for channel in tensor.channels
            }
            numbers = _numbers(map_)
            ranked = tuple(sorted(range(map_.channels), key=lambda index: (-weights.get(numbers[index], 0.0), index)))
            read = _Read(index, map_, codes, base.codes if base else None, ranked)
            base = base or read
            yield read


def _elements(map_: ActivationMap) -> tuple[object, ...]:
    return (map_.sample, map_.channels, map_.height, map_.width, map_.channel_numbers)


def _numbers(map_: ActivationMap) -> Sequence[int]:
    return map_.channel_numbers if len(map_.channel_numbers) == map_.channels else range(map_.channels)


def _fitting(shown: Iterable[tuple[_Read, float]], room: int, most: int) -> int:
    """Return the number of channels of each tensor that fit, at least one."""
    pairs = list(shown)

    def needed(limit: int) -> float:
        return sum(cost * min(limit, pair.source.channels) for pair, cost in pairs)

    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if needed(middle) <= room else (low, middle - 1)
    return low


def _pack(maps: Sequence[_Read], limit: int, budget: int, packed: PackedMaps) -> None:
    """Add the most relevant channels of each map while there is room, a candidate together with its reference."""
    chunks: dict[tuple[int, int], int] = {}
    left_out = 0
    for read in maps:
        key = (read.tensor, read.source.sample)
        channels = sorted(read.ranked[:limit])
        text = read.letters(channels)
        if packed.letters + len(text) > budget or (read.base is not None and key not in chunks):
            left_out += 1
            continue
        numbers = _numbers(read.source)
        over = chunks[key] if read.base is not None else -1
        chunks.setdefault(key, len(packed.chunks))
        packed.maps.append(
            PackedMap(read.tensor, read.source, len(packed.chunks), tuple(numbers[index] for index in channels), over)
        )
        packed.chunks.append(text)
    if left_out:
        packed.notes.append(f"{left_out:,} maps are left out to keep this page small; the files next to it have them.")


def _note_left_out(packed: PackedMaps, samples: tuple[int, int], limit: int | None) -> None:
    kept, total = samples
    parts = [f"maps of {kept} of {total} samples, the first"] if kept < total else []
    if limit is not None:
        parts.append(f"{counted(limit, 'channel')} of a tensor at most")
    if parts:
        packed.notes.append(
            f"To keep this page small, it has {' and '.join(parts)}; statistics cover everything, and the files "
            "next to it have all maps."
        )
