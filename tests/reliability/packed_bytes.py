"""The contents of a page, packed or not."""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Iterator


def spoken(data: bytes) -> Iterator[bytes]:
    """A file's bytes, and those that are packed inside: the data of pages."""
    yield data
    for text in re.findall(rb">([A-Za-z0-9+/=\s]{40,})<", data):
        try:
            packed = base64.b64decode(re.sub(rb"\s", b"", text) + b"==", validate=False)
        except binascii.Error:  # a sentence of letters only
            continue
        if packed[:2] == b"\x1f\x8b":
            yield zlib.decompressobj(31).decompress(packed)
