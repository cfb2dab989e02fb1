"""Safe opening of model files, the names of their external data files, and the inputs that they declare.

A plan and a message for wrong input need these, and cannot afford the second that importing onnx_ir takes: this module
parses the few protobuf fields that matter; it skips everything else, weights included, in a memory map without reading
it.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ndld_flow.base.errors import MissingDataError, ModelError
from ndld_flow.base.text import short_name
from ndld_flow.records.document import is_inner_path

# Message -> field number -> nested message (onnx.proto). Other fields are skipped.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {},
}
_Field = tuple[str, int, int, int]
"""Kind of message, field number, first byte, end."""
_ENTRY = ("tensor", 13)
"""The field for the file of a tensor's external data."""
_NAMES = (1, 2, 3, 4)
"""A node's fields for its inputs, its outputs, its name and its operator."""
_ELEMENT_TYPES = (
    *("undefined", "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "string", "bool", "float16"),
    *("float64", "uint32", "uint64", "complex64", "complex128", "bfloat16", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "uint4", "int4", "float4_e2m1fn", "float8_e8m0fnu", "uint2", "int2"),
    *("float6_e2m3fn", "float6_e3m2fn"),
)
"""Names in numpy or ml_dtypes, by their numbers in ONNX."""
_SNAPSHOTS, _BLOBS, _REPOSITORY = "snapshots", "blobs", "models--"
"""Names in the cache of Hugging Face: https://huggingface.co/docs/huggingface_hub/guides/manage-cache."""
_HARD_LINKS = "has several hard links, which onnx rejects as unsafe. Copy the file instead."
_GRAPH = 7
"""The model's field for its graph."""
_DELIMITED = 2
"""Wire type of fields that have a length: messages, texts, bytes."""
_MAX_DEPTH = 100
"""Protobuf's own limit on nested messages."""


class _BrokenError(Exception):
    """The bytes are not a protobuf message."""


def open_regular(path: Path, flags: int = 0) -> BinaryIO:
    """Open a model file for reading, with more flags of `os.open`.

    Raises `ModelError` if it is missing, unreadable or not a regular file: a pipe would block, a device never ends.
    """
    try:
        flags |= os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise ModelError(f"{path}: the model file does not exist. Check the path.") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: the model cannot be read ({getattr(error, 'strerror', error)}).") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ModelError(f"{path}: this is not a regular file. Name the .onnx file itself.")
    return os.fdopen(descriptor, "rb")


@dataclass(frozen=True)
class DataFile:
    """A file of external data that may be read."""

    path: Path
    """The file itself: in the model's folder, or in the cache to which a link in that folder leads."""
    size_bytes: int
    in_cache: bool = False

    def open(self) -> BinaryIO:
        """Open the file for reading. Raises `ModelError` if a link or anything else has taken its place."""
        file = open_regular(self.path, getattr(os, "O_NOFOLLOW", 0))
        if os.fstat(file.fileno()).st_nlink > 1:
            file.close()
            raise ModelError(f"{self.path} {_HARD_LINKS}")
        return file


def external_file(path: Path, location: str) -> DataFile:
    """Return a data file that the model at `path` names.

    Raises `ModelError` for a location outside the model's folder, a link out of it except into the cache of Hugging
    Face to which the folder belongs, a hard link or anything but a regular file; `MissingDataError` for a missing one.
    """
    folder = path.parent.resolve()
    where = f"{path}: external data {short_name(location)!r}"
    if not is_inner_path(location):
        raise ModelError(
            f"{where} is outside the model's folder, which is not allowed. "
            "Put the data file into that folder and save the model with a plain file name."
        )
    try:
        real = (folder / location).resolve(strict=True)
        status = real.stat()
    except (OSError, RuntimeError):
        error = MissingDataError(f"{where} is missing. Copy the data file into {folder} together with the model.")
        error.reason = f"{short_name(location)} is missing"
        raise error from None
    in_cache = not real.is_relative_to(folder) and real == _linked_blob(folder, location)
    if not in_cache and not real.is_relative_to(folder):
        raise ModelError(f"{where} is a link out of the model's folder, which is not allowed. Copy the file there.")
    if not stat.S_ISREG(status.st_mode):
        raise ModelError(f"{where} is not a regular file.")
    if status.st_nlink > 1:
        raise ModelError(f"{where} {_HARD_LINKS}")
    return DataFile(real, status.st_size, in_cache)


def _linked_blob(folder: Path, location: str) -> Path | None:
    """Return the path that a link names if both belong to one repository in the cache of Hugging Face, else None.

    There, `models--OWNER--NAME/snapshots/REVISION` has only links, each to a file in `models--OWNER--NAME/blobs`. Only
    this link is followed: the caller refuses a path that is not yet the file itself.
    """
    roots = (parent.parent for parent in folder.parents if parent.name == _SNAPSHOTS)
    repository = next((root for root in roots if root.name.startswith(_REPOSITORY)), None)
    link = folder / location
    if repository is None or not link.is_symlink() or link.parent.resolve() != link.parent:
        return None
    target = Path(os.path.normpath(link.parent / link.readlink()))
    return target if target.parent == repository / _BLOBS else None


def mentions(path: Path, text: bytes) -> bool:
    """Return whether a model file contains these bytes. Raises `ModelError` if it is missing or empty."""
    with open_regular(path) as file, _mapped(file, path) as data:
        return data.find(text) >= 0


def external_files(path: Path) -> tuple[str, ...]:
    """Return the locations of the external data files that `path` names, as written there, sorted.

    Raises `ModelError` if the file is missing, empty, or not a protobuf.
    """
    with _parsing(path) as data:
        # Almost every model has none, which one search at memory speed shows.
        if data.find(b"location") < 0:
            return ()
        entries = [field[2:] for field in _walk(data, 0, len(data)) if field[:2] == _ENTRY]
        named = [{number: data[slice(*whole)] for number, *whole in _messages(data, *entry)} for entry in entries]
        # The key of a StringStringEntryProto is field 1, its value field 2.
        return tuple(sorted({entry.get(2, b"").decode() for entry in named if entry.get(1) == b"location"}))


def names_in(path: Path) -> list[str]:
    """Return the names of a model's nodes, operators and tensors, in subgraphs and functions too."""
    with _parsing(path) as data:
        fields = (field for field in _walk(data, 0, len(data)) if field[0] == "node" and field[1] in _NAMES)
        return list({data[first:last].decode(): None for _, _, first, last in fields if first < last})


def refuse_other_files(path: Path) -> None:
    """Raise `ModelError` for a file that is missing, empty, or not an ONNX model by its outermost fields."""
    with _parsing(path):
        pass


@dataclass(frozen=True)
class DeclaredInput:
    """An input as a model declares it, as `TensorSpec` has it, which needs numpy."""

    dtype: str
    shape: tuple[int | str | None, ...] | None


def declared_inputs(path: Path) -> dict[str, DeclaredInput]:
    """Return the inputs that a model declares and has no initializer for. Raises `ModelError` as `external_files`."""
    with _parsing(path) as data:
        graph = [
            each
            for number, *whole in _messages(data, 0, len(data))
            if number == _GRAPH
            for each in _messages(data, *whole)
        ]
        weights = {_last(data, part, 8) for number, *part in graph if number == 5}
        sparse = [values for number, *part in graph if number == 15 for values in _parts(data, part, 1)]
        weights |= {_last(data, values, 8) for values in sparse}
        inputs = {_last(data, part, 1): _declared(data, part) for number, *part in graph if number == 11}
        return {name.decode(): each for name, each in inputs.items() if name not in weights}


def _declared(data: mmap.mmap, value: Sequence[int]) -> DeclaredInput:
    """Return the type of a ValueInfoProto."""
    tensors = [tensor for kind in _parts(data, value, 2) for tensor in _parts(data, kind, 1)]
    if not tensors:  # it has no type, or is a sequence, a map, ...
        return DeclaredInput("", None)
    element = [_varint(data, *part)[0] for tensor in tensors for part in _parts(data, tensor, 1)]
    dtype = _ELEMENT_TYPES[element[-1]] if element and element[-1] < len(_ELEMENT_TYPES) else ""
    shapes = [shape for tensor in tensors for shape in _parts(data, tensor, 2)]
    dims = [_dimension(data, dim) for shape in shapes for dim in _parts(data, shape, 1)]
    return DeclaredInput(dtype, tuple(dims) if shapes else None)


def _dimension(data: mmap.mmap, dim: Sequence[int]) -> int | str | None:
    """Return the size or the name of a dimension. Old exporters write -1 or `?` for any dynamic one."""
    sizes = [_varint(data, *part)[0] for part in _parts(data, dim, 1)]
    if sizes:
        return sizes[-1] if sizes[-1] < 2**63 else None
    name = _last(data, dim, 2).decode()
    return name if name not in ("", "?") else None


def _parts(data: mmap.mmap, message: Sequence[int], number: int) -> list[list[int]]:
    """Return first byte and end of each field of this number in a message."""
    first, end = message
    return [part for _, field, *part in _fields(data, first, end) if field == number]


def _last(data: mmap.mmap, message: Sequence[int], number: int) -> bytes:
    """Return the bytes of the last field of this number in a message, which is the one that counts."""
    parts = _parts(data, message, number)
    return data[slice(*parts[-1])] if parts else b""


@contextmanager
def _parsing(path: Path) -> Iterator[mmap.mmap]:
    """Yield the bytes of a model whose outermost fields are those of one; raise `ModelError` for any other file."""
    try:
        with open_regular(path) as file, _mapped(file, path) as data:
            if all(number != _GRAPH for number, _, _ in _messages(data, 0, len(data))):
                raise ModelError(f"{path}: this is not an ONNX model: it has no graph.")
            yield data
    except OSError as error:
        raise ModelError(f"{path}: the model cannot be read ({error.strerror}).") from None
    except (_BrokenError, UnicodeDecodeError):
        raise ModelError(
            f"{path}: this is not an ONNX model, or it is truncated. Export or download it again."
        ) from None


def refuse_larger(file: BinaryIO, path: Path) -> None:
    """Raise `ModelError` for a file that is larger than a protobuf message can be."""
    if os.fstat(file.fileno()).st_size >= 2**31:
        raise ModelError(f"{path}: an ONNX model cannot be larger than 2 GiB without its external data.")


def _mapped(file: BinaryIO, path: Path) -> mmap.mmap:
    refuse_larger(file, path)
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:
        raise ModelError(f"{path}: the model file is empty. Export or download it again.") from None


def _walk(data: mmap.mmap, start: int, end: int, message: str = "model", depth: int = 0) -> Iterator[_Field]:
    """Yield the fields of a message and of those inside it that `_FIELDS` names."""
    if depth > _MAX_DEPTH:
        raise _BrokenError
    for number, first, last in _messages(data, start, end):
        yield message, number, first, last
        inner = _FIELDS[message].get(number)
        if inner in _FIELDS:
            yield from _walk(data, first, last, inner, depth + 1)


def _messages(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (field number, first byte, end) of each length-delimited field in data[start:end]."""
    return ((number, first, last) for wire, number, first, last in _fields(data, start, end) if wire == _DELIMITED)


def _fields(data: mmap.mmap, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (wire type, field number, first byte, end) of each field in data[start:end]."""
    position = start
    while position < end:
        tag, position = _varint(data, position, end)
        wire, first = tag & 7, position
        if wire == _DELIMITED:
            length, first = _varint(data, position, end)
            position = first + length
        elif wire == 0:
            _, position = _varint(data, position, end)
        else:
            position += {1: 8, 5: 4}.get(wire, end)
        if position > end:
            raise _BrokenError
        yield wire, tag >> 3, first, position


def _varint(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    raise _BrokenError


def model_bytes(path: Path) -> int:
    """Return the size of a model with its external data."""
    return sum(file.stat().st_size for file in (path, *(path.parent / name for name in external_files(path))))
