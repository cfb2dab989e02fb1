"""Values of a model's inputs from `.npy`, `.npz` and `.pb` files."""

from __future__ import annotations

import math
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import size
from ndld_flow.base.text import short_name
from ndld_flow.models.tensors import TEXT, Array, dtype_text
from ndld_flow.samples.generated_values import is_float, is_integer

MOST_UNPACKED_BYTES = 4 * 2**30
"""Maximum number of bytes of an archive's array that are unpacked at once: a small file can be all zeros."""
_HIGHEST_RATIO = 1032
"""Highest ratio of deflate; data that claim a higher one were not written by it."""
_MAPPED_FROM_BYTES = 64 * 2**20

NO_HEADER = (ValueError, TypeError, EOFError, SyntaxError, tokenize.TokenError, RuntimeError)
"""Exceptions of numpy for an invalid header of an array, which it reads as Python tokens."""
_UNREADABLE = (*NO_HEADER, DecodeError, zipfile.BadZipFile, zlib.error)


@dataclass(frozen=True)
class StoredArray:
    """The shape and dtype of an array in a file, and a function that reads its values."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    read: Callable[[int], Iterator[Array]]
    """Yields the array in slices of this many items of its first dimension, or as a whole for 0. No more of an
    archive is unpacked than needed. Raises `RequestError` if the content does not match the header."""


def open_array(path: Path, name: str) -> StoredArray:
    """Open the array for an input in a `.npy`, `.npz` or `.pb` file; raises `RequestError` if there is none.

    Pickled objects are rejected, because reading them would run their code, and so is external data of a TensorProto.
    In an archive of several arrays, the one with the input's name is used.
    """
    what, opened = {
        ".npy": ("a .npy file of numbers", lambda: _open_npy(path)),
        ".npz": ("a .npz archive of numbers", lambda: _open_npz(path, name)),
        ".pb": ("an ONNX TensorProto with its data inside", lambda: _open_tensor_proto(path)),
    }[path.suffix.lower()]

    def read(load: Callable[[], Any]) -> Any:  # noqa: ANN401 - what `load` returns
        try:
            return load()
        except FileNotFoundError:
            raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).') from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise RequestError(f'input "{name}": {path} cannot be read: {reason}.') from None
        except MemoryError:
            raise RequestError(f'input "{name}": {path} does not fit into memory.') from None
        except _UNREADABLE as error:
            # An address in the message differs each time, and would keep equal problems from being merged.
            message = re.sub(r"<[\w.]+ object at 0x[0-9a-f]+>", "an expression", " ".join(str(error).split()))
            raise RequestError(f'input "{name}": {path} is not {what}: {short_name(message, 300)}') from None

    stored: StoredArray = read(opened)

    def read_slices(rows: int) -> Iterator[Array]:
        slices = stored.read(rows)
        while (values := read(lambda: next(slices, None))) is not None:
            yield values

    return StoredArray(stored.shape, stored.dtype, read_slices)


def check_family(stored: np.dtype[Any], dtype: np.dtype[Any], name: str, origin: str) -> None:
    """Check that both dtypes are floats, both integers, both texts, or equal. Raises `RequestError` otherwise."""
    if stored != dtype and not any(family(stored) and family(dtype) for family in (is_float, is_integer, _is_text)):
        raise RequestError(
            f'input "{name}": {origin} contains {dtype_text(stored)}, but the model expects {dtype_text(dtype)}.'
        )


def _is_text(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "UO"


def cast_to_model(values: Array, dtype: np.dtype[Any], name: str, origin: str) -> Array:
    """Return the values in the model's dtype, within a family (floats, integers, bools, texts), all of them in range.

    Raises `RequestError` naming the input, the found and the expected dtype.
    """
    if values.dtype == dtype:
        return values
    check_family(values.dtype, dtype, name, origin)
    if dtype == TEXT:
        return values.astype(TEXT)
    with np.errstate(over="ignore"):
        cast: Array = values.astype(dtype)
    if is_integer(values.dtype):
        fits = bool(np.array_equal(values, cast.astype(values.dtype)))
    else:
        fits = not np.any(np.isfinite(values) & ~np.isfinite(cast))
    if not fits:
        raise RequestError(
            f'input "{name}": {origin} contains {values.dtype.name} values that do not fit the model\'s {dtype.name}.'
        )
    return cast


def _open_npy(path: Path) -> StoredArray:
    with path.open("rb") as file:
        header = _read_header(file)
        left = path.stat().st_size - file.tell()
    if header.stored_bytes > left:
        raise ValueError(f"it is truncated: its header declares {size(header.stored_bytes)}, and it has {size(left)}")
    mode: Literal["r"] | None = "r" if header.stored_bytes >= _MAPPED_FROM_BYTES else None

    def read(rows: int) -> Iterator[Array]:
        return sliced(np.asarray(np.load(path, mmap_mode=mode, allow_pickle=False)), rows)

    return StoredArray(header.shape, header.dtype, read)


def sliced(values: Array, rows: int) -> Iterator[Array]:
    """Yield slices of this many items of the first dimension, or the whole array for 0."""
    if not rows:
        yield values
    else:
        yield from (values[start : start + rows] for start in range(0, len(values) - rows + 1, rows))


def _open_npz(path: Path, name: str) -> StoredArray:
    with zipfile.ZipFile(path) as archive:
        arrays = {info.filename.removesuffix(".npy"): info for info in archive.infolist() if not info.is_dir()}
        if name not in arrays and len(arrays) != 1:
            held = ", ".join(short_name(array, 40) for array in list(arrays)[:5]) or "nothing"
            raise ValueError(f"it contains {held}{', ...' if len(arrays) > 5 else ''}, and one must be called {name!r}")
        chosen = arrays[name] if name in arrays else next(iter(arrays.values()))
        shown = short_name(chosen.filename)
        if chosen.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{shown} in it is compressed with a method that numpy does not use")
        with archive.open(chosen) as file:
            header = _read_header(file)
            if header.stored_bytes > min(chosen.file_size - file.tell(), _HIGHEST_RATIO * chosen.compress_size):
                raise ValueError(f"{shown} in it is truncated")
    return StoredArray(header.shape, header.dtype, lambda rows: _unpack(path, chosen, rows))


def _unpack(path: Path, chosen: zipfile.ZipInfo, rows: int) -> Iterator[Array]:
    """Yield an array of an archive in slices, or as a whole for 0."""
    with zipfile.ZipFile(path) as archive, archive.open(chosen) as file:
        header = _read_header(file)
        at_once = not rows or header.fortran_order
        shape = header.shape if at_once else (rows, *header.shape[1:])
        wanted_bytes = math.prod(shape) * header.dtype.itemsize
        if wanted_bytes > MOST_UNPACKED_BYTES:
            raise ValueError(
                f"{size(wanted_bytes)} of {short_name(chosen.filename)} in it would be unpacked at once, more than "
                f"{size(MOST_UNPACKED_BYTES)}. Save it as .npy, which is read in parts"
            )
        for _ in range(1 if at_once else header.shape[0] // rows):
            values = np.frombuffer(bytearray(file.read(wanted_bytes)), header.dtype, math.prod(shape))
            if at_once:
                yield from sliced(values.reshape(shape, order="F" if header.fortran_order else "C"), rows)
            else:
                yield values.reshape(shape)


@dataclass(frozen=True)
class _Header:
    """The header of an array in numpy's format."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    fortran_order: bool

    @property
    def stored_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def _read_header(file: IO[bytes]) -> _Header:
    """Read the header, up to the array's values."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"its format is {version[0]}.{version[1]}, which is not used for arrays of numbers")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it contains Python objects, which are not unpickled")
    if any(type(dim) is not int or dim < 0 for dim in shape):  # numpy accepts (True, 3)
        raise ValueError(f"its shape is {shape}")
    return _Header(tuple(shape), dtype, fortran_order)


def _open_tensor_proto(path: Path) -> StoredArray:
    values = _tensor_values(path)
    return StoredArray(tuple(values.shape), values.dtype, lambda rows: sliced(_tensor_values(path), rows))


def _tensor_values(path: Path) -> Array:
    tensor = onnx.TensorProto.FromString(path.read_bytes())
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise ValueError("its data is external")
    if tensor.data_type == onnx.TensorProto.UNDEFINED:
        raise ValueError("it has no data type")
    if tensor.data_type not in onnx.TensorProto.DataType.values():
        raise ValueError(f"its data type is {tensor.data_type}, which is unknown")
    return np.asarray(numpy_helper.to_array(tensor))
