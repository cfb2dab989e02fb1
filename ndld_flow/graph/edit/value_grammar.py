r"""Values and element types as they are written in recipes.

Values are numbers, booleans, quoted strings and nested lists of them: `[[1, 2], [3, 4]]`, `'It\'s alive!'`, `0x1F`,
`-inf`, `true`. A number may be decimal, hexadecimal, or with an exponent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.text import short_name
from ndld_flow.models.element_types import dtype_name

Value: TypeAlias = "bool | int | float | str | list[Value]"
Array = npt.NDArray[Any]

MAX_ELEMENTS = 10_000
"""Maximum number of elements; more belong in a file."""
_MAX_DEPTH = 32
_MAX_DIGITS = 400

_SPACE = re.compile(r"\s*")
_WORD = re.compile(r"[^\s\[\],'\"]+")
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_INTEGER = re.compile(r"[+-]?(?:0[xX][0-9a-fA-F]+|[0-9]+)")
_FLOAT = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|nan)")
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", "'": "'", '"': '"'}
_TRUTHS = {"true": True, "True": True, "false": False, "False": False}
_Place: TypeAlias = "tuple[int, ...]"
_SHORT = {
    "fp64": ir.DataType.DOUBLE,
    "fp32": ir.DataType.FLOAT,
    "fp16": ir.DataType.FLOAT16,
    "bf16": ir.DataType.BFLOAT16,
    "fp8": ir.DataType.FLOAT8E4M3FN,
    "fp4": ir.DataType.FLOAT4E2M1,
}


def parse_value(text: str) -> Value:
    """Parse a number, a boolean, a quoted string, or nested lists of these.

    Raises `RequestError` with the column, counted from 1, for text that is not a value, and for more than 10,000
    elements.
    """
    return _Reader(text).whole()


def to_array(value: Value, dtype: ir.DataType) -> Array:
    """Return the values as an array of a type; strings as an array of objects.

    Raises `RequestError` for a value that the dtype cannot represent (floats are rounded, nothing is truncated), for
    lists of unequal lengths, and for more than 10,000 elements.
    """
    shape = _shape(value)
    elements = list(_elements(value, ()))
    if len(elements) > MAX_ELEMENTS:
        raise RequestError(_too_many())
    convert = _conversion_to(dtype)
    if convert is None:
        raise RequestError(f"values of type {dtype_name(dtype)} cannot be written in a recipe; give a .npy file")
    flat = np.empty(len(elements), dtype=np.object_ if dtype == ir.DataType.STRING else dtype.numpy())
    for number, (place, element) in enumerate(elements):
        flat[number] = convert(element, dtype, place)
    return flat.reshape(shape)


class _Reader:
    """Parses one value from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._place = 0
        self._count = 0

    def whole(self) -> Value:
        value = self._value(0)
        self._skip_space()
        if self._place < len(self._text):
            raise self._error("the value ends here, but more text follows")
        return value

    def _value(self, depth: int) -> Value:
        self._skip_space()
        if self._ahead() == "[":
            return self._list(depth)
        self._count += 1
        if self._count > MAX_ELEMENTS:
            raise self._error(_too_many())
        if self._ahead() in ("'", '"'):
            return self._quoted()
        return self._plain()

    def _list(self, depth: int) -> list[Value]:
        if depth == _MAX_DEPTH:
            raise self._error(f"lists are nested deeper than {_MAX_DEPTH}")
        self._place += 1
        self._skip_space()
        values: list[Value] = []
        while self._ahead() != "]" or values:
            values.append(self._value(depth + 1))
            self._skip_space()
            if self._ahead() not in (",", "]"):
                raise self._error("`,` or `]` is missing")
            if self._ahead() == "]":
                break
            self._place += 1
        self._place += 1
        return values

    def _quoted(self) -> str:
        quoted = _QUOTED.match(self._text, self._place)
        if quoted is None:
            raise self._error("the string that begins here is not closed: its closing quote is missing")
        start, self._place = self._place, quoted.end()
        return _ESCAPE.sub(lambda escape: self._unescaped(escape[1], start + 1 + escape.start()), quoted[0][1:-1])

    def _unescaped(self, code: str, place: int) -> str:
        if code[0] in "xu" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code not in _ESCAPED:
            self._place = place
            raise self._error(f"`\\{short_name(code)}` is not an escape sequence; write `\\\\` for a backslash")
        return _ESCAPED[code]

    def _plain(self) -> Value:
        match = _WORD.match(self._text, self._place)
        if match is None:
            raise self._error("a value is missing")
        word = match[0]
        value = _TRUTHS[word] if word in _TRUTHS else _number(word)
        if value is None:
            shown = short_name(word, 40)
            raise self._error(f"`{shown}` is not a number, `true` or `false`; strings are quoted: `'{shown}'`")
        self._place = match.end()
        return value

    def _skip_space(self) -> None:
        space = _SPACE.match(self._text, self._place)
        assert space is not None
        self._place = space.end()

    def _ahead(self) -> str:
        return self._text[self._place : self._place + 1]

    def _error(self, what: str) -> RequestError:
        return RequestError(f"the value `{short_name(self._text, 60)}`, column {self._place + 1}: {what}")


def _number(word: str) -> int | float | None:
    """Return None for text that is not a number, or a number out of range."""
    if len(word) > _MAX_DIGITS:
        return None
    if _INTEGER.fullmatch(word):
        return int(word, 16 if "x" in word.lower() else 10)
    if not _FLOAT.fullmatch(word):
        return None
    number = float(word)
    return None if math.isinf(number) and "inf" not in word else number


def _too_many() -> str:
    return f"more than {MAX_ELEMENTS:,} elements are not accepted; put them into a .npy file"


def _shape(value: Value) -> tuple[int, ...]:
    """Return the shape of nested lists. Raises `RequestError` if lists of one level differ."""
    if not isinstance(value, list):
        return ()
    shapes = [_shape(element) for element in value]
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise RequestError(
                f"the lists have different lengths: element 0 has the shape {list(shapes[0])}, "
                f"element {number} has {list(shape)}"
            )
    return (len(value), *(shapes[0] if shapes else ()))


def _elements(value: Value, place: _Place) -> Iterator[tuple[_Place, Value]]:
    if not isinstance(value, list):
        yield place, value
        return
    for number, element in enumerate(value):
        yield from _elements(element, (*place, number))


def _conversion_to(dtype: ir.DataType) -> Callable[[Value, ir.DataType, _Place], Any] | None:
    if dtype in (ir.DataType.STRING, ir.DataType.BOOL):
        return _text_element if dtype == ir.DataType.STRING else _truth
    if dtype.is_integer():
        return _integer
    return _float if dtype.is_floating_point() else None


def _text_element(element: Value, dtype: ir.DataType, place: _Place) -> str:
    if not isinstance(element, str):
        raise _unfit(element, dtype, place)
    return element


def _truth(element: Value, dtype: ir.DataType, place: _Place) -> bool:
    if isinstance(element, bool) or (isinstance(element, int) and element in (0, 1)):
        return bool(element)
    raise _unfit(element, dtype, place)


def _integer(element: Value, dtype: ir.DataType, place: _Place) -> int:
    if isinstance(element, float) and element.is_integer():
        element = int(element)
    if not isinstance(element, int) or isinstance(element, bool):
        raise _unfit(element, dtype, place)
    limits = ml_dtypes.iinfo(dtype.numpy())
    if not int(limits.min) <= element <= int(limits.max):
        raise _unfit(element, dtype, place, f", which goes from {int(limits.min)} to {int(limits.max)}")
    return element


def _float(element: Value, dtype: ir.DataType, place: _Place) -> Any:  # noqa: ANN401 - a scalar of any float type
    if not isinstance(element, int | float) or isinstance(element, bool):
        raise _unfit(element, dtype, place)
    limits = ml_dtypes.finfo(dtype.numpy())
    why = f", which goes from {float(limits.min):g} to {float(limits.max):g}"
    try:
        wanted = float(element)
    except OverflowError:
        raise _unfit(element, dtype, place, why) from None
    with np.errstate(over="ignore"):
        held = np.asarray(wanted, dtype=np.float64).astype(dtype.numpy())
    kept = float(held)
    # The smallest float types have no infinity: they clip to their largest number.
    clipped = math.isfinite(wanted) and abs(wanted) - abs(kept) > float(limits.max) * float(limits.eps) / 2
    if clipped or math.isnan(kept) != math.isnan(wanted) or math.isinf(kept) != math.isinf(wanted):
        raise _unfit(element, dtype, place, why)
    return held


def _unfit(element: Value, dtype: ir.DataType, place: _Place, why: str = "") -> RequestError:
    where = f" at {list(place)}" if place else ""
    return RequestError(f"{short_name(repr(element), 40)}{where} does not fit {dtype_name(dtype)}{why}")


def parse_dtype(name: str) -> ir.DataType:
    """Return the element type of a name. `float32`, `float`, `FLOAT` and `fp32` are the same type.

    Raises `RequestError` with the nearest name.
    """
    dtypes = [dtype for dtype in ir.DataType if dtype != ir.DataType.UNDEFINED]
    known = {dtype_name(dtype): dtype for dtype in dtypes} | {dtype.name.lower(): dtype for dtype in dtypes} | _SHORT
    if name.lower() not in known:
        raise UnknownNameError(f"there is no element type {name!r}", name, known)
    return known[name.lower()]
