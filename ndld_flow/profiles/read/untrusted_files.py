"""Read untrusted text and JSON within limits: oversized or special files are refused, invalid values dropped."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError

MAX_BYTES = 500_000_000
"""Maximum size of a file that is read in pieces."""
MAX_WHOLE_BYTES = 64_000_000
"""Maximum size of a file that is read as a whole, enough for 50,000 detailed TensorRT layers."""
_HEAD, _TAIL, _PIECE = 1 << 18, 1 << 16, 1 << 20


def read_ends(path: Path) -> str:
    """Return the first 256 KiB and the last 64 KiB, enough to identify a file. Raises RequestError."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
            file.seek(max(len(head), path.stat().st_size - _TAIL))
            return (head + file.read(_TAIL)).decode(_encoding(head), "replace")
    except OSError as error:
        raise _unreadable(path, error) from error


def read_whole(path: Path) -> str:
    """Return the text of a file. Raises RequestError if it cannot be read or is larger than 64 MB."""
    check_size(path, MAX_WHOLE_BYTES)
    return "".join(read_pieces(path))


def read_pieces(path: Path) -> Iterator[str]:
    """Yield the text of a file, about 1 MiB at a time. Raises RequestError for one over 500 MB."""
    check_size(path)
    try:
        with path.open("rb") as file:
            raw = file.read(_PIECE)
            decoder = codecs.getincrementaldecoder(_encoding(raw))("replace")
            while raw:
                yield decoder.decode(raw)
                raw = file.read(_PIECE)
    except OSError as error:
        raise _unreadable(path, error) from error


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file; lines over 1 MiB are split. Raises RequestError as `read_pieces` does."""
    rest = ""
    for piece in read_pieces(path):
        *lines, rest = (rest + piece).split("\n")
        yield from lines
        if len(rest) > _PIECE:
            yield rest
            rest = ""
    yield rest


def check_size(path: Path, limit: int = MAX_BYTES) -> None:
    """Raise RequestError if a file is larger than `limit` or inaccessible."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise _unreadable(path, error) from error
    if size > limit:
        raise RequestError(f"{path} has {size / 1e6:,.0f} MB; the maximum size of a profile is {limit / 1e6:,.0f} MB")


def _encoding(head: bytes) -> str:
    """Return the encoding of a file by its first bytes; PowerShell's `>` writes UTF-16."""
    return "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"


def _unreadable(path: Path, error: OSError) -> RequestError:
    return RequestError(f"{path} cannot be read: {error.strerror or error}")


_MAX_TEXT = 20_000
_MAX_NUMBER = 1e15
"""Larger values cannot be measurements, and their squares would overflow."""
_MAX_DIMENSIONS = 32
_MAX_ITEMS = 1_000


def text_of(value: object) -> str:
    """Return a text that is valid UTF-8, at most 20,000 characters; empty for anything else."""
    if not isinstance(value, str):
        return ""
    text = value[:_MAX_TEXT]
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def number_of(value: object) -> float | None:
    """Return a finite number of plausible size; None for anything else."""
    # Not isinstance: a bool is not a number here, and this runs for millions of values.
    if (type(value) is float or type(value) is int) and abs(value) <= _MAX_NUMBER:
        return float(value)
    return None


def whole_of(value: object) -> int | None:
    """Return a whole number; None for anything else."""
    number = number_of(value)
    return int(number) if number is not None and number.is_integer() else None


def shape_of(value: object) -> tuple[int, ...] | None:
    """Return a list of whole numbers; None for anything else."""
    if not isinstance(value, list) or len(value) > _MAX_DIMENSIONS:
        return None
    dims = tuple(dim for dim in map(whole_of, value) if dim is not None)
    return dims if len(dims) == len(value) else None


def objects_in(value: object) -> Iterator[Mapping[str, object]]:
    """Yield the objects of a list."""
    if isinstance(value, list):
        yield from (entry for entry in value if isinstance(entry, dict))


def plain_json(value: object, depth: int = 0) -> JsonValue:
    """Return a value that fits into a record: bounded, without NaN and infinity."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, int | float):
        return value if number_of(value) is not None else None
    if depth > 4:
        return None
    if isinstance(value, list):
        return [plain_json(entry, depth + 1) for entry in value[:_MAX_ITEMS]]
    if isinstance(value, dict):
        pairs = list(value.items())[:_MAX_ITEMS]
        return {text_of(str(key)): plain_json(entry, depth + 1) for key, entry in pairs}
    return None


_NO_NUMBER = re.compile(r'(":\s*)-?(?:nan|inf)\b')
"""Values that C++ prints for NaN and infinity, after their keys: names may hold a colon too."""


def parse_json(text: str) -> object:
    """Parse JSON of trtexec, which does not escape control characters in names. NaN and infinity become None.

    Raises ValueError for anything else than an object or a list.
    """
    try:
        try:
            value = _load(text)
        except json.JSONDecodeError:
            value = _load(_NO_NUMBER.sub(r"\1null", text))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(value, dict | list):
        raise ValueError("it is not JSON: neither an object nor a list")
    return value


def _load(text: str) -> object:
    return json.loads(text, strict=False, parse_constant=lambda _: None)
