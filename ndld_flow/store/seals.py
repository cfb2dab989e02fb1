"""Seals: checksums of small files of the store.

Truncated JSON is invalid, but JSON with a wrong digit is still JSON. So an object's first member is the digest of the
remaining text; a file without a seal is older than seals. Notes hold values that can be recomputed: a damaged note
counts as missing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blake3 import blake3

from ndld_flow.store.files import remember

_OPENING = b'{"seal": "'
_DIGITS = 64


class BrokenSealError(ValueError):
    """A file's contents have changed since it was written."""


def seal(text: str) -> str:
    """Return a JSON object, which must not be empty, with the digest of its text as first member."""
    return f'{_OPENING.decode()}{blake3(text.encode()).hexdigest()}",{text[1:]}'


def unseal(data: bytes) -> bytes:
    """Return the sealed text, or data without a seal as it is. Raises BrokenSealError."""
    if not data.startswith(_OPENING):
        return data
    end = len(_OPENING) + _DIGITS
    text = b"{" + data[end:].removeprefix(b'",')
    if blake3(text).hexdigest().encode() != data[len(_OPENING) : end]:
        raise BrokenSealError("its contents have changed since it was written")
    return text


def write_note(path: Path, value: object) -> None:
    """Write a value that can be recomputed; errors of the disk are ignored."""
    remember(path, seal(json.dumps({"note": value})))


def read_note(path: Path) -> Any:  # noqa: ANN401
    """Return the value of a note; None where it is missing or damaged."""
    try:
        data = path.read_bytes()
        text = unseal(data)
    except (OSError, BrokenSealError):
        return None
    return json.loads(text)["note"] if text is not data else None
