"""Encode data for a page as JSON, with tables of names, types and shapes that columns share."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from operator import sub
from types import NoneType
from typing import Any, Generic, TypeAlias, TypeVar

from ndld_flow.base.text import visible_text
from ndld_flow.records.document import Record

Row = TypeVar("Row")

# The values that json.dumps accepts.
Json: TypeAlias = "str | int | float | bool | Sequence[Json] | dict[str, Json] | None"


def packed(data: object) -> str:
    """Encode data as JSON, gzip and base64, which cannot close an HTML tag. Equal data give equal bytes.

    Data are dataclasses, records, dictionaries, lists and plain values; `static/unpack.js` reads them. Nobody declares
    how a list is written: a list of dataclasses becomes a column for each field, each distinct text is written once,
    and integers that mostly increase become the differences of neighbours. Numbers of records have six digits.
    """
    packer = _Packer()
    value = packer.value(data)
    plain = json.dumps([list(packer.texts), value], separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(plain, compresslevel=4, mtime=0)).decode()


@dataclass(frozen=True)
class Columns(Generic[Row]):
    """Dataclasses or records of one kind that a page reads as an object with a list for each field."""

    kind: type[Row]
    rows: Sequence[Row]


class _Packer:
    """Values as JSON with one table of texts. A list becomes the name of its form, and the parts of that form."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def value(self, value: object) -> object:
        if isinstance(value, float):  # JSON has no NaN and no infinity
            return value if math.isfinite(value) else ["number", str(value).replace("inf", "Infinity")]
        if isinstance(value, list | tuple):
            return self.column(value)
        if isinstance(value, Mapping):
            return {name: self.value(item) for name, item in value.items()}
        if isinstance(value, Columns):
            return self.columns(value.kind, value.rows)
        if is_dataclass(value) or isinstance(value, Record):
            return {name: self.value(_shown(value, name)) for name in field_names(type(value))}
        return value

    def column(self, items: Sequence[Any]) -> list[object]:
        kinds = set(map(type, items))
        kind = next(iter(kinds)) if len(kinds) == 1 else None
        if kind in _PLAIN and items.count(items[0]) == len(items) > 1:
            return ["repeated", len(items), self.value(items[0])]
        if kinds <= {int, NoneType}:
            # Integers, or the difference of each to the one before, whichever is shorter.
            known = [item for item in items if item is not None]
            differences = map(sub, known, [0, *known])
            sums = [None if item is None else next(differences) for item in items]
            return min(["items", *items], ["sums", *sums], key=lambda form: len(json.dumps(form)))
        if kinds <= {str, NoneType}:
            return ["texts", self.column(self._positions(items))]
        if kind in (list, tuple):
            return ["lists", self.column(list(map(len, items))), self.column(list(chain.from_iterable(items)))]
        if kind not in (None, Columns) and (is_dataclass(kind) or issubclass(kind, Record)):
            return ["rows", self.columns(kind, items)]
        return ["items", *map(self.value, items)]

    def columns(self, kind: type[Any], rows: Sequence[Any]) -> dict[str, object]:
        return {name: self.column([_shown(row, name) for row in rows]) for name in field_names(kind)}

    def _positions(self, texts: Sequence[str | None]) -> list[int | None]:
        # Columns have many repeats: each distinct text is looked up once, and repeats run in C.
        known = self.texts
        distinct = dict.fromkeys(texts)
        positions = {text: None if text is None else known.setdefault(_visible(text), len(known)) for text in distinct}
        return list(map(positions.__getitem__, texts))


_PLAIN = {str, int, float, bool, NoneType}


def field_names(kind: type[Any]) -> list[str]:
    """Return the fields of a dataclass or of a record, in their order."""
    return list(kind.model_fields) if issubclass(kind, Record) else [field.name for field in fields(kind)]


def _shown(row: object, name: str) -> object:
    """Return a field; a dataclass holds the digits that its page needs, and a record all that were measured."""
    value = getattr(row, name)
    is_measured = isinstance(value, float) and isinstance(row, Record) and math.isfinite(value)
    return rounded(value, 6) if is_measured else value


def _visible(text: str) -> str:
    return text if text.isprintable() else visible_text(text)


def rounded(value: float, digits: int = 5) -> float:
    """Round to significant digits; five are finer than any clock. NaN, which JSON does not support, becomes 0."""
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        return 0.0
    near = float(f"{value:.{digits}g}")
    return near if math.isfinite(near) else value  # the largest float rounds to infinity


_MOST_SAMPLES = 4_000
"""Maximum number of samples of a distribution, evenly spread over the sorted ones: enough to show it."""


def evenly_sorted(samples: Sequence[float]) -> list[float]:
    """Return at most `_MOST_SAMPLES` of the sorted samples, the least and the largest among them."""
    ordered = sorted(samples)
    count = min(len(ordered), _MOST_SAMPLES)
    step = (len(ordered) - 1) / max(count - 1, 1)
    return [rounded(ordered[round(index * step)]) for index in range(count)]


def nanoseconds(values_ms: Iterable[float]) -> list[int]:
    """Convert to integer nanoseconds, finer than any clock; 0 for NaN and values over a year."""
    longest = 366 * 86_400_000.0
    return [round(value * 1e6) if -longest < value < longest else 0 for value in values_ms]
