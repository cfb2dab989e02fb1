"""Serialized engines: a head, what is known of the engine as JSON, and its weights."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import Any

MAGIC = b"STANDIN-ENGINE\n"


def write_plan(engine: dict[str, Any], weights: dict[str, bytes]) -> bytes:
    """The bytes of an engine. Weights that are stripped are left out."""
    kept = {} if engine["stripped"] else weights
    sizes = {name: len(data) for name, data in kept.items()}
    engine = {**engine, "weights_kept": sizes, "weights_order": list(sizes)}
    head = json.dumps(engine, sort_keys=True).encode()
    return MAGIC + len(head).to_bytes(8, "little") + head + b"".join(kept.values())


def read_plan(data: bytes) -> dict[str, Any]:
    """Return the description of an engine. Raises ValueError for other or truncated bytes."""
    if not data.startswith(MAGIC):
        raise ValueError("Magic tag does not match")
    start = len(MAGIC) + 8
    size = int.from_bytes(data[len(MAGIC) : start], "little")
    engine: dict[str, Any] = json.loads(data[start : start + size])
    if len(data) != start + size + sum(engine["weights_kept"].values()):
        raise ValueError("Size specified in header does not match archive size")
    return engine


def digests_of(weights: dict[str, bytes]) -> dict[str, Any]:
    """Return the digests of an engine's weights, whether or not it contains them."""
    return {name: {"digest": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in weights.items()}


def packed(data: bytes) -> str:
    return base64.b64encode(data).decode()


def unpacked(text: str) -> bytes:
    return base64.b64decode(text)
