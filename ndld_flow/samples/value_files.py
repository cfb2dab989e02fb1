"""Values of a model's inputs from files: arrays, and texts as tokens (`.txt`), as strings, or as columns (`.csv`).

Tokens are those of a tokenizer file of the package `tokenizers`. A line, or a row, is an item of the input's first
dimension.
"""

from __future__ import annotations

import csv
import math
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import require
from ndld_flow.base.quantities import counted, size
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.models.tensors import TEXT, Array, dtype_text, shape_text
from ndld_flow.samples.generated_values import is_float, is_integer
from ndld_flow.samples.wanted_inputs import Feed, FileSamples, WantedInput, part_of, shape_unknown

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

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


def archived_names(path: Path) -> Sequence[str]:
    """Return the names of the arrays in a `.npz`; none of another or an unreadable file."""
    if path.suffix.lower() != ".npz":
        return ()
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, *_UNREADABLE):
        return ()


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


MOST_BYTES = 256 * 2**20
"""Maximum size of a text or tokenizer file."""
_PADDING_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>")


@dataclass(frozen=True)
class TextFile(FileSamples):
    """A text file; each line that is not empty is a sample."""

    def count(self, most: int) -> int:
        self._check()
        number = 0
        for number, _ in enumerate(text_lines(self.path, self.wanted.name), start=1):
            if number >= most:
                break
        if number == 0:
            raise RequestError(f'input "{self.wanted.name}": {self.path} contains no text.')
        return number

    def feeds(self) -> Iterator[tuple[str, Feed]]:
        self._check()
        for line, text in text_lines(self.path, self.wanted.name):
            where = f" line {line}"
            yield f"{self.label}{where}", self._feed(text, f"text {visible_name(str(self.path))}{where}")

    def _check(self) -> None:
        wanted = self.wanted
        where = f'input "{wanted.name}" from the text {self.path}'
        if wanted.given.tokenizer is None:
            raise RequestError(f"{where}: set `tokenizer:` to the model's tokenizer.json.")
        if wanted.pattern is None:
            raise shape_unknown(wanted.name)
        if len(wanted.pattern) not in (1, 2):
            raise RequestError(f"{where}: tokens need 1 or 2 dimensions, the input has {shape_text(wanted.pattern)}.")
        if not is_integer(wanted.dtype) and not part_of(wanted.name) == "attention_mask":
            raise RequestError(f"{where}: tokens are integers, the input is {wanted.dtype.name}.")

    def _feed(self, text: str, origin: str) -> Feed:
        wanted = self.wanted
        assert wanted.pattern is not None
        last = wanted.pattern[-1]
        length = last if isinstance(last, int) else None
        limit = min(filter(None, (length, wanted.given.max_length)), default=None)
        file = Path(str(wanted.given.tokenizer))
        require("text", f'input "{wanted.name}": {file}')
        check_text_size(file, wanted.name)
        tokenizer = _read_tokenizer(file, file.stat().st_mtime_ns, wanted.name)
        try:
            encoding, tokens = tokenizer.encode(text, limit)
        except Exception as error:  # the package raises Exception itself, such as for a missing unknown token
            reason = short_name(str(error), 200)
            raise RequestError(
                f'input "{wanted.name}": {wanted.given.tokenizer} cannot encode {origin}: {reason}'
            ) from None
        rows: dict[str, Any] = {
            "": encoding.ids,
            "attention_mask": encoding.attention_mask,
            "token_type_ids": encoding.type_ids,
            "position_ids": range(len(encoding.ids)),
        }
        row = np.asarray(rows[part_of(wanted.name)], np.int64)
        kept, missing = len(row), (length or len(row)) - len(row)
        if missing:
            filler = 0 if part_of(wanted.name) else tokenizer.padding
            row = np.pad(row, (missing, 0) if tokenizer.pads_left else (0, missing), constant_values=filler)
        described = [f"{tokens} tokens" + (f", truncated to {kept}" if kept < tokens else "")]
        described += [f"padded to {kept + missing}"] if missing else []
        values = row.astype(wanted.dtype)
        if not np.array_equal(values.astype(np.int64), row):
            raise RequestError(f'input "{wanted.name}": {origin} has numbers that do not fit {wanted.dtype.name}.')
        if len(wanted.pattern) == 2:
            batch = wanted.pattern[0]
            values = np.repeat(values[None], batch if isinstance(batch, int) else 1, axis=0)
        how = ", ".join((origin, *described, wanted.describe(values)))
        return Feed(values, how, is_from_file=True)


def text_lines(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not empty, with their numbers from 1."""
    check_text_size(path, name)
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f'input "{name}": {path} cannot be read as UTF-8 text: {error}') from None


def check_text_size(path: Path, name: str) -> None:
    """Raise `RequestError` for a missing file, and for one larger than `MOST_BYTES`."""
    try:
        length = path.stat().st_size
    except OSError:
        raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).') from None
    if length > MOST_BYTES:
        raise RequestError(f'input "{name}": {path} has {size(length)}, more than {size(MOST_BYTES)}.')


@dataclass(frozen=True)
class _Tokens:
    """A tokenizer, and its padding."""

    tokenizer: Tokenizer
    padding: int
    """Number of the token that fills an input."""
    pads_left: bool

    def encode(self, text: str, limit: int | None) -> tuple[Encoding, int]:
        """Return a text's encoding of at most `limit` tokens, special ones included, and the number of all tokens."""
        self.tokenizer.no_truncation()
        whole = self.tokenizer.encode(text)
        if limit is None or len(whole.ids) <= limit:
            return whole, len(whole.ids)
        self.tokenizer.enable_truncation(limit)
        return self.tokenizer.encode(text), len(whole.ids)


@lru_cache(maxsize=4)
def _read_tokenizer(path: Path, changed_ns: int, name: str) -> _Tokens:
    from tokenizers import Tokenizer

    del changed_ns
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the package raises Exception itself
        reason = short_name(str(error), 200)
        raise RequestError(f'input "{name}": {path} is not a tokenizer of the package tokenizers: {reason}') from None
    declared = tokenizer.padding or {}
    known = (tokenizer.token_to_id(token) for token in _PADDING_TOKENS)
    padding = declared.get("pad_id", next((number for number in known if number is not None), 0))
    tokenizer.no_padding()
    return _Tokens(tokenizer, padding, declared.get("direction") == "left")


_TRUTH = {"0": False, "1": True, "false": False, "true": True}


def open_lines(path: Path, wanted: WantedInput) -> StoredArray:
    """Return the lines of a text file that are not empty, each as one string."""
    lines = np.array([text for _, text in text_lines(path, wanted.name)], TEXT)
    return _stored(lines[:, None], wanted)


def open_table(path: Path, wanted: WantedInput) -> StoredArray:
    """Return the columns of a `.csv` that are an input's: the one of its name, or all if there are as many as the
    input's last dimension has elements.

    Raises `RequestError` naming the line for a cell that the input cannot have.
    """
    rows = list(_rows(path, wanted.name))
    where = f'input "{wanted.name}": {path}'
    if not rows:
        raise RequestError(f"{where} is empty.")
    header = rows[0][1]
    names = [cell.strip() for cell in header]
    if wanted.name in names:
        columns, rows = [names.index(wanted.name)], rows[1:]
    else:
        last = wanted.pattern[-1] if wanted.pattern is not None and len(wanted.pattern) > 1 else 1
        columns = list(range(last if isinstance(last, int) else 1))
        if len(header) != len(columns):
            raise RequestError(
                f"{where} has the columns {', '.join(short_name(name, 40) for name in names[:8])}"
                f"{', ...' if len(names) > 8 else ''}; name one {wanted.name!r}, or give "
                f"{counted(len(columns), 'column')}."
            )
        if wanted.dtype.kind != TEXT.kind and not all(map(_is_number, header)):
            rows = rows[1:]
    parse = _parser(wanted)
    cells: list[list[object]] = []
    for line, row in rows:
        try:
            cells.append([parse(row[column]) for column in columns])
        except (ValueError, IndexError, KeyError):
            raise RequestError(
                f"{where}, line {line}: {short_name(','.join(row), 60)!r} needs {wanted.spec.dtype} in "
                f"{len(columns)} of {len(header)} columns."
            ) from None
    if not cells:
        raise RequestError(f"{where} has a header and no rows.")
    return _stored(np.array(cells), wanted)


def _rows(path: Path, name: str) -> Iterator[tuple[int, Sequence[str]]]:
    check_text_size(path, name)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            yield from ((reader.line_num, row) for row in reader if row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f'input "{name}": {path} cannot be read as a table: {error}') from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.strip().lower() in _TRUTH
    return True


def _parser(wanted: WantedInput) -> Callable[[str], object]:
    if wanted.dtype.kind == TEXT.kind:
        return str
    if wanted.dtype.kind == "b":
        return lambda cell: _TRUTH[cell.strip().lower()]
    return float if is_float(wanted.dtype) else int


def _stored(values: Array, wanted: WantedInput) -> StoredArray:
    """Return rows `[N, width]`, as `[N]` for an input of one dimension."""
    is_flat = wanted.pattern is not None and len(wanted.pattern) == 1 and values.ndim == 2
    values = values[:, 0] if is_flat else values
    return StoredArray(values.shape, values.dtype, partial(sliced, values))
