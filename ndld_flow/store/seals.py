"""Seals: whether a small file of the store is what was written there.

JSON that lost its end is none any more, but JSON with one wrong digit is still JSON. So an object's first member is the
digest of the rest, as text; what has no seal is older than seals. Notes are what can be found out anew: a damaged one
counts as none.
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
    """A file's contents are not what was written."""


def seal(text: str) -> str:
    """A JSON object, which is not empty, with the digest of its text as first member."""
    return f'{_OPENING.decode()}{blake3(text.encode()).hexdigest()}",{text[1:]}'


def unseal(data: bytes) -> bytes:
    """What was sealed; what has no seal, as it is. Raises BrokenSealError."""
    if not data.startswith(_OPENING):
        return data
    end = len(_OPENING) + _DIGITS
    text = b"{" + data[end:].removeprefix(b'",')
    if blake3(text).hexdigest().encode() != data[len(_OPENING) : end]:
        raise BrokenSealError("its contents are not what was written")
    return text


def write_note(path: Path, value: object) -> None:
    """Remember what can be found out anew; where the disk takes nothing, that is no reason to stop."""
    remember(path, seal(json.dumps({"note": value})))


def read_note(path: Path) -> Any:  # noqa: ANN401
    """What was remembered; None where nothing was, or not this."""
    try:
        data = path.read_bytes()
        text = unseal(data)
    except (OSError, BrokenSealError):
        return None
    return json.loads(text)["note"] if text is not data else None
