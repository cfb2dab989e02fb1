"""Hostile changes of JSON: unexpected values, names that lead out of folders, invalid texts."""

from __future__ import annotations

import copy
import gzip
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

Place = tuple[Any, Any]
"""An object or list, and the key or index in it."""

WORDS: tuple[object, ...] = (
    None, True, 0, -1, 1.5, -0.0, 1e308, 2**63, -(2**70), 10**400, "", "NaN", "-Infinity", "nan", "1e400", "é" * 3000,
    "\x00\x1b[2J", "\ud800", "../../../etc/passwd", "/etc/passwd", "C:\\x", "{{7*7}}", "=1+1", [], {}, [[]], [{}],
    [None] * 3, list(range(2000)), {"": ""}, {"a": {"a": {"a": {"a": []}}}}, float("nan"), float("inf"),
)  # fmt: skip
"""What is put where something else was."""


def places(tree: object) -> Iterator[Place]:
    """Return the paths of all values in a tree."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in inner:
        yield tree, key
        yield from places(value)


def change(tree: object, rng: random.Random) -> object:
    """One to three changes of a tree's structure; the tree itself stays as it is."""
    changed = copy.deepcopy(tree)
    for _ in range(rng.randint(1, 3)):
        result = list(places(changed))
        if not result:
            break
        holder, key = rng.choice(result)
        rng.choice(_CHANGES)(holder, key, rng)
    return changed


def _replace(holder: Any, key: Any, rng: random.Random) -> None:
    holder[key] = copy.deepcopy(rng.choice(WORDS))


def _delete(holder: Any, key: Any, rng: random.Random) -> None:
    del holder[key]


def _rename(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder, dict):
        holder[rng.choice(("", "name", "__class__", "../x", "x" * 5000, "a\nb"))] = holder.pop(key)


def _repeat(holder: Any, key: Any, rng: random.Random) -> None:
    if isinstance(holder[key], list):
        holder[key] = holder[key] * rng.choice((0, 2, 300))
    elif isinstance(holder, list):
        holder.insert(key, copy.deepcopy(holder[key]))


def _wrap(holder: Any, key: Any, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 40))):
        holder[key] = rng.choice(([holder[key]], {"name": holder[key]}))


_CHANGES: tuple[Callable[[Any, Any, random.Random], None], ...] = (_replace, _replace, _delete, _rename, _repeat, _wrap)


def as_bytes(tree: object) -> bytes:
    """A tree as JSON; of a list each entry on its own line, as ONNX Runtime writes them."""
    text = "[" + ",\n".join(map(json.dumps, tree)) + "]" if isinstance(tree, list) else json.dumps(tree)
    return text.encode()


def write(tree: object, rng: random.Random) -> bytes:
    """A tree as bytes; one time in three what a program made of them that is not JSON any more."""
    data = as_bytes(tree)
    return data if rng.random() < 0.66 else rng.choice(_SPOILS)(data, rng)


_SPOILS: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    lambda data, rng: data[: rng.randrange(len(data))],
    lambda data, rng: b"\xef\xbb\xbf" + data,
    lambda data, rng: data.decode("utf-8", "replace").encode("utf-16"),
    lambda data, rng: gzip.compress(data),
    lambda data, rng: data.replace(b'"', b"\xff", 7),
    lambda data, rng: data.replace(b",", b",,", 3),
    lambda data, rng: data.replace(b"1", b"1e400", 5),
    lambda data, rng: data.replace(b"{", b'{"name": 1, "name": [2],', 4),
    lambda data, rng: b"[" * 100_000 + data,
    lambda data, rng: b'{"Layers":' * 50_000,
    lambda data, rng: data + b"\x00" * 1000 + data,
    lambda data, rng: bytes(rng.randrange(256) for _ in range(2000)),
    lambda data, rng: b"",
)
