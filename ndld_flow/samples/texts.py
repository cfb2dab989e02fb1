"""Values of a model's inputs from texts: tokens of a `.txt`, its lines as strings, or the columns of a `.csv`.

Tokens are those of a tokenizer file of the package `tokenizers`. A line, or a row, is an item of the input's first
dimension.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import require
from ndld_flow.base.quantities import counted, size
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.models.tensors import TEXT, Array, shape_text
from ndld_flow.samples.generated_values import is_float, is_integer
from ndld_flow.samples.value_files import StoredArray, sliced
from ndld_flow.samples.wanted_inputs import Feed, FileSamples, WantedInput, part_of, shape_unknown

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer


MOST_BYTES = 256 * 2**20
"""Maximum size of a text or tokenizer file."""
_PADDING_TOKENS = ("[PAD]", "<pad>", "<|pad|>", "<|endoftext|>", "</s>")


@dataclass(frozen=True)
class TextFile(FileSamples):
    """A text file; each line that is not empty is a sample."""

    def count(self, most: int) -> int:
        self._check()
        number = 0
        for number, _ in enumerate(text_lines(self.path, self.wanted.name), start=1):
            if number >= most:
                break
        if number == 0:
            raise RequestError(f'input "{self.wanted.name}": {self.path} contains no text.')
        return number

    def feeds(self) -> Iterator[tuple[str, Feed]]:
        self._check()
        for line, text in text_lines(self.path, self.wanted.name):
            where = f" line {line}"
            yield f"{self.label}{where}", self._feed(text, f"text {visible_name(str(self.path))}{where}")

    def _check(self) -> None:
        wanted = self.wanted
        where = f'input "{wanted.name}" from the text {self.path}'
        if wanted.given.tokenizer is None:
            raise RequestError(f"{where}: set `tokenizer:` to the model's tokenizer.json.")
        if wanted.pattern is None:
            raise shape_unknown(wanted.name)
        if len(wanted.pattern) not in (1, 2):
            raise RequestError(f"{where}: tokens need 1 or 2 dimensions, the input has {shape_text(wanted.pattern)}.")
        if not is_integer(wanted.dtype) and not part_of(wanted.name) == "attention_mask":
            raise RequestError(f"{where}: tokens are integers, the input is {wanted.dtype.name}.")

    def _feed(self, text: str, origin: str) -> Feed:
        wanted = self.wanted
        assert wanted.pattern is not None
        last = wanted.pattern[-1]
        length = last if isinstance(last, int) else None
        limit = min(filter(None, (length, wanted.given.max_length)), default=None)
        file = Path(str(wanted.given.tokenizer))
        require("text", f'input "{wanted.name}": {file}')
        check_text_size(file, wanted.name)
        tokenizer = _read_tokenizer(file, file.stat().st_mtime_ns, wanted.name)
        try:
            encoding, tokens = tokenizer.encode(text, limit)
        except Exception as error:  # the package raises Exception itself, such as for a missing unknown token
            reason = short_name(str(error), 200)
            raise RequestError(
                f'input "{wanted.name}": {wanted.given.tokenizer} cannot encode {origin}: {reason}'
            ) from None
        row = _values(encoding, part_of(wanted.name))
        kept, missing = len(row), (length or len(row)) - len(row)
        if missing:
            filler = 0 if part_of(wanted.name) else tokenizer.padding
            row = np.pad(row, (missing, 0) if tokenizer.pads_left else (0, missing), constant_values=filler)
        described = [f"{tokens} tokens" + (f", truncated to {kept}" if kept < tokens else "")]
        described += [f"padded to {kept + missing}"] if missing else []
        values = row.astype(wanted.dtype)
        if not np.array_equal(values.astype(np.int64), row):
            raise RequestError(f'input "{wanted.name}": {origin} has numbers that do not fit {wanted.dtype.name}.')
        if len(wanted.pattern) == 2:
            batch = wanted.pattern[0]
            values = np.repeat(values[None], batch if isinstance(batch, int) else 1, axis=0)
        how = ", ".join((origin, *described, wanted.describe(values)))
        return Feed(values, how, is_from_file=True)


def text_lines(path: Path, name: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a file that are not empty, with their numbers from 1."""
    check_text_size(path, name)
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f'input "{name}": {path} cannot be read as UTF-8 text: {error}') from None


def check_text_size(path: Path, name: str) -> None:
    """Raise `RequestError` for a missing file, and for one larger than `MOST_BYTES`."""
    try:
        length = path.stat().st_size
    except OSError:
        raise RequestError(f'input "{name}": there is no file {path} (looked in {Path.cwd()}).') from None
    if length > MOST_BYTES:
        raise RequestError(f'input "{name}": {path} has {size(length)}, more than {size(MOST_BYTES)}.')


@dataclass(frozen=True)
class _Tokens:
    """A tokenizer, and its padding."""

    tokenizer: Tokenizer
    padding: int
    """Number of the token that fills an input."""
    pads_left: bool

    def encode(self, text: str, limit: int | None) -> tuple[Encoding, int]:
        """Return a text's encoding of at most `limit` tokens, special ones included, and the number of all tokens."""
        self.tokenizer.no_truncation()
        whole = self.tokenizer.encode(text)
        if limit is None or len(whole.ids) <= limit:
            return whole, len(whole.ids)
        self.tokenizer.enable_truncation(limit)
        return self.tokenizer.encode(text), len(whole.ids)


@lru_cache(maxsize=4)
def _read_tokenizer(path: Path, changed_ns: int, name: str) -> _Tokens:
    from tokenizers import Tokenizer

    del changed_ns
    try:
        tokenizer = Tokenizer.from_str(path.read_text(encoding="utf-8"))
    except Exception as error:  # the package raises Exception itself
        reason = short_name(str(error), 200)
        raise RequestError(f'input "{name}": {path} is not a tokenizer of the package tokenizers: {reason}') from None
    declared = tokenizer.padding or {}
    known = (tokenizer.token_to_id(token) for token in _PADDING_TOKENS)
    padding = declared.get("pad_id", next((number for number in known if number is not None), 0))
    tokenizer.no_padding()
    return _Tokens(tokenizer, padding, declared.get("direction") == "left")


def _values(encoding: Encoding, part: str) -> Array:
    rows: dict[str, Any] = {
        "": encoding.ids,
        "attention_mask": encoding.attention_mask,
        "token_type_ids": encoding.type_ids,
        "position_ids": range(len(encoding.ids)),
    }
    return np.asarray(rows[part], np.int64)


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
