"""Encode data for a page as JSON, with tables of names, types and shapes that columns share."""

from __future__ import annotations

import base64
import gzip
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from ndld_flow.base.text import visible_name
from ndld_flow.records.profile import TensorInfo
from ndld_flow.report.page_data import TensorColumns
from ndld_flow.report.value_text import shape_text

# The values that json.dumps accepts.
Json: TypeAlias = "str | int | float | bool | Sequence[Json] | dict[str, Json] | None"


def packed(data: Mapping[str, object]) -> str:
    """Encode data as JSON, gzip and base64, which cannot close an HTML tag. Equal data give equal bytes."""
    plain = json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(plain, compresslevel=4, mtime=0)).decode()


def rounded(value: float, digits: int = 5) -> float:
    """Round to significant digits; five are finer than any clock. NaN, which JSON does not support, becomes 0."""
    if isinstance(value, int):
        return value
    if not math.isfinite(value):
        return 0.0
    near = float(f"{value:.{digits}g}")
    return near if math.isfinite(near) else value  # the largest float rounds to infinity


class Texts:
    """A table of distinct texts."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def places(self, texts: Iterable[str], shown: Callable[[str], str] = str) -> list[int]:
        """Return the positions of texts in the table, as converted by `shown`; adds new ones."""
        # Columns have many repeats: each distinct text is converted once, and repeats run in C.
        given = list(texts)
        known = self._places
        positions = {text: known.setdefault(shown(text), len(known)) for text in dict.fromkeys(given)}
        return list(map(positions.__getitem__, given))

    def as_list(self) -> list[str]:
        return list(self._places)


class Tensors:
    """A table of distinct tensors: name, dtype, dims and format."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, tuple[int, ...], str], int] = {}

    def places(self, tensors: Iterable[TensorInfo]) -> list[int]:
        """Return the positions of tensors in the table; adds new ones."""
        known = self._places
        return [
            known.setdefault((tensor.name, tensor.dtype, tensor.shape, tensor.format), len(known)) for tensor in tensors
        ]

    def as_columns(self, texts: Texts) -> TensorColumns:
        """Return the tensors' fields as positions in a table of texts; names as differences."""
        names, dtypes, shapes, formats = zip(*self._places, strict=True) if self._places else ((), (), (), ())
        columns: TensorColumns = {
            "name": steps(texts.places(names, visible_name)),
            "dtype": texts.places(dtypes, visible_name),
            "dims": texts.places(map(shape_text, shapes)),
        }
        if any(formats):
            columns["format"] = texts.places(formats, visible_name)
        return columns


def steps(values: Sequence[int]) -> list[int]:
    """Return the difference of each value to the one before, the first to 0. Positions mostly increase by one, which
    compresses well.
    """
    return [value - before for value, before in zip(values, [0, *values], strict=False)]
