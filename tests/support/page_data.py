"""The data of a page, unpacked as `static/unpack.js` does."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from itertools import accumulate, islice
from typing import Any


def data_of(page: str) -> Any:
    """Return the data in the text of a page."""
    return unpack(page.split('id="page-data">')[1].split("<", maxsplit=1)[0])


def texts_of(data: Any) -> set[str]:
    """Return all texts in data."""
    if isinstance(data, str):
        return {data}
    parts = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return set().union(*map(texts_of, parts))


def unpack(packed: str) -> Any:
    """Return what was packed: dataclasses as dictionaries, tuples as lists."""
    texts, value = json.loads(gzip.decompress(base64.b64decode(packed)))
    return _unpacked(value, texts)


def _unpacked(packed: Any, texts: list[str]) -> Any:
    if isinstance(packed, dict):
        return {name: _unpacked(value, texts) for name, value in packed.items()}
    if not isinstance(packed, list):
        return packed
    form, *parts = packed
    return _FORMS[form]([_unpacked(part, texts) for part in parts], texts)


def _sums(steps: list[Any], _: list[str]) -> list[Any]:
    sums = accumulate(step for step in steps if step is not None)
    return [None if step is None else next(sums) for step in steps]


def _lists(parts: list[Any], _: list[str]) -> list[Any]:
    items = iter(parts[1])
    return [list(islice(items, count)) for count in parts[0]]


_FORMS: dict[str, Callable[[list[Any], list[str]], Any]] = {
    "items": lambda parts, _: parts,
    "number": lambda parts, _: float(parts[0]),
    "repeated": lambda parts, _: parts[0] * [parts[1]],
    "sums": _sums,
    "texts": lambda parts, texts: [None if place is None else texts[place] for place in parts[0]],
    "lists": _lists,
    "rows": lambda parts, _: [dict(zip(parts[0], row, strict=True)) for row in zip(*parts[0].values(), strict=True)],
}
