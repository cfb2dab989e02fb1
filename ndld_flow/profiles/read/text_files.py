"""Read untrusted text files within limits: oversized or special files are refused, invalid bytes are replaced."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

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
