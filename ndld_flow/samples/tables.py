"""Values of a model's inputs from tables: the columns of a `.csv`, and the lines of a `.txt` for an input of strings.

A row is an item of the input's first dimension.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name
from ndld_flow.models.tensors import TEXT, Array
from ndld_flow.samples.generated_values import is_float
from ndld_flow.samples.texts import check_text_size, text_lines
from ndld_flow.samples.value_files import StoredArray, sliced
from ndld_flow.samples.wanted_inputs import WantedInput

_TRUTH = {"0": False, "1": True, "false": False, "true": True}


def open_lines(path: Path, wanted: WantedInput) -> StoredArray:
    """Return the lines of a text file that are not empty, each as one string."""
    lines = np.array([text for _, text in text_lines(path, wanted.name)], TEXT)
    return _stored(lines[:, None], wanted)


def open_table(path: Path, wanted: WantedInput) -> StoredArray:
    """Return the columns of a `.csv` that are an input's: the one of its name, or all if there are as many as the
    input's last dimension has elements.

    Raises `RequestError` naming the line for a cell that the input cannot have.
    """
    rows = list(_rows(path, wanted.name))
    where = f'input "{wanted.name}": {path}'
    if not rows:
        raise RequestError(f"{where} is empty.")
    header = rows[0][1]
    names = [cell.strip() for cell in header]
    if wanted.name in names:
        columns, rows = [names.index(wanted.name)], rows[1:]
    else:
        last = wanted.pattern[-1] if wanted.pattern is not None and len(wanted.pattern) > 1 else 1
        columns = list(range(last if isinstance(last, int) else 1))
        if len(header) != len(columns):
            raise RequestError(
                f"{where} has the columns {', '.join(short_name(name, 40) for name in names[:8])}"
                f"{', ...' if len(names) > 8 else ''}; name one {wanted.name!r}, or give "
                f"{counted(len(columns), 'column')}."
            )
        if wanted.dtype.kind != TEXT.kind and not all(map(_is_number, header)):
            rows = rows[1:]
    parse = _parser(wanted)
    cells: list[list[object]] = []
    for line, row in rows:
        try:
            cells.append([parse(row[column]) for column in columns])
        except (ValueError, IndexError, KeyError):
            raise RequestError(
                f"{where}, line {line}: {short_name(','.join(row), 60)!r} has no {wanted.spec.dtype} in "
                f"{counted(len(columns), 'column')} of {len(header)}."
            ) from None
    if not cells:
        raise RequestError(f"{where} has a header and no rows.")
    return _stored(np.array(cells), wanted)


def _rows(path: Path, name: str) -> Iterator[tuple[int, Sequence[str]]]:
    check_text_size(path, name)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            yield from ((reader.line_num, row) for row in reader if row)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f'input "{name}": {path} cannot be read as a table: {error}') from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return cell.strip().lower() in _TRUTH
    return True


def _parser(wanted: WantedInput) -> Callable[[str], object]:
    if wanted.dtype.kind == TEXT.kind:
        return str
    if wanted.dtype.kind == "b":
        return lambda cell: _TRUTH[cell.strip().lower()]
    return float if is_float(wanted.dtype) else int


def _stored(values: Array, wanted: WantedInput) -> StoredArray:
    """Return rows `[N, width]`, as `[N]` for an input of one dimension."""
    is_flat = wanted.pattern is not None and len(wanted.pattern) == 1 and values.ndim == 2
    values = values[:, 0] if is_flat else values
    return StoredArray(values.shape, values.dtype, partial(sliced, values))
